"""Whatever makes equal tokens give other keys and values makes another namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.sglang.identity import pool_namespace, rank_name, refuse_unfit, scoped
from engine_adapter.sglang.served import Served
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.errors import ConfigError
from kvstore.namespace import Namespace

CONFIG = {
    "tp_rank": 1, "tp_size": 4, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
    "dp_rank": 0, "dcp_rank": 0, "dcp_size": 1, "is_mla_model": False, "should_split_heads": False,
    "model_name": "served",
}  # fmt: skip
POOL = {
    "page_size": 64, "layout": "page_first", "dtype": torch.bfloat16, "layer_num": 2, "head_num": None,
    "temporal_dtype": torch.bfloat16,
}  # fmt: skip
MODEL = {"rope_theta": 1e4, "_name_or_path": "here"}
ARGUMENTS = {"kv_cache_dtype": "auto", "quantization": None, "quantization_param_path": None}


def namespace(
    name: str = "kv",
    how: str = "flat",
    page_bytes: int = 4096,
    weights: str = "w",
    salt: str = "",
    version: str = "1",
    **changed: Any,
) -> Namespace:
    def having(facts: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(**facts | {fact: changed[fact] for fact in facts if fact in changed})

    model = MODEL | {fact: changed[fact] for fact in MODEL if fact in changed}
    served = Served(having(ARGUMENTS), model, version)
    return pool_namespace(having(CONFIG), having(POOL), name, how, page_bytes, served, weights, salt)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "draft"}, {"how": "by address"}, {"weights": "others"}, {"salt": "secret"}, {"version": "2"},
        {"tp_rank": 0}, {"tp_size": 2}, {"pp_rank": 1}, {"attn_cp_rank": 1}, {"is_mla_model": True},
        {"page_size": 32}, {"layout": "layer_first"}, {"dtype": torch.float16}, {"layer_num": 3},
        {"rope_theta": 1e6}, {"kv_cache_dtype": "fp8_e4m3"}, {"quantization": "awq"}, {"page_bytes": 8192},
        {"quantization_param_path": "scales.json"}, {"temporal_dtype": torch.float16},
    ],
    ids=str,
)  # fmt: skip
def test_a_difference_makes_another_namespace(changed: dict[str, Any]) -> None:
    assert namespace(**changed).digest != namespace().digest
    assert scoped(namespace(**changed), ["page"]) != scoped(namespace(), ["page"])


@pytest.mark.parametrize(
    "same", [{"dp_rank": 1}, {"model_name": "alias"}, {"_name_or_path": "there"}], ids=str
)
def test_what_makes_no_difference_shares_pages(same: dict[str, Any]) -> None:
    assert namespace(**same).digest == namespace().digest


def test_ranks_with_the_same_states_share_them_and_others_do_not() -> None:
    latent = [namespace(is_mla_model=True, tp_rank=rank).digest for rank in (0, 1)]
    assert latent[0] == latent[1]
    drafts = [namespace("draft", is_mla_model=True, tp_rank=rank).digest for rank in (0, 1)]
    assert drafts[0] == drafts[1]
    states = [namespace("mamba", is_mla_model=True, tp_rank=rank).digest for rank in (0, 1)]
    assert states[0] != states[1]
    heads = [namespace("draft", is_mla_model=True, tp_rank=rank, head_num=8).digest for rank in (0, 1)]
    assert heads[0] != heads[1]


def test_each_process_of_a_server_has_a_folder_of_its_own() -> None:
    ranks = ("tp_rank", "pp_rank", "attn_cp_rank", "dp_rank")
    names = {rank_name(SimpleNamespace(**CONFIG | {rank: 7}), 0) for rank in ranks}
    assert len({*names, rank_name(SimpleNamespace(**CONFIG), 7)}) == len(ranks) + 1


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"is_mla_model": True}, "store"),
        ({"dcp_size": 2}, "dcp_size"),
        ({"should_split_heads": True}, "tp_lcm_size"),
    ],
)
def test_what_could_never_hit_or_be_right_is_refused(changed: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_unfit(SimpleNamespace(**CONFIG | changed), AdapterSettings())
    assert refused.value.setting == setting


def test_drafts_adapters_and_scales_count_among_the_weights(tmp_path: Path) -> None:
    for name in ("model", "draft", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    settings = AdapterSettings(cache_path=str(tmp_path / "cache"))

    def weights(**arguments: Any) -> str:
        return Served(SimpleNamespace(model_path=str(tmp_path / "model"), **arguments), {}, "1").weights(
            settings
        )

    adapter = [SimpleNamespace(lora_path=str(tmp_path / "adapter"))]
    known = [
        weights(), weights(speculative_draft_model_path=str(tmp_path / "draft")), weights(lora_paths=adapter)
    ]  # fmt: skip
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"r": 8}')
    known.append(weights(lora_paths=adapter))
    scales = tmp_path / "scales.json"
    for words in ("0.5", "0.25"):
        scales.write_text(words)
        known.append(weights(quantization_param_path=str(scales)))
    assert len(set(known)) == 6


@pytest.mark.parametrize(
    "arguments",
    [
        {"load_format": "dummy"},
        {"model_path": "nobody/has-this"},
        {"quantization_param_path": "nowhere.json"},
    ],
    ids=str,
)
def test_weights_that_cannot_be_told_must_be_named(arguments: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    served = Served(SimpleNamespace(**{"model_path": str(tmp_path)} | arguments), {}, "1")
    with pytest.raises(ConfigError) as refused:
        served.weights(AdapterSettings(cache_path=str(tmp_path)))
    assert refused.value.setting == "weights"
    named = [served.weights(AdapterSettings(weights=words)) for words in ("step 1", "step 2")]
    assert named[0] != named[1]


def test_a_configuration_s_sets_are_told_in_one_order() -> None:
    ran = [
        subprocess.run(
            [sys.executable, "-c", "from engine_adapter.foreign_config import *; print(plain({*'abcdef'}))"],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert ran[0] == ran[1]


def test_nothing_that_sglang_pins_is_imported() -> None:
    imported = "import sys, engine_adapter.sglang.host_pools; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=True)
    assert {"transformers", "fastapi", "starlette", "pydantic", "safetensors"}.isdisjoint(ran.stdout.split())
