"""A tiny random Llama behind a whole engine: real pool, runner and store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from backends.copies import Copies
from backends.faulty import Fault
from engine_adapter.engine.attention import AttentionBackend
from engine_adapter.engine.config import EngineConfig
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.decode_graphs import GraphSetup
from engine_adapter.engine.engine import Engine
from engine_adapter.engine.kv_forms import layout_for
from engine_adapter.engine.models import LoadedModel, load_model
from engine_adapter.engine.planner import NamedPolicy
from engine_adapter.engine.runner import ModelRunner
from engine_adapter.engine.sdpa import SdpaAttention
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.served import OnServed
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierSpec
from policies.lru import LeafFirstLRU
from policies.planning import ReloadPolicy
from policies.reload import AlwaysLoad
from tests.engine_adapter.pool_kinds import POOL_KINDS, PoolKind
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    CONTEXT_TOKENS,
    EOS,
    HEAD_DIM,
    NUM_KV_HEADS,
    NUM_LAYERS,
    SLOT_BYTES,
    VOCAB_SIZE,
    CleanIds,
    MakeRig,
    Rig,
    clean_run,
    host_tier,
    slow_tier,
)
from tests.engine_adapter.vllm_rig import OpenVllm, Vllm


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each byte, and two special ones."""
    alphabet = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<begin>", "<end>"])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<begin>", eos_token="<end>"
    )


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random Llama whose greedy answers are far from constant."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=4 * HEAD_DIM,
        intermediate_size=96,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=0.4,
        bos_token_id=EOS - 1,
        eos_token_id=EOS,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder, block_tokens=BLOCK_TOKENS)


@pytest.fixture(scope="session")
def clean_ids(tiny_folder: Path) -> CleanIds:
    """Return the clean run of the tiny model."""
    return clean_run(tiny_folder)


@pytest.fixture
def pool_kind(request: pytest.FixtureRequest) -> PoolKind:
    """Return the kind of pool under the engine; ``in_every_pool`` gives a test each of them."""
    return POOL_KINDS[getattr(request, "param", "layer-first")]


@pytest.fixture
def make_rig(
    tiny_model: LoadedModel, tiny_tokenizer: PreTrainedTokenizerFast, pool_kind: PoolKind
) -> Iterator[MakeRig]:
    """Return a maker of rigs; they are checked and closed at the end of the test."""
    rigs: list[Rig] = []

    def make(
        num_blocks: int = 64,
        tiers: Callable[[Arena], list[TierSpec]] | None = None,
        *,
        clock: Clock | None = None,
        model: LoadedModel = tiny_model,
        policy: ReloadPolicy | None = None,
        make_costs: Callable[[int, str | None], CostBook] = CostBook,
        host_blocks: int = 256,
        attention: AttentionBackend | None = None,
        graphs: GraphSetup | None = None,
        copies: Copies | None = None,
        on_served: Sequence[OnServed] = (),
        **limits: Any,
    ) -> Rig:
        arena = pool_kind.arena((host_blocks + 64) * SLOT_BYTES, slab_bytes=2**18)
        specs = tiers(arena) if tiers else [host_tier(arena, host_blocks * SLOT_BYTES)]
        clock = clock or Clock()
        memory_tier = next((spec.config.name for spec in specs if spec.config.name == "host"), None)
        costs = make_costs(model.kv_shape.block_bytes, memory_tier)
        store = TieredStore(
            specs, arena, StoreConfig(audit_share=1.0), clock, on_transfer=costs.note_transfer
        )
        added, removed = store.device_added, store.device_removed
        layout = layout_for(pool_kind.layout, model.kv_shape)
        copies = copies or pool_kind.make_copies()
        pool = pool_kind.pool(
            model.kv_shape, num_blocks, model.device, LeafFirstLRU(), added, removed, clock, layout, copies
        )
        attention = attention or SdpaAttention()
        runner = ModelRunner(model.model, pool, attention, model.adapters, model.key_scales, graphs)
        config = EngineConfig(**limits)
        named = NamedPolicy("under test", policy or AlwaysLoad())
        engine = Engine(model, tiny_tokenizer, pool, runner, store, named, costs, config, clock, on_served)
        rigs.append(Rig(engine, store, pool, arena, model))
        return rigs[-1]

    yield make
    for rig in rigs:
        if rig.engine.health().ok:
            rig.check_at_rest()
        assert rig.engine.close(10)
        rig.store.close(10)
        rig.arena.close()


@pytest.fixture
def open_vllm(tmp_path: Path) -> Iterator[OpenVllm]:
    """Open a stand-in for vLLM with a store of its own: in memory, or behind a medium that may fail."""
    stores: list[TieredStore] = []

    def opened(
        script: Sequence[Fault] | None = None,
        *,
        store: TieredStore | None = None,
        ranks: int = 1,
        **given: Any,
    ) -> Vllm:
        if store is None:
            arena = Arena(2**24)
            tiers = [host_tier(arena, 2**23)] if script is None else slow_tier(script)(arena)
            store = TieredStore(tiers, arena, StoreConfig(audit_share=1.0))
            stores.append(store)
        return Vllm(store, tmp_path, given, ranks)

    yield opened
    for store in stores:
        store.close()
