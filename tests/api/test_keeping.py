"""Pins of prompts, and what is told of pins and quotas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from engine_adapter.assemble import Serving
from engine_adapter.engine.request import Request, Sampling
from kvstore.errors import ConfigError, PinBudgetError, RequestError
from kvstore.namespace import salt_digest
from kvstore.retention import Retention, TenantRule

PROMPT = list(range(100, 164))
SECRET = "a tenant's secret"


@pytest.fixture
def with_rules(serving: Serving) -> Iterator[Serving]:
    """Let everybody pin a little, within quotas."""
    rule = TenantRule(quotas={"host": 1 << 20}, pin_bytes=1 << 20)
    serving.store.set_retention(Retention(rule, {salt_digest(SECRET): TenantRule(pin_bytes=1)}))
    yield serving
    serving.unpin(PROMPT)
    serving.store.set_retention(Retention())


def warm(serving: Serving, prompt: list[int], salt: str = "") -> None:
    serving.engine.generate(Request(prompt, Sampling(max_tokens=1), salt=salt))


def test_a_prompt_is_pinned_by_one_call_and_warmed_for_what_is_missing(with_rules: Serving) -> None:
    cold = with_rules.pin(PROMPT, for_s=60.0)
    assert (cold.num_blocks, len(cold.absent)) == ({}, len(PROMPT) // 16)
    warm(with_rules, PROMPT)
    told = with_rules.pin(PROMPT, for_s=60.0)
    assert told.num_blocks == {"host": 4, "disk": 4}, "also what was computed just now"
    assert told.absent == ()
    assert {pin.tier: pin.num_blocks for pin in with_rules.store.pins()} == {"host": 4, "disk": 4}
    assert with_rules.unpin(PROMPT, tiers=["disk"]) == 4


def test_a_prompt_is_its_tenants(with_rules: Serving) -> None:
    warm(with_rules, PROMPT, SECRET)
    with pytest.raises(PinBudgetError) as caught:
        with_rules.pin(PROMPT, SECRET, for_s=60.0)
    assert caught.value.left_bytes == 1


def test_a_prompt_without_a_whole_block_or_with_foreign_tokens_is_refused(with_rules: Serving) -> None:
    with pytest.raises(ConfigError, match="shorter than a block of 16"):
        with_rules.pin(PROMPT[:15], for_s=60.0)
    with pytest.raises(RequestError):
        with_rules.pin([10**9] * 16, for_s=60.0)


def test_metrics_tell_quotas_and_pins_and_never_a_salt(with_rules: Serving, client: TestClient) -> None:
    warm(with_rules, PROMPT)
    warm(with_rules, PROMPT, SECRET)
    pinned = with_rules.pin(PROMPT, for_s=60.0, tiers=["host"])
    text = client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['prefixd_pinned_bytes{tenant="unsalted"}']) == pinned.charged_bytes
    assert float(lines['prefixd_tier_pinned_bytes{tier="host"}']) == pinned.charged_bytes
    assert float(lines[f'prefixd_pin_budget_bytes{{tenant="{salt_digest(SECRET)[:12]}"}}']) == 1
    assert float(lines['prefixd_quota_bytes{name="unsalted",scope="tenant",tier="host"}']) == 1 << 20
    assert float(lines['prefixd_quota_used_bytes{name="unsalted",scope="tenant",tier="host"}']) > 0
    assert SECRET not in text
