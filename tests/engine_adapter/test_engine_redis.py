"""Servers that share one Valkey server, as processes of their own do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from backends.redis_address import RedisAddress
from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.events import Completion
from engine_adapter.engine.request import CacheUse
from engine_adapter.serving_config import ServingConfig, TierSetup
from kvstore.statistics import State
from tests.engine_adapter.rig import greedy, prompt_of
from tests.eventually import eventually
from tests.valkey import Valkey

PROMPT = prompt_of(101, seed=5)

Serve = Callable[..., AbstractContextManager[Serving]]


@pytest.fixture
def serve(tmp_path: Path, tiny_folder: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> Serve:
    """Return a maker of servers whose only lower tier is the Valkey server that they are given."""
    tiny_tokenizer.save_pretrained(tiny_folder)

    @contextmanager
    def serve(valkey: Valkey, *, codec: str | None = None, **changes: Any) -> Iterator[Serving]:
        address = RedisAddress(path=str(valkey.socket), timeout_s=0.3)
        tier = TierSetup("redis", 4 << 20, "lru", "through", address=address, codec=codec)
        config = ServingConfig(
            model=tiny_folder, weight_digests=tmp_path / "digests.json", device="cpu",
            compute_dtype="float32", kv_dtype="auto", block_tokens=8, device_bytes=1 << 20,
            device_eviction="lru", tiers=(tier,), default_ttl_s=60.0, reload_policy="always-load",
            load_deadline_s=5.0, mode="serve", verify_share=0.05, cost_folder=tmp_path / "costs",
            max_batched_tokens=16, max_sequences=8, max_waiting=8,
        )  # fmt: skip
        with closing(assemble(config)) as serving:
            yield serving
            serving.engine.flush(10)
            serving.engine.check()
            serving.store.check()

    return serve


def answer(serving: Serving, cache: CacheUse = CacheUse.ON, salt: str = "") -> Completion:
    return serving.engine.generate(greedy(PROMPT, cache=cache, salt=salt))


@pytest.mark.parametrize("codec", [None, "zstd-planes"])
def test_what_one_server_has_computed_another_loads(serve: Serve, valkey: Valkey, codec: str | None) -> None:
    with serve(valkey, codec=codec) as first:
        clean = answer(first, CacheUse.OFF)
        assert answer(first).token_ids == clean.token_ids
        first.engine.flush(10)
        first.store.flush(10)
        with serve(valkey, codec=codec) as second:
            again = answer(second)
            assert again.token_ids == clean.token_ids
            # It computes while it asks, so some of the 96 tokens are its own.
            assert again.usage.tokens_by_source["redis"] > 0
            assert "redis" not in answer(second, salt="another tenant's").usage.tokens_by_source


def test_a_server_that_is_not_there_costs_nobody_an_answer(serve: Serve, own_valkey: Valkey) -> None:
    own_valkey.kill()
    with serve(own_valkey) as serving:
        eventually(lambda: serving.store.health().state is State.DEGRADED)
        reason = serving.store.health().tiers["redis"].reason
        assert "redis: lookup failed: the server cannot be reached" in reason
        clean = answer(serving, CacheUse.OFF)
        for salt in ("", "a", "b", "c"):
            assert answer(serving, salt=salt).token_ids == clean.token_ids
        serving.engine.flush(10)
        serving.store.flush(10)
        health = serving.store.health()
        assert health.state is State.DEGRADED
        assert "the server cannot be reached" in health.tiers["redis"].reason
        assert serving.degraded == {}, "the tier is there and waits for its server"
