"""The body that tells of the audit in idle time."""

from __future__ import annotations

from typing import Any

from api.admin.fields import seconds, tenant_name
from engine_adapter.engine.audit import Audit, WrongCopy


def audit_body(audit: Audit) -> dict[str, Any]:
    """Return what was found, with digests as text and times as seconds of the epoch."""
    return {
        "share": audit.share,
        "prompts": audit.num_prompts,
        "memory_bytes": audit.memory_bytes,
        "compared_blocks": audit.num_compared,
        "compared_bytes": audit.compared_bytes,
        "wrong_blocks": audit.num_wrong,
        "failures": audit.num_failed,
        "last_at": seconds(audit.last_at_ms),
        "coverage": audit.coverage,
        "spent_s": audit.spent_s,
        "idle_s": audit.idle_s,
        "last_wrong": [_wrong_body(wrong) for wrong in audit.last_wrong],
    }


def _wrong_body(wrong: WrongCopy) -> dict[str, Any]:
    return {
        "key": wrong.key.hex(),
        "block": wrong.block,
        "tier": wrong.tier,
        "namespace": wrong.namespace.hex(),
        "label": wrong.label,
        "tenant": tenant_name(wrong.tenant),
        "found_at": seconds(wrong.at_ms),
    }
