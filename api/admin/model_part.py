"""What only a server with a model can tell or do; a store alone has none of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from api.admin.insight_fields import ExplainFields
from api.admin.selection import ByMessages, ByPrompt
from api.history import Reading
from api.setting_types import ModeName
from kvstore.remote.tenancy import Tenant


class PromptBlocks(NamedTuple):
    """The keys of a prompt's whole blocks, and what it is made of; ``compute`` stores them, and blocks."""

    keys: Sequence[bytes]
    num_tokens: int
    block_tokens: int
    compute: Callable[[], None]


class ModelPart(Protocol):
    """The model's part of the administration. Bodies are JSON, as ``insight_views`` describes them."""

    def mode(self) -> ModeName:
        """Return the mode of requests that name none."""
        ...

    def set_mode(self, mode: ModeName) -> None:
        """Set it, for requests from now on."""
        ...

    def plans(self, tenant: Tenant) -> Sequence[dict[str, Any]]:
        """Return what was decided about the caller's last requests, the latest first."""
        ...

    async def explain(self, tenant: Tenant, fields: ExplainFields) -> dict[str, Any]:
        """Return what would be done with a prompt. Raises what the engine raises for one."""
        ...

    def learning(self) -> dict[str, Any]:
        """Return what shadow policies found, and how far the recording has come."""
        ...

    def audit(self) -> dict[str, Any]:
        """Return what the audit in idle time has found; blocks for some milliseconds."""
        ...

    def set_audit_share(self, share: float) -> None:
        """Set how much of the idle time it may take. Raises ``ConfigError`` where it was 0 at the start."""
        ...

    def reading(self) -> Reading:
        """Return what the history takes note of now."""
        ...

    async def blocks_of(self, tenant: Tenant, chosen: ByPrompt | ByMessages) -> PromptBlocks:
        """Return a prompt's blocks. Raises what the engine raises for one."""
        ...

    def clear_pool(self) -> None:
        """Drop what the engine's own pool keeps for nobody; blocks for a step at most."""
        ...

    def write_computed(self) -> None:
        """Have what was just computed written to the tiers; blocks for some seconds at most."""
        ...
