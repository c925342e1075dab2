"""What is remembered of served prompts: bounded, shared fairly among tenants, never shown."""

from __future__ import annotations

from random import Random

from engine_adapter.engine.remembering import PromptMemory, Remembered
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace

NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)
ONE_BYTES = 5_000


def add(memory: PromptMemory, start: int, num_tokens: int = 1008, tenant: str = "") -> None:
    space, tokens = NAMESPACE.with_salt(tenant), range(start, start + num_tokens)
    memory.add(space, None, tokens, chain_keys(space.digest, tokens, 16))


def starts(memory: PromptMemory) -> set[int]:
    return {prompt.tokens[0] for prompt in memory.sample(1000)}


def test_the_latest_are_kept_in_the_bytes_there_are() -> None:
    memory = PromptMemory(4 * ONE_BYTES + 3_000)
    for start in range(10):
        add(memory, start * 10_000)
        assert memory.nbytes <= 4 * ONE_BYTES + 3_000
    assert starts(memory) == {60_000, 70_000, 80_000, 90_000}
    assert memory.nbytes == sum(prompt.nbytes for prompt in memory.sample(10))
    assert all(ONE_BYTES <= prompt.nbytes < ONE_BYTES + 1_000 for prompt in memory.sample(10))


def test_the_tenant_with_the_most_makes_room() -> None:
    memory = PromptMemory(4 * ONE_BYTES + 3_000)
    add(memory, 7, tenant="quiet")
    for start in range(20):
        add(memory, 1_000_000 + start * 10_000, tenant="loud")
    assert memory.num_prompts == 4
    assert 7 in starts(memory)


def test_a_prompt_that_goes_on_takes_the_place_of_its_beginning() -> None:
    memory = PromptMemory(100_000)
    add(memory, 0, 160)
    add(memory, 0, 320)
    add(memory, 0, 320)
    assert [len(prompt.tokens) for prompt in memory.sample(9)] == [320]
    prompt = memory.sample(1)[0]
    assert prompt.keys == chain_keys(NAMESPACE.digest, range(320), 16)
    assert prompt in memory


def test_one_that_would_take_half_of_all_is_not_remembered() -> None:
    memory = PromptMemory(2 * ONE_BYTES)
    add(memory, 0)
    assert memory.num_prompts == memory.nbytes == 0


def test_all_are_looked_at_in_turn() -> None:
    memory = PromptMemory(100_000)
    for start in range(10):
        add(memory, start * 10_000)
    seen: list[int] = []

    def is_gone(prompt: Remembered) -> bool:
        seen.append(prompt.tokens[0])
        return False

    for _ in range(5):
        memory.forget_some(2, is_gone)
    assert sorted(seen) == [start * 10_000 for start in range(10)]


def test_many_that_are_gone_are_forgotten_at_once() -> None:
    memory = PromptMemory(100_000)
    for start in range(10):
        add(memory, start * 10_000)
    memory.forget_some(2, lambda prompt: prompt.tokens[0] >= 20_000)
    assert starts(memory) == {0, 10_000}
    memory.forget_some(2, lambda _: True)
    memory.forget_some(2, lambda _: True)
    assert memory.num_prompts == memory.nbytes == 0


def test_samples_are_drawn_fairly() -> None:
    memory = PromptMemory(100_000, Random(1))
    for start in range(10):
        add(memory, start * 10_000)
    drawn = [prompt.tokens[0] for _ in range(1000) for prompt in memory.sample(1)]
    assert all(50 < drawn.count(start * 10_000) < 150 for start in range(10))


def test_neither_tokens_nor_keys_are_shown() -> None:
    memory = PromptMemory(100_000)
    add(memory, 4_000_000, tenant="a secret")
    prompt = memory.sample(1)[0]
    assert "4000000" not in repr(prompt)
    assert repr(prompt.last_key)[2:-1] not in repr(prompt)
    assert "secret" not in repr(prompt)
