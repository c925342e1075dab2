"""Answers of a model that knows nothing, held to what they must look like."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from random import Random
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedTokenizerFast

from engine_adapter.engine import constraints as constraints_module
from engine_adapter.engine.constraints import (
    MAX_CONSTRAINT_CHARACTERS,
    Constraint,
    Constraints,
    held_to,
)
from engine_adapter.engine.request import Request, Sampling
from kvstore.errors import RequestError
from tests.engine_adapter.rig import EOS, VOCAB_SIZE, CleanIds, Events, MakeRig, Rig, greedy, prompt_of

DATE = r"\d{4}-[01]\d-[0-3]\d"


class Person(BaseModel):
    """What a schema asks for, and what an answer must be."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=12)]
    age: Annotated[int, Field(ge=0, le=150)]
    tags: Annotated[list[Literal["red", "green", "blue"]], Field(max_length=3)]
    parent: Person | None


def held(rig: Rig, constraint: Constraint, prompt: list[int] | None = None, **options: Any) -> Request:
    wanted = {"temperature": 1.0, "seed": 7, "max_tokens": 400, **options}
    return Request(prompt or prompt_of(20, 1), Sampling(**wanted), constraint=constraint)


@pytest.fixture(scope="module")
def constraints(tiny_tokenizer: PreTrainedTokenizerFast) -> Constraints:
    return Constraints(tiny_tokenizer, VOCAB_SIZE, {EOS})


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_answers_under_a_schema_are_valid_and_end(make_rig: MakeRig, temperature: float) -> None:
    rig = make_rig(num_blocks=256)
    schema = Person.model_json_schema()
    constraint = rig.engine.constraints.json_schema(schema)

    request = held(rig, constraint, temperature=temperature, n=4, max_tokens=1800)
    answers = rig.engine.generate_all(request)

    assert [answer.reason for answer in answers] == ["stop"] * 4
    assert all(Person.model_validate_json(answer.text) for answer in answers)
    assert len({answer.text for answer in answers}) == (4 if temperature else 1)
    assert EOS not in {token for answer in answers for token in answer.token_ids}


def test_prices_are_multiples_of_a_cent(make_rig: MakeRig) -> None:
    rig, price = make_rig(), {"type": "number", "multipleOf": 0.05, "minimum": 0, "exclusiveMaximum": 9}
    schema = {"type": "array", "items": price, "minItems": 3, "maxItems": 3}
    answer = rig.engine.generate(held(rig, rig.engine.constraints.json_schema(schema)))

    assert answer.reason == "stop"
    assert all(0 <= one < 9 and round(one * 100) % 5 == 0 for one in json.loads(answer.text))


def test_an_answer_is_any_json_object(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=256)
    request = held(rig, rig.engine.constraints.json_schema(), n=8, max_tokens=200)
    ended = [answer.text for answer in rig.engine.generate_all(request) if answer.reason == "stop"]

    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


@pytest.mark.parametrize("pattern", [DATE, "a{3,40}", "(yes|no)( indeed)?", "[^a]b|é", "^x.z$"])
def test_all_of_an_answer_matches_a_regex(make_rig: MakeRig, pattern: str) -> None:
    rig = make_rig()
    answers = rig.engine.generate_all(held(rig, rig.engine.constraints.regex(pattern), n=4))

    assert {answer.reason for answer in answers} == {"stop"}
    assert all(re.fullmatch(pattern, answer.text) for answer in answers)


def test_an_answer_is_one_of_the_choices(make_rig: MakeRig) -> None:
    rig, choices = make_rig(), ["yes", "no", 'quoted "maybe"\n', "¿qué?", "a|b", "yes indeed"]
    answers = rig.engine.generate_all(
        held(rig, rig.engine.constraints.choice(choices), n=12, temperature=9.0)
    )

    assert {answer.text for answer in answers} <= set(choices)
    assert len({answer.text for answer in answers}) > 1


def test_each_of_several_answers_has_come_as_far_as_it_has(make_rig: MakeRig) -> None:
    rig = make_rig()
    constraint = rig.engine.constraints.regex("([a-z]{5}[0-9]{5})+")
    together = rig.engine.generate_all(held(rig, constraint, n=4, max_tokens=60))
    singles = [
        rig.engine.generate(held(rig, constraint, seed=7 + index, max_tokens=60)) for index in range(4)
    ]

    assert [answer.text for answer in together] == [answer.text for answer in singles]
    assert len({answer.text for answer in together}) == 4


