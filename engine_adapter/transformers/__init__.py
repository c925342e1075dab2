"""Prefix reuse inside a script that uses transformers.

Three lines are added::

    from engine_adapter.transformers import PrefixCache
    prefixes = PrefixCache(model)
    model.generate(**inputs, cache=prefixes.cache(inputs))
"""

from engine_adapter.transformers.prefix_cache import PrefixCache, ReuseStatistics
from engine_adapter.transformers.reused_cache import ReusedCache

__all__ = ["PrefixCache", "ReuseStatistics", "ReusedCache"]
