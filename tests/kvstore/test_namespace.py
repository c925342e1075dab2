from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvstore.namespace import Namespace, canonical_json, differing_fields, salt_digest, tenant_digest

NAMESPACE = Namespace(
    weights="ab" * 16,
    model_config=canonical_json({"hidden_size": 64, "rope_parameters": {"rope_theta": 10000.0}}),
    compute_dtype="float32",
    kv_dtype="float32",
    block_tokens=16,
    label="tiny",
)


def test_the_digest_is_what_it_has_always_been() -> None:
    assert NAMESPACE.digest.hex() == "7def56d8a8fdc92d0174f46916ee09ce"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "cd" * 16),
        ("model_config", canonical_json({"hidden_size": 64, "rope_parameters": {"rope_theta": 20000.0}})),
        ("compute_dtype", "bfloat16"),
        ("kv_dtype", "bfloat16"),
        ("kv_form", "int8"),
        ("block_tokens", 32),
        ("layout", "kv,layer,token,head,dim"),
        ("lora", "ef" * 16),
        ("tp_rank", 1),
        ("tp_size", 2),
        ("salt", "12" * 16),
    ],
)
def test_everything_that_shapes_keys_and_values_is_part_of_the_identity(field: str, value: Any) -> None:
    other = replace(NAMESPACE, **{field: value})
    assert other.digest != NAMESPACE.digest


def test_the_label_is_not_part_of_the_identity() -> None:
    assert replace(NAMESPACE, label="renamed").digest == NAMESPACE.digest


def test_a_salt_and_a_lora_of_the_same_name_do_not_collide() -> None:
    assert replace(NAMESPACE, lora="alice").digest != replace(NAMESPACE, salt="alice").digest


def test_a_manifest_can_be_read_by_people_and_back() -> None:
    salted = NAMESPACE.with_salt("tenant secret")
    facts = json.loads(salted.manifest())
    assert facts["model_config"]["rope_parameters"] == {"rope_theta": 10000.0}
    assert facts["digest"] == salted.digest.hex()
    assert Namespace.from_manifest(salted.manifest()) == salted


def test_a_manifest_does_not_tell_the_salt() -> None:
    assert "tenant secret" not in NAMESPACE.with_salt("tenant secret").manifest()


def test_no_salt_is_the_namespace_itself() -> None:
    assert NAMESPACE.with_salt("") == NAMESPACE
    assert NAMESPACE.with_salt("a").digest != NAMESPACE.with_salt("b").digest


def test_an_altered_manifest_is_refused() -> None:
    with pytest.raises(ValueError, match="does not match its digest"):
        Namespace.from_manifest(NAMESPACE.manifest().replace("10000.0", "20000.0"))


def test_a_manifest_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="another version"):
        Namespace.from_manifest(
            NAMESPACE.manifest().replace('"manifest_version": 1', '"manifest_version": 2')
        )


def test_what_differs_is_named_field_by_field() -> None:
    config = canonical_json({"hidden_size": 64, "rope_parameters": {"rope_theta": 20000.0}, "bias": True})
    other = replace(NAMESPACE, model_config=config, kv_dtype="bfloat16", label="another")
    assert differing_fields(NAMESPACE, other) == [
        "model_config.bias", "model_config.rope_parameters.rope_theta", "kv_dtype"
    ]  # fmt: skip
    assert differing_fields(NAMESPACE, replace(NAMESPACE, label="another")) == []


@pytest.mark.parametrize(
    "text",
    ["", "7", "[]", "{}", "null", '{"manifest_version": 1}', "[" * 100_000, '"' + "x" * 1000 + '"'],
)
def test_what_is_no_manifest_is_refused_whatever_it_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"manifest|Expecting"):
        Namespace.from_manifest(text)


@pytest.mark.parametrize("change", [{"label": 7}, {"block_tokens": "16"}, {"tp_rank": True}, {"more": "x"}])
def test_a_manifest_with_a_field_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="another kind"):
        Namespace.from_manifest(json.dumps(json.loads(NAMESPACE.manifest()) | change))


def test_a_namespace_is_of_its_tenant_whatever_the_salt() -> None:
    plain, salted = NAMESPACE.with_salt("", "acme"), NAMESPACE.with_salt("s", "acme")
    assert plain.tenant == salted.tenant == tenant_digest("acme")
    assert plain.digest != salted.digest
    assert NAMESPACE.with_salt("s").tenant == salt_digest("s")
    assert NAMESPACE.tenant == ""
    assert NAMESPACE.with_salt("acme").tenant != tenant_digest("acme"), "a salt is nobody's name"


@pytest.mark.parametrize("salt", ["", "s"])
def test_what_a_client_describes_is_its_tenants_own(salt: str) -> None:
    described = NAMESPACE.with_salt(salt)
    own = described.owned_by("acme")
    assert own == NAMESPACE.with_salt(salt, "acme"), "the same as over the OpenAI API"
    assert own.owned_by("acme") == own


@pytest.mark.parametrize("salt", ["x", "a" * 64, tenant_digest("acme"), tenant_digest("acme") + "f" * 32])
def test_no_description_reaches_another_tenants_namespace(salt: str) -> None:
    own = replace(NAMESPACE, salt=salt).owned_by("zeno")
    assert own.tenant == tenant_digest("zeno")
    assert len(own.salt) == 64


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"label": "\ud800"}, "no text"),
        ({"salt": "\ud800"}, "no text"),
        ({"model_config": '{"a": "\\ud800"}'}, "no text"),
        ({"label": "x" * 5000}, "label is longer"),
        ({"block_tokens": 0}, "block_tokens is no number"),
        ({"block_tokens": 10**3000}, "block_tokens is no number"),
        ({"tp_size": 0}, "tp_size is no number"),
        ({"tp_rank": -1}, "tp_rank is no number"),
        ({"model_config": "[" * 400 + "]" * 400}, "nested too deeply"),
    ],
)
def test_a_manifest_that_could_not_be_told_on_is_refused(odd: dict[str, Any], reason: str) -> None:
    manifest = replace(NAMESPACE, **odd).manifest()
    with pytest.raises(ValueError, match=reason):
        Namespace.from_manifest(manifest)
