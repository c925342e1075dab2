"""Requests with LoRA adapters: the answers of merged weights, in one batch, and blocks that none share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from engine_adapter.engine.engine import Engine
from engine_adapter.engine.models import LoadedModel, load_model
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.runner import Chunk, ModelRunner
from kvstore.errors import RequestError
from tests.adapters import LINEAR, make_adapter, merged
from tests.engine_adapter.rig import BLOCK_TOKENS, CleanIds, MakeRig, Rig, clean_run, greedy, prompt_of

PROMPT = prompt_of(50, 1)
NAMES = (None, "attention", "everything")


def is_down(module: str) -> bool:
    return module.endswith("down_proj")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> dict[str, Path]:
    """Two adapters: a plain one, and one whose ranks and factors differ from module to module."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "attention": make_adapter(folder / "attention", tiny_folder, seed=1),
        "everything": make_adapter(
            folder / "everything", tiny_folder, LINEAR, seed=2, target_modules="all-linear", use_rslora=True,
            rank_of=lambda name: 2 if is_down(name) else 4, rank_pattern={"down_proj": 2},
            alpha_pattern={r"layers\.\d+\.mlp\.down_proj": 3},
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny_folder: Path, folders: dict[str, Path]) -> LoadedModel:
    return load_model(tiny_folder, block_tokens=BLOCK_TOKENS, loras=folders)


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, folders: dict[str, Path], clean_ids: CleanIds
) -> dict[str | None, CleanIds]:
    """Return the clean run of the model alone, and with each adapter merged into its weights."""
    folder = tmp_path_factory.mktemp("merged")
    plain = merged(tiny_folder, folders["attention"], folder / "attention", lambda _: 8 / 4)
    rank_stabilized = merged(
        tiny_folder, folders["everything"], folder / "everything",
        lambda name: 3 / math.sqrt(2) if is_down(name) else 8 / math.sqrt(4),
    )  # fmt: skip
    return {None: clean_ids, "attention": clean_run(plain), "everything": clean_run(rank_stabilized)}


def sources(rig: Rig, prompt: Sequence[int], lora: str | None) -> set[str]:
    usage = rig.engine.generate(greedy(prompt, 2, lora=lora)).usage
    return {source for source, num in usage.tokens_by_source.items() if num}


def forget_device(rig: Rig) -> None:
    assert rig.engine.flush(10)
    rig.forget_device()