def test_preempted_answers_go_on_where_they_were(make_rig: MakeRig) -> None:
    roomy, tight = make_rig(num_blocks=96), make_rig(num_blocks=16, max_sequences=6)
    pattern = "([a-z]{5}[0-9]{5}){5}"
    expected, answers = (
        rig.engine.generate_all(held(rig, rig.engine.constraints.regex(pattern), n=6))
        for rig in (roomy, tight)
    )

    assert tight.engine.statistics().num_preempted > 0 == roomy.engine.statistics().num_preempted
    assert [answer.text for answer in answers] == [answer.text for answer in expected]
    assert all(re.fullmatch(pattern, answer.text) for answer in answers)


def test_others_in_the_same_steps_answer_as_ever(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, events = make_rig(), Events()
    rig.engine.submit(held(rig, rig.engine.constraints.regex("[ab]{150}")), events)
    events.wait_for_tokens(1)
    prompts = [prompt_of(length, length) for length in (5, 30, 50)]

    answers = rig.generate_together([greedy(prompt, 20) for prompt in prompts])

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 20) for prompt in prompts]
    assert events.finished().reason == "stop"


def test_a_cached_prefix_serves_whatever_the_answer_is_held_to(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    rig.engine.generate(greedy(prompt))
    rig.forget_device()
    first = rig.engine.generate(held(rig, rig.engine.constraints.regex("[ab]{30}"), prompt))
    again = rig.engine.generate(greedy([*prompt, *first.token_ids]))

    assert first.usage.tokens_by_source == {"computed": 2, "host": 48}
    assert again.usage.tokens_by_source == {"computed": 8, "device": 72}


def test_an_answer_that_is_cut_is_the_beginning_of_one(make_rig: MakeRig) -> None:
    rig = make_rig()
    cut = rig.engine.generate(held(rig, rig.engine.constraints.regex("b{9}ac{9}"), max_tokens=5))
    stopped = rig.engine.generate(held(rig, rig.engine.constraints.regex("b{9}ac{9}"), stop=("ac",)))
    whole = rig.engine.generate(held(rig, rig.engine.constraints.regex("b{5}"), max_tokens=5))

    assert (cut.text, cut.reason) == ("bbbbb", "length")
    assert (stopped.text, stopped.reason) == ("b" * 9, "stop")
    assert (whole.text, whole.reason) == ("bbbbb", "stop")


def test_logprobs_are_the_models_own(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(), prompt_of(20, 1)
    answer = rig.engine.generate(held(rig, rig.engine.constraints.choice(["maybe"]), prompt, logprobs=3))
    whole = Request([*prompt, *answer.token_ids], Sampling(max_tokens=1, prompt_logprobs=3))
    told = rig.engine.generate(whole).prompt_logprobs

    assert told is not None
    for held_one, free_one in zip(answer.logprobs, told[len(prompt) :], strict=True):
        assert free_one is not None
        assert held_one.logprob == pytest.approx(free_one.logprob, abs=1e-4)
        assert held_one.rank == free_one.rank
    assert max(one.rank for one in answer.logprobs) > 1


def test_what_grows_too_complex_ends_that_answer_alone(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(), prompt_of(30, 2)
    inner = {"enum": [{"a": number} for number in range(3000)]}
    outer = {"type": "object", "properties": {"b": inner}, "required": ["b"], "additionalProperties": False}
    explodes = rig.engine.constraints.json_schema(outer)
    bad, good = rig.generate_together([held(rig, explodes, max_tokens=900), greedy(prompt, 40)])

    assert good.token_ids == clean_ids(prompt, 40)
    assert bad.reason == "error"
    assert "constraint: Parser Error: Current row has 3001 items" in str(bad.error)


@pytest.mark.parametrize(
    ("compile_", "reason"),
    [
        (lambda to: to.regex("(a"), "unclosed group"),
        (
            lambda to: to.regex("(?=a)b"),
            "look-around, including look-ahead and look-behind, is not supported",
        ),
        (lambda to: to.regex(r"(a)\1"), "backreferences are not supported"),
        (lambda to: to.regex(r"\bfoo"), "lookarounds not supported yet"),
        (lambda to: to.regex("(" * 9000 + ")" * 9000), "maximum number of nested"),
        (
            lambda to: to.json_schema(all_at_once("(.*a.{200})", "(.*b.{199})", "(.*c.{198})")),
            "fuel exhausted",
        ),
        (lambda to: to.regex(r"[^\s\S]"), "NoExtension"),
        (
            lambda to: to.regex("a" * (MAX_CONSTRAINT_CHARACTERS + 1)),
            "has 65537 characters; 65536 are the most",
        ),
        (lambda to: to.json_schema({"type": "nope"}), "Invalid type: nope"),
        (lambda to: to.json_schema({"type": 3}), "type"),
        (lambda to: to.json_schema({"if": {}}), "Unimplemented keys"),
        (lambda to: to.json_schema({"$ref": "http://example.com/x"}), "does not fetch resources"),
        (lambda to: to.json_schema({"type": "integer", "minimum": 2, "maximum": 1}), "Unsatisfiable schema"),
        (lambda to: to.json_schema({"const": float("nan")}), "not JSON compliant"),
        (lambda to: to.json_schema(multiples(7, 11, 13, 17, 19)), "multipleOf"),
        (lambda to: to.json_schema(multiples(0.1234567)), "multipleOf"),
        (lambda to: to.json_schema(nested(200)), "recursion limit exceeded"),
        (lambda to: to.json_schema(nested(9000)), "recursion|65536"),
        (lambda to: to.regex("(a?){500}a{500}"), "too many expressions constructed"),
        (lambda to: to.choice([f"choice {number}" for number in range(3000)]), "max is 2000"),
        (lambda to: to.json_schema({"enum": [{"a": number} for number in range(3000)]}), "max is 2000"),
        (lambda to: to.choice([]), "at least one choice"),
        (lambda to: to.choice(["a", ""]), "none that is empty"),
    ],
)
def test_what_nothing_can_be_held_to_is_refused(
    constraints: Constraints, compile_: Callable[[Constraints], Constraint], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        compile_(constraints)
    assert refused.value.param == "constraint"
    assert len(refused.value.reason) <= 300


def all_at_once(*patterns: str) -> dict[str, Any]:
    return {"allOf": [{"type": "string", "pattern": f"^{pattern}$"} for pattern in patterns]}


def multiples(*steps: float) -> dict[str, Any]:
    return {"anyOf": [{"type": "number", "multipleOf": step} for step in steps]}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_a_constraint_belongs_to_its_engine_and_says_where_to_end(make_rig: MakeRig) -> None:
    rig, other = make_rig(), make_rig()
    with pytest.raises(RequestError, match="constraint: was compiled for another engine"):
        other.engine.submit(held(rig, rig.engine.constraints.regex("a")), Events())
    with pytest.raises(RequestError, match="ignore_eos: a constrained answer ends where it must"):
        held(rig, rig.engine.constraints.regex("a"), ignore_eos=True)


def test_without_the_library_the_error_says_what_to_install(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=re.escape("pip install 'prefixd[constrained]'")):
        constraints.regex("a")


def test_without_a_token_that_ends_it_no_answer_is_held_to_anything(
    tiny_tokenizer: PreTrainedTokenizerFast,
) -> None:
    with pytest.raises(RequestError, match="no token that ends an answer"):
        Constraints(tiny_tokenizer, VOCAB_SIZE, ()).regex("a")


def test_logits_are_masked_in_a_copy_and_where_there_are_matchers_alone(
    tiny_tokenizer: PreTrainedTokenizerFast,
) -> None:
    logits = torch.randn(2, VOCAB_SIZE + 30)
    assert held_to([None, None], logits) is logits

    wider = Constraints(tiny_tokenizer, VOCAB_SIZE + 30, {EOS - 1, EOS, EOS + 10})
    masked = held_to([None, wider.regex("a*").begin()], logits)

    assert masked.isfinite()[0].all()
    letter = tiny_tokenizer.convert_tokens_to_ids("a")
    assert masked[1].isfinite().nonzero().flatten().tolist() == [letter, EOS - 1, EOS]
    assert logits.isfinite().all()


def test_whitespace_comes_to_an_end(
    constraints: Constraints, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    matcher = constraints.json_schema().begin()
    brace, *spaces = tiny_tokenizer.encode("{" + " " * 40)
    for token in (brace, *spaces):
        assert not matcher.forbidden(VOCAB_SIZE)[token]
        matcher.accept(token)
    assert matcher.forbidden(VOCAB_SIZE)[spaces[0]]


def test_one_answer_takes_no_more_memory_than_so_many_states(
    constraints: Constraints, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints_module, "_MAX_LEXER_STATES", 500)
    matcher = constraints.regex("[ab]*a[ab]{30}").begin()

    def go_on() -> None:
        for token in Random(1).choices(tiny_tokenizer.encode("ab"), k=2000):
            matcher.forbidden(VOCAB_SIZE)
            matcher.accept(token)

    with pytest.raises(RequestError, match="too many states: 500"):
        go_on()
