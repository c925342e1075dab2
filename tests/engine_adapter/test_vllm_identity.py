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


class FullAttentionSpec(SimpleNamespace):
    """By name what vLLM has for layers that keep all tokens."""


class RSWASpec(FullAttentionSpec):
    """By name what vLLM has for layers that drop tokens behind the prompt."""


def group(spec: Any) -> Any:
    return SimpleNamespace(layer_names=["a", "b"], kv_cache_spec=spec)


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
        attention_config="default", load_config=SimpleNamespace(load_format="auto"),
        kv_transfer_config=SimpleNamespace(kv_role="kv_both"),
    )  # fmt: skip
    cache = SimpleNamespace(
        kv_cache_groups=[group(FullAttentionSpec(heads=2))], kv_cache_layout="LBHNC", num_blocks=7
    )
    for path, value in facts.items():
        *names, last = path.split("__")
        owner: Any = told
        for name in names:
            owner = cache if name == "cache" else getattr(owner, name)
        setattr(owner, last, value)
    return told, cache


def of_layers(*specs: Any) -> Any:
    """Return a group of layers that differ in size."""
    return group(SimpleNamespace(kv_cache_specs={str(number): spec for number, spec in enumerate(specs)}))


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
        {"cache__kv_cache_groups": [group(FullAttentionSpec(heads=4))]},
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
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill_context_parallel_size"),
        ({"kv_transfer_config__kv_role": "kv_producer"}, "kv_role"),
        ({"kv_transfer_config__kv_role": "kv_consumer"}, "kv_role"),
        ({"load_config__load_format": "dummy"}, "weights"),
        ({"cache__kv_cache_groups": [1, 2]}, "model"),
        ({"cache__kv_cache_groups": [group(SimpleNamespace(sliding_window=64))]}, "model"),
        ({"cache__kv_cache_groups": [group(RSWASpec())]}, "model"),
        ({"cache__kv_cache_groups": [of_layers(FullAttentionSpec(), SimpleNamespace())]}, "model"),
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


def test_layers_may_differ_in_size(model: Path, tmp_path: Path) -> None:
    groups = [of_layers(FullAttentionSpec(heads=2), FullAttentionSpec(heads=4))]
    assert digest(model, tmp_path, cache__kv_cache_groups=groups) != digest(model, tmp_path)


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8_per_token_head", "nvfp4"])
def test_codes_are_not_compared_as_numbers(model: Path, tmp_path: Path, kv_dtype: str) -> None:
    told, cache = configured(model, cache_config__cache_dtype=kv_dtype)
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


def lora(folder: Path, **facts: Any) -> Any:
    return request(
        [1], lora_request=SimpleNamespace(lora_name="a", lora_int_id=1, lora_path=str(folder), **facts)
    )


def adapter(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text("{}")
    return folder


def test_an_adapter_that_was_changed_in_place_is_another_once_the_engine_has_loaded_it(
    tmp_path: Path,
) -> None:
    """Until then, and where it is not told to, nobody knows which of them it computes with."""
    scopes, folder = Scopes(tmp_path / "digests"), adapter(tmp_path / "adapter", b"one")
    one = scopes.of(lora(folder))
    adapter(folder, b"another")
    assert scopes.of(lora(folder)) is None
    other = scopes.of(lora(folder, load_inplace=True))
    assert scopes.of(lora(folder)) == other
    assert len({one, other, None}) == 3

    adapter(folder, b"another")
    assert scopes.of(lora(folder)) == other
    adapter(folder, b"one")
    assert scopes.of(lora(folder, load_inplace=True)) == one
