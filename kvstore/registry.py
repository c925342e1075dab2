"""The plugin door: extensions are found by kind and name, built-ins through the same ``register``.

A package offers an extension as an entry point in the group ``prefixd.<kind>``::

    [project.entry-points."prefixd.eviction"]
    mru = "my_package:MostRecentlyUsed"
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from importlib.metadata import entry_points
from typing import Any

from kvstore.errors import PluginError

Factory = Callable[..., Any]


class Kind(Enum):
    """What can be extended, with the signature its factories share."""

    BACKEND = "backend"
    """``factory(**options) -> Backend``"""
    EVICTION = "eviction"
    """``factory() -> EvictionPolicy``"""
    RELOAD = "reload"
    """``factory() -> ReloadPolicy``"""
    CODEC = "codec"
    """``factory(item_bytes=int) -> Codec | None``: for blocks of numbers of that many bytes, 1, 2 or 4;
    ``None`` leaves them as they are"""


class Registry:
    """Names to factories. One is made at start-up and handed to whoever builds things."""

    def __init__(self) -> None:
        self._factories: dict[tuple[Kind, str], Factory] = {}

    def register(self, kind: Kind, name: str, factory: Factory) -> None:
        """Offer ``factory`` under ``name``. Raises ``PluginError`` when the name is taken."""
        if (kind, name) in self._factories:
            raise PluginError(kind.value, name, "is registered already")
        self._factories[kind, name] = factory

    def get(self, kind: Kind, name: str) -> Factory:
        """Return the factory called ``name``, importing a plugin's only now.

        Raises ``PluginError`` when there is none, naming those there are, or when its import fails.
        """
        if factory := self._factories.get((kind, name)):
            return factory
        for entry in entry_points(group=f"prefixd.{kind.value}", name=name):
            try:
                loaded: Factory = entry.load()
            except Exception as error:
                raise PluginError(kind.value, name, f"cannot be imported: {error}") from error
            self._factories[kind, name] = loaded
            return loaded
        raise PluginError(kind.value, name, f"is not known; there are: {', '.join(self.names(kind))}")

    def names(self, kind: Kind) -> list[str]:
        """Return the names on offer, built-ins and plugins, sorted."""
        own = {name for held_kind, name in self._factories if held_kind is kind}
        return sorted(own | {entry.name for entry in entry_points(group=f"prefixd.{kind.value}")})
