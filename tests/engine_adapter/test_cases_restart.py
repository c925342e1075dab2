"""Conditions that show after a restart on the same disk folder: whose blocks are used, and which are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from backends.disk import DiskBackend
from backends.kv_shape import Layout
from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.events import Completion
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.sdpa import SdpaAttention
from engine_adapter.serving_config import ServingConfig, TierSetup
from kvstore.errors import ConfigError, ModelRefusedError, PluginError
from kvstore.namespace import Namespace
from tests.engine_adapter.rig import NUM_LAYERS, greedy, prompt_of

PROMPT = prompt_of(101, seed=5)
PAGE_BYTES = 4096

Serve = Callable[..., AbstractContextManager[Serving]]


@pytest.fixture
def model_folder(tmp_path: Path, tiny_folder: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """Return a copy of the tiny model that a test may change."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


def config_of(folder: Path, **changes: Any) -> ServingConfig:
    """Return a small server of ``folder/model`` with a host tier and a disk tier below ``folder``."""
    config = ServingConfig(
        model=folder / "model",
        weight_digests=folder / "digests.json",
        device="cpu",
        compute_dtype="float32",
        kv_dtype="auto",
        block_tokens=8,
        device_bytes=1 << 20,
        device_eviction="lru",
        tiers=(
            TierSetup("host", 1 << 20, "lru", "through"),
            TierSetup("disk", 4 << 20, "lru", "through", folder / "blocks"),
        ),
        default_ttl_s=None,
        reload_policy="always-load",
        load_deadline_s=5.0,
        mode="serve",
        verify_share=0.05,
        cost_folder=folder / "costs",
        max_batched_tokens=64,
        max_sequences=8,
        max_waiting=8,
    )
    return replace(config, **changes)


@pytest.fixture
def serve(tmp_path: Path, model_folder: Path) -> Serve:
    """Return a maker of servers, one after the other, over one disk folder."""
    assert model_folder == tmp_path / "model"

    @contextmanager
    def serve(**changes: Any) -> Iterator[Serving]:
        with closing(assemble(config_of(tmp_path, **changes))) as serving:
            yield serving
            serving.engine.flush(10)
            serving.engine.check()
            serving.store.check()

    return serve


def answer(serving: Serving, cache: CacheUse = CacheUse.ON, salt: str = "") -> Completion:
    return serving.engine.generate(greedy(PROMPT, cache=cache, salt=salt))


def loaded(completion: Completion) -> int:
    """Return how many tokens of the prompt were not computed."""
    return completion.usage.prompt_tokens - completion.usage.tokens_by_source["computed"]


def block_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "blocks" / "v1" / "blocks").glob("*/*"))


def test_a_restart_on_the_same_folder_reuses_all_whole_blocks(serve: Serve) -> None:
    with serve() as serving:
        clean = answer(serving, CacheUse.OFF)
        assert answer(serving).token_ids == clean.token_ids
    with serve() as serving:
        again = answer(serving)
        assert again.token_ids == clean.token_ids
        assert again.usage.tokens_by_source["disk"] == 96


class BlockFirst(SdpaAttention):
    """An attention that would have its pool block-first."""

    layout: Layout = "block-first"


@pytest.mark.parametrize("form", ["float32", "int8"])
def test_blocks_stored_by_a_pool_of_another_layout_are_loaded(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    with serve(kv_dtype=form) as serving:
        expected = answer(serving).token_ids
    monkeypatch.setattr("engine_adapter.assemble.attention_for", lambda _model: BlockFirst())
    with serve(kv_dtype=form) as serving:
        again = answer(serving)
        assert again.token_ids == expected
        assert again.usage.tokens_by_source["disk"] == 96
        has_one_layout = form == "int8"
        assert serving.engine._pool.pages_per_block == (1 if has_one_layout else 2 * NUM_LAYERS)


@pytest.mark.parametrize("form", ["bfloat16", "int8", "fp8"])
def test_a_restart_reuses_blocks_in_any_form(serve: Serve, form: str) -> None:
    with serve(kv_dtype=form) as serving:
        clean = answer(serving, CacheUse.OFF)
        assert answer(serving).token_ids == clean.token_ids
    with serve(kv_dtype=form) as serving:
        again = answer(serving)
        assert again.token_ids == clean.token_ids
        assert again.usage.tokens_by_source["disk"] == 96


def new_weights(folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(99)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)


def new_rope(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("change", [new_weights, new_rope])
def test_case_1_another_model_under_the_same_name_finds_nothing(
    serve: Serve, model_folder: Path, change: Callable[[Path], None]
) -> None:
    with serve() as serving:
        before = answer(serving)
    change(model_folder)
    with serve() as serving:
        clean, cached = answer(serving, CacheUse.OFF), answer(serving)
        assert loaded(cached) == 0
        assert cached.token_ids == clean.token_ids != before.token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"block_tokens": 16}, {"kv_dtype": "bfloat16"}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8"},
        {"compute_dtype": "bfloat16"},
    ],
)  # fmt: skip
def test_case_1_another_form_of_kv_finds_nothing(serve: Serve, options: dict[str, object]) -> None:
    with serve() as serving:
        answer(serving)
    with serve(**options) as serving:
        clean, cached = answer(serving, CacheUse.OFF), answer(serving)
        assert loaded(cached) == 0
        assert cached.token_ids == clean.token_ids


