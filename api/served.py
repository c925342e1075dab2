"""The names that requests may give as their ``model``: the model's own, and its adapters'."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.errors import UnknownModelError


@dataclass(frozen=True, slots=True)
class Served:
    """``model`` is the model's own name, ``adapters`` those of its LoRA adapters."""

    model: str
    adapters: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the model's own first."""
        return (self.model, *self.adapters)

    def require(self, name: str) -> None:
        """Raise ``UnknownModelError`` unless that name is served."""
        if name not in self.names:
            raise UnknownModelError(name, self.names)

    def lora(self, name: str) -> str | None:
        """Return the adapter of that name, ``None`` for the model itself. Raises ``UnknownModelError``."""
        self.require(name)
        return None if name == self.model else name
