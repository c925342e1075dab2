"""What the routes share, made once when the service is built."""

from __future__ import annotations

from dataclasses import dataclass

from api.few_threads import FewThreads
from api.metrics import Metrics
from api.prompts import PromptEncoder
from api.served import Served
from engine_adapter.assemble import Serving
from kvstore.clock import Clock


@dataclass(frozen=True)
class Context:
    """The assembled server, the names that it answers to, and what does the rest of its work."""

    serving: Serving
    served: Served
    metrics: Metrics
    prompts: PromptEncoder
    explaining: FewThreads
    constraining: FewThreads
    clock: Clock
    started_s: int

    def now_s(self) -> int:
        """Return the wall clock in whole seconds, as the OpenAI API dates its answers."""
        return self.clock.wall_ms() // 1000
