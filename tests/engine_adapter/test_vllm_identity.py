"""Which facts of vLLM's configuration keep blocks apart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm.identity import Scopes, engine_namespace, of_scope
from engine_adapter.vllm.orders import Scope
from engine_adapter.vllm.settings import AdapterSettings
from kvstore.errors import ConfigError
from tests.engine_adapter.vllm_rig import request


class Facts(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def configured(model: Path, **facts: Any) -> tuple[Any, Any]:
    """Return what vLLM would hand over; ``facts`` are dotted paths with ``__`` for the dots."""
    told = SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model), revision=None, dtype="torch.bfloat16", quantization=None, max_model_len=2048,
            disable_sliding_window=False,
            hf_text_config=Facts(hidden_size=64, rope_theta=1e4, _name_or_path="a"),
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=32, calculate_kv_scales=False),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, tensor_parallel_size=1, decode_context_parallel_size=1
        ),
        device_config=SimpleNamespace(device_type="cpu"),
        attention_config="default",
    )  # fmt: skip
    group = SimpleNamespace(layer_names=["a", "b"], kv_cache_spec="Full(heads=2)")
    cache = SimpleNamespace(kv_cache_groups=[group], kv_cache_layout="LBHNC", num_blocks=7)
    for path, value in facts.items():
        *names, last = path.split("__")
        owner: Any = told
        for name in names:
            owner = cache if name == "cache" else getattr(owner, name)
        setattr(owner, last, value)
    return told, cache


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def digest(model: Path, tmp_path: Path, version: str = "0.32.0", **facts: Any) -> bytes:
    told, cache = configured(model, **facts)
    settings = AdapterSettings.parse({"cache_path": str(tmp_path / "cache")})
    return engine_namespace(told, cache, settings, version).digest


@pytest.mark.parametrize(
    "facts",
    [
        {"version": "0.33.0"}, {"model_config__dtype": "torch.float16"}, {"cache_config__block_size": 64},
        {"model_config__quantization": "awq"}, {"cache_config__cache_dtype": "fp8"},
        {"model_config__hf_text_config": Facts(hidden_size=64, rope_theta=1e6)},
        {"parallel_config__tensor_parallel_size": 2}, {"attention_config": "another"},
        {"cache__kv_cache_layout": "NHD"}, {"device_config__device_type": "cuda"},
        {"cache__kv_cache_groups": [SimpleNamespace(layer_names=["a", "b"], kv_cache_spec="Full(heads=4)")]},
    ],
)  # fmt: skip
def test_other_facts_make_another_namespace(model: Path, tmp_path: Path, facts: dict[str, Any]) -> None:
    assert digest(model, tmp_path, **facts) != digest(model, tmp_path)


def test_a_copy_of_the_model_elsewhere_is_the_same(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    model.rename(copy)
    one = digest(copy, tmp_path)
    moved = copy.rename(model)
    facts = Facts(hidden_size=64, rope_theta=1e4, _name_or_path="b", transformers_version="9")
    assert digest(moved, tmp_path, model_config__hf_text_config=facts, cache__num_blocks=9) == one


def test_other_weights_under_the_same_name_make_another_namespace(model: Path, tmp_path: Path) -> None:
    before = digest(model, tmp_path)
    (model / "model.safetensors").write_bytes(b"WEIGHTS")
    assert digest(model, tmp_path) != before


def test_the_longest_prompt_matters_where_positions_depend_on_it(model: Path, tmp_path: Path) -> None:
    plain: dict[str, Any] = {"model_config__max_model_len": 4096}
    assert digest(model, tmp_path, **plain) == digest(model, tmp_path)
    long: dict[str, Any] = {"model_config__hf_text_config": Facts(rope_parameters={"rope_type": "longrope"})}
    assert digest(model, tmp_path, **plain, **long) != digest(model, tmp_path, **long)


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"parallel_config__decode_context_parallel_size": 2}, "decode_context_parallel_size"),
        ({"cache__kv_cache_groups": [1, 2]}, "model"),
        (
            {"cache_config__cache_dtype": "fp8", "cache_config__calculate_kv_scales": True},
            "calculate_kv_scales",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(
    model: Path, tmp_path: Path, facts: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        digest(model, tmp_path, **facts)
    assert refused.value.setting == named


def test_codes_are_not_compared_as_numbers(model: Path, tmp_path: Path) -> None:
    told, cache = configured(model, cache_config__cache_dtype="fp8")
    settings = AdapterSettings(mode="verify", cache_path=str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        engine_namespace(told, cache, settings, "0.32.0")
    assert refused.value.setting == "mode"


def test_weights_that_cannot_be_read_must_be_named(tmp_path: Path) -> None:
    folder = tmp_path / "gguf"
    folder.mkdir()
    told, cache = configured(folder)
    with pytest.raises(ConfigError) as refused:
        engine_namespace(told, cache, AdapterSettings(), "0.32.0")
    assert refused.value.setting == "weights"
    named = [AdapterSettings(weights=name) for name in ("mine v1", "mine v2")]
    one, other = (engine_namespace(told, cache, settings, "0.32.0") for settings in named)
    assert one.digest != other.digest


def test_a_salt_is_not_a_part_of_a_namespace_in_words(model: Path, tmp_path: Path) -> None:
    told, cache = configured(model)
    settings = AdapterSettings.parse({"cache_path": str(tmp_path / "cache")})
    scopes = Scopes(tmp_path / "digests")
    scope = scopes.of(request([1], cache_salt="a secret"))
    assert scope is not None
    namespace = of_scope(engine_namespace(told, cache, settings, "0.32.0"), scope, 0)
    assert "a secret" not in namespace.manifest()
    assert namespace.salt != ""


def test_a_new_generation_is_another_scope_for_all(tmp_path: Path) -> None:
    scopes = Scopes(tmp_path / "digests")
    before = [scopes.of(request([1])), scopes.of(request([1], cache_salt="a"))]
    scopes.generation = "anew"
    after = [scopes.of(request([1])), scopes.of(request([1], cache_salt="a"))]
    assert before[0] == Scope()
    assert len({*before, *after}) == 4
