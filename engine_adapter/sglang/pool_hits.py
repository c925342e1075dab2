"""How far a prompt can be restored when its model has more pools than that of keys and values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def leading(is_here: Sequence[bool]) -> int:
    """Return how many are there from the first, without a gap."""
    return is_here.index(False) if False in is_here else len(is_here)


class PoolHits:
    """Lengths in pages to which all pools looked at so far can be restored.

    ``of_each_pool`` has the longest of each pool's own, ``restorable`` those that all have in common:
    states at a prompt's end may be there for 5 pages but not for 4.
    """

    def __init__(self, kv: Hashable, is_here: Sequence[bool]) -> None:
        num_pages = leading(is_here)
        self.of_each_pool: dict[Hashable, int] = {kv: num_pages} if num_pages else {}
        self.restorable = list(range(1, num_pages + 1))
        self._of_kv = self.restorable

    @property
    def num_pages(self) -> int:
        """The longest that can be restored."""
        return self.restorable[-1] if self.restorable else 0

    def narrow(self, pool: Hashable, policy: str, is_here: Sequence[bool], num_trailing: int) -> None:
        """Take in a pool that needs all its pages, or (``trailing_pages``) those before an end alone.

        A pool under another policy has no say: SGLang then asks for its pages and takes what comes.
        """
        if policy == "all_pages":
            own = self._of_kv[: leading(is_here)]
        elif policy == "trailing_pages":
            window = max(1, num_trailing)
            own = [length for length in self._of_kv if all(is_here[max(0, length - window) : length])]
        else:
            return
        of_both = set(own)
        self.restorable = [length for length in self.restorable if length in of_both]
        if own:
            self.of_each_pool[pool] = own[-1]
