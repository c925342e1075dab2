from __future__ import annotations

from itertools import islice

import pytest

from kvstore.conformance.eviction import EvictionConformance, is_free, key
from kvstore.seams import EvictionPolicy
from policies.arc import LeafFirstARC
from policies.lfu import LeafFirstLFU
from policies.reuse import LeafFirstReuse
from policies.s3fifo import LeafFirstS3FIFO


class TestLFU(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstLFU()


class TestS3FIFO(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstS3FIFO()


class TestARC(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstARC()


class TestReuse(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstReuse()
