"""Which resident blocks of a prompt to load, and which to compute."""

from __future__ import annotations

from kvstore.seams import Choice, Plan, PlanRequest


class AlwaysLoad:
    """Loads every resident block, whatever it costs."""

    def plan(self, request: PlanRequest) -> Plan:
        choices = tuple(Choice.COMPUTE if tier is None else Choice.LOAD for tier in request.tiers)
        return Plan(choices, "every resident block is loaded")