def test_case_1_going_back_to_the_first_model_finds_its_blocks_again(
    serve: Serve, model_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(model_folder, tmp_path / "first")
    with serve() as serving:
        before = answer(serving)
    new_weights(model_folder)
    with serve() as serving:
        answer(serving)
    shutil.rmtree(model_folder)
    shutil.copytree(tmp_path / "first", model_folder)
    with serve() as serving:
        again = answer(serving)
        assert loaded(again) == 96
        assert again.token_ids == before.token_ids


def test_each_namespace_has_a_readable_manifest_beside_its_blocks(serve: Serve, tmp_path: Path) -> None:
    with serve() as serving:
        answer(serving)
        answer(serving, salt="tenant secret")
        base = serving.model_facts.namespace
    manifests = [path.read_text() for path in (tmp_path / "blocks").rglob("*.json")]
    found = {Namespace.from_manifest(text) for text in manifests}
    assert found == {base, base.with_salt("tenant secret")}
    assert not any("tenant secret" in text for text in manifests)


def test_case_19_another_salt_finds_nothing_in_any_tier(serve: Serve) -> None:
    with serve() as serving:
        answer(serving, salt="alice")
        assert loaded(answer(serving, salt="bob")) == 0
        assert loaded(answer(serving)) == 0
        assert loaded(answer(serving, salt="alice")) == 96
    with serve() as serving:
        assert loaded(answer(serving, salt="carol")) == 0
        assert loaded(answer(serving, salt="alice")) == 96


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_at_a_page(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:PAGE_BYTES])


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, cut_at_a_page])
def test_cases_6_and_8_a_damaged_block_is_computed_and_the_others_are_loaded(
    serve: Serve, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with serve() as serving:
        clean = answer(serving)
    damage(block_files(tmp_path)[3])
    with serve() as serving:
        again = answer(serving)
        assert again.token_ids == clean.token_ids
        assert loaded(again) == 88
        assert again.usage.planned is not None
        assert again.usage.planned.num_failed == 1
        assert again.usage.planned.reason.endswith(
            "; 1 of its blocks were asked for and did not come, so they were computed"
        )
        disk = serving.store.statistics().tiers[2]
        assert disk.counts["corrupt"] + disk.counts["missing"] == 1
    with serve() as serving:
        assert loaded(answer(serving)) == 96, "the block was stored anew"


def test_case_6_a_value_swapped_with_another_keys_is_not_used(serve: Serve, tmp_path: Path) -> None:
    with serve() as serving:
        clean = answer(serving)
    first, second = block_files(tmp_path)[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    with serve() as serving:
        again = answer(serving)
        assert again.token_ids == clean.token_ids
        assert loaded(again) == 80
        assert serving.store.statistics().tiers[2].counts["corrupt"] == 2


def test_case_5_a_file_left_half_written_by_a_killed_process_is_not_seen(
    serve: Serve, tmp_path: Path
) -> None:
    with serve() as serving:
        clean = answer(serving)
    path = block_files(tmp_path)[0]
    data = path.read_bytes()
    path.unlink()
    (tmp_path / "blocks" / "v1" / "tmp").mkdir(exist_ok=True)
    (tmp_path / "blocks" / "v1" / "tmp" / path.name).write_bytes(data[: len(data) // 2])
    with serve() as serving:
        again = answer(serving)
        assert again.token_ids == clean.token_ids
        assert loaded(again) == 88


def test_a_second_server_on_the_same_folder_works_without_the_disk_and_says_so(
    serve: Serve, tmp_path: Path
) -> None:
    with serve() as first, closing(assemble(config_of(tmp_path))) as second:
        assert first.degraded == {}
        assert list(second.degraded) == ["disk"]
        assert second.degraded["disk"].startswith("runs without this tier: ")
        assert answer(second).token_ids == answer(first).token_ids


def test_a_model_that_is_not_there_is_named_before_its_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelRefusedError, match="none: there is no such folder"):
        assemble(config_of(tmp_path, model=tmp_path / "none"))


@pytest.mark.parametrize(
    ("device_bytes", "reason"),
    [(1, "1 holds less than two blocks"), (1 << 50, f"{1 << 50} is more than the ")],
)
def test_a_device_budget_out_of_reason_is_named(
    tmp_path: Path, model_folder: Path, device_bytes: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"device_bytes: {reason}"):
        assemble(config_of(tmp_path, device_bytes=device_bytes))


@pytest.mark.parametrize(
    "changes", [{"max_sequences": 65}, {"device_bytes": 1}, {"device_eviction": "none"}], ids=str
)
def test_a_server_that_cannot_be_put_together_leaves_the_folder_free(
    tmp_path: Path, model_folder: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises((ConfigError, PluginError)):
        assemble(config_of(tmp_path, **changes))
    DiskBackend(tmp_path / "blocks").close()
