"""Whatever is asked for, what is drawn under it fits; or it was refused."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine_adapter.engine.constraints import Constraints, Matcher
from kvstore.errors import RequestError
from tests.engine_adapter.rig import EOS, VOCAB_SIZE

REGEXES = st.recursive(
    st.sampled_from(["a", "b", "é", "[0-9]", "[^a]", ".", r"\.", "[x-z]", "€"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["?", "{2,3}", "{4}", "*"])).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=8,
)

SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "integer", "minimum": -9, "maximum": 120},
            {"type": "string", "maxLength": 4},
            {"enum": ["a", 1, None, "é€"]},
        ]
    ),
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 3}),
        st.dictionaries(st.sampled_from(["x", "y", 'a"b']), inner, min_size=1).map(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": list(fields)[:1],
                "additionalProperties": False,
            }
        ),
        st.tuples(inner, inner).map(lambda two: {"anyOf": list(two)}),
    ),
    max_leaves=6,
)
KEYWORDS = [
    *("type", "items", "properties", "anyOf", "allOf", "oneOf", "const", "enum", "minLength", "maxLength"),
    *(
        "pattern",
        "minimum",
        "multipleOf",
        "required",
        "additionalProperties",
        "patternProperties",
        "minItems",
    ),
    *("$ref", "$defs", "format", "x-guidance"),
]
JSON = st.recursive(
    st.sampled_from(
        ["string", "integer", "object", "a.*b.{9}", "#/items", "email", 0, -5, 0.7, 10**20, True, None]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def constraints(tiny_tokenizer: PreTrainedTokenizerFast) -> Constraints:
    return Constraints(tiny_tokenizer, VOCAB_SIZE, {EOS})


@settings(deadline=None, max_examples=60)
@given(REGEXES, st.integers(0, 99))
def test_whatever_is_drawn_matches(
    tiny_tokenizer: PreTrainedTokenizerFast, constraints: Constraints, pattern: str, seed: int
) -> None:
    assert re.fullmatch(pattern, walk(tiny_tokenizer, constraints.regex(pattern).begin(), Random(seed)))


@settings(deadline=None, max_examples=60)
@given(SCHEMAS, st.integers(0, 99))
def test_whatever_is_drawn_is_what_the_schema_says(
    tiny_tokenizer: PreTrainedTokenizerFast, constraints: Constraints, schema: dict[str, Any], seed: int
) -> None:
    text = walk(tiny_tokenizer, constraints.json_schema(schema).begin(), Random(seed))
    assert fits(json.loads(text), schema), text


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), JSON, max_size=4))
def test_any_json_is_a_schema_or_refused(
    tiny_tokenizer: PreTrainedTokenizerFast, constraints: Constraints, schema: dict[str, Any]
) -> None:
    with suppress(RequestError):
        walk(tiny_tokenizer, constraints.json_schema(schema).begin(), Random(1), most=9)


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_regex_or_refused(
    tiny_tokenizer: PreTrainedTokenizerFast, constraints: Constraints, pattern: str
) -> None:
    with suppress(RequestError):
        walk(tiny_tokenizer, constraints.regex(pattern).begin(), Random(1), most=9)


def walk(
    tokenizer: PreTrainedTokenizerFast,
    matcher: Matcher,
    random: Random,
    most: int = 10_000,
) -> str:
    """Draw allowed tokens until the end comes by chance or because nothing else fits, ``most`` of them."""
    tokens: list[int] = []
    while not matcher.is_complete and len(tokens) < most:
        allowed = (~matcher.forbidden(VOCAB_SIZE)).nonzero().flatten().tolist()
        token = EOS if EOS in allowed and len(tokens) > 40 else random.choice(allowed)
        matcher.accept(token)
        if token == EOS:
            break
        tokens.append(token)
    return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Say whether ``value`` is what one of the schemas above asks for."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if isinstance(value, list):
        return "items" in schema and 1 <= len(value) <= 3 and all(fits(one, schema["items"]) for one in value)
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        is_known = "required" in schema and set(schema["required"]) <= set(value) <= set(fields)
        return is_known and all(fits(one, fields[name]) for name, one in value.items())
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
    is_small = len(value) <= 4 if isinstance(value, str) else -9 <= (value or 0) <= 120
    return kinds[type(value)] == schema["type"] and is_small