@pytest.mark.parametrize("max_batched_tokens", [512, 20])
def test_one_batch_answers_each_request_with_its_adapter(
    make_rig: MakeRig,
    model: LoadedModel,
    answers: dict[str | None, CleanIds],
    monkeypatch: pytest.MonkeyPatch,
    max_batched_tokens: int,
) -> None:
    batches: list[set[str | None]] = []
    forward = ModelRunner.forward

    def noted(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
        batches.append({chunk.lora for chunk in chunks})
        return forward(runner, chunks)

    monkeypatch.setattr(ModelRunner, "forward", noted)
    rig = make_rig(model=model, max_batched_tokens=max_batched_tokens, max_sequences=8)
    done = rig.generate_together([greedy(PROMPT, 20, lora=name) for name in (*NAMES, *NAMES)])
    expected = [answers[name](PROMPT, 20) for name in NAMES]
    assert [answer.token_ids for answer in done] == [*expected, *expected]
    assert len(set(expected)) == 3
    assert set(NAMES) in batches


def test_what_is_loaded_back_is_the_adapters_own(
    make_rig: MakeRig, model: LoadedModel, answers: dict[str | None, CleanIds]
) -> None:
    rig = make_rig(model=model)
    rig.generate_together([greedy(PROMPT, 1, lora=name) for name in NAMES])
    forget_device(rig)
    again = rig.generate_together([greedy(PROMPT, 20, lora=name) for name in NAMES])
    assert [answer.token_ids for answer in again] == [answers[name](PROMPT, 20) for name in NAMES]
    for answer in again:
        assert answer.usage.tokens_by_source == {"computed": 2, "host": 48}


def test_no_block_is_shared_between_adapters_or_with_the_model(make_rig: MakeRig, model: LoadedModel) -> None:
    rig = make_rig(model=model)
    for name in NAMES:
        assert sources(rig, PROMPT, name) == {"computed"}
        forget_device(rig)
    for name in NAMES:
        assert sources(rig, PROMPT, name) == {"computed", "host"}
        assert sources(rig, PROMPT, name) == {"computed", "device"}


def test_the_same_content_under_two_names_shares_and_other_content_under_one_does_not(
    make_rig: MakeRig, tiny_folder: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    same = {"one": folders["attention"], "two": folders["attention"]}
    rig = make_rig(model=load_model(tiny_folder, block_tokens=BLOCK_TOKENS, loras=same))
    assert sources(rig, PROMPT, "one") == {"computed"}
    assert sources(rig, PROMPT, "two") == {"computed", "device"}
    other = {"one": make_adapter(tmp_path / "one", tiny_folder, seed=9)}
    later = load_model(tiny_folder, block_tokens=BLOCK_TOKENS, loras=other)
    assert later.adapters.digests["one"] != rig.model.adapters.digests["one"]


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_alpha": 9},
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 1}},
        {"target_modules": ".*_proj"},
    ],
)
def test_the_digest_is_of_what_is_computed(
    tiny_folder: Path, folders: dict[str, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    loras = {"other": make_adapter(tmp_path / "other", tiny_folder, LINEAR, seed=1, **changes)}
    loras["same"] = make_adapter(tmp_path / "same", tiny_folder, LINEAR, seed=1, lora_dropout=0.1)
    digests = load_model(tiny_folder, loras=loras).adapters.digests
    # A regular expression that names the same modules changes nothing.
    assert (digests["other"] == digests["same"]) is ("target_modules" in changes)


def test_without_an_adapter_the_model_computes_what_it_did_bit_by_bit(
    model: LoadedModel, tiny_model: LoadedModel
) -> None:
    x = torch.randn(1, 5, 48)
    for name, plain in tiny_model.model.named_modules():
        if isinstance(plain, torch.nn.Linear) and plain.in_features == 48:
            assert torch.equal(model.model.get_submodule(name)(x), plain(x))
    names = dict(tiny_model.model.named_parameters()).keys()
    assert dict(model.model.named_parameters()).keys() == names


def test_changed_weights_find_nothing_of_an_adapters_old_blocks(
    make_rig: MakeRig, tiny_folder: Path, folders: dict[str, Path]
) -> None:
    rig = make_rig(model=load_model(tiny_folder, block_tokens=BLOCK_TOKENS, loras=folders))
    before = rig.engine.generate(greedy(PROMPT, lora="attention"))
    rig.model.model.model.layers[0].self_attn.k_proj.weight.data *= -1
    rig.engine.model_changed()
    after = rig.engine.generate(greedy(PROMPT, lora="attention"))
    assert after.usage.cached_tokens == 0
    uncached = rig.engine.generate(greedy(PROMPT, lora="attention", cache=CacheUse.OFF))
    assert after.token_ids == uncached.token_ids != before.token_ids


def test_each_adapters_namespace_is_known_to_the_store(make_rig: MakeRig, model: LoadedModel) -> None:
    known = {space.lora: space.label for space in make_rig(model=model).store.known_namespaces(1.0)}
    digests = model.adapters.digests
    assert known == {
        "": "tiny-llama0",
        digests["attention"]: "tiny-llama0 with attention",
        digests["everything"]: "tiny-llama0 with everything",
    }


def test_an_adapter_that_is_not_served_is_refused_by_name(make_rig: MakeRig, model: LoadedModel) -> None:
    def refused(engine: Engine, lora: str) -> str:
        with pytest.raises(RequestError) as raised:
            engine.generate(greedy(PROMPT, lora=lora))
        with pytest.raises(RequestError, match="is no adapter"):
            engine.explain(PROMPT, lora=lora)
        assert raised.value.param == "lora"
        return raised.value.reason

    adapted, plain = make_rig(model=model), make_rig()
    assert refused(adapted.engine, "poet").endswith("those are: attention, everything")
    assert refused(plain.engine, "attention").endswith("those are: there are none")


def test_a_miss_names_the_adapter_where_the_tokens_are(make_rig: MakeRig, model: LoadedModel) -> None:
    rig = make_rig(model=model)
    rig.engine.generate(greedy(PROMPT, 1, lora="attention"))
    forget_device(rig)
    digest = model.adapters.digests["attention"]
    for name, here in ((None, "none"), ("everything", model.adapters.digests["everything"])):
        miss = rig.engine.explain(PROMPT, lora=name).miss
        assert miss is not None
        assert [(one.field, one.here, one.there) for one in miss.differences] == [("lora", here, digest)]
    explained = rig.engine.explain(PROMPT, lora="attention")
    assert (explained.miss, set(explained.tiers)) == (None, {"host"})
    assert explained.namespace.endswith(" with attention")


def test_an_adapter_shares_with_no_other_tenant(make_rig: MakeRig, model: LoadedModel) -> None:
    rig = make_rig(model=model)
    rig.engine.generate(greedy(PROMPT, 1, lora="attention", salt="ours"))
    for lora, salt in (("attention", ""), ("attention", "theirs"), (None, "ours")):
        assert rig.engine.generate(greedy(PROMPT, 1, lora=lora, salt=salt)).usage.cached_tokens == 0
    assert rig.engine.generate(greedy(PROMPT, 1, lora="attention", salt="ours")).usage.cached_tokens == 48


def test_answers_stay_each_adapters_own_under_pressure(
    make_rig: MakeRig, model: LoadedModel, answers: dict[str | None, CleanIds]
) -> None:
    random = Random(1)
    rig = make_rig(num_blocks=24, model=model, host_blocks=40, max_batched_tokens=48, max_sequences=6)
    stem = prompt_of(100, 7)
    requests = [
        greedy(stem[: random.randrange(20, 100)], random.randrange(1, 30), lora=random.choice(NAMES))
        for _ in range(30)
    ]
    for request, answer in zip(requests, rig.generate_together(requests), strict=True):
        num_tokens = request.sampling.max_tokens or 0
        assert answer.token_ids == answers[request.lora](request.prompt_ids, num_tokens)
    statistics = rig.engine.statistics()
    assert statistics.num_preempted > 0
    assert statistics.tokens_by_source["device"] > 0
