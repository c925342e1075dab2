from __future__ import annotations

from random import Random

import pytest

from policies.contention import Contention


def learnt(
    byte_s: float, *, noise: float = 0.0, bytes_per_s: float = 1e8, known_s: float = 0.0
) -> Contention:
    """Return what is learnt of 200 steps while loads flow: those that are slower receive more of them."""
    random, contention, bytes_per_s = Random(4), Contention(known_s), 1e8
    for _ in range(200):
        alone_s = random.uniform(0.05, 0.8)
        took_s = alone_s / (1 - byte_s * bytes_per_s) * random.uniform(1 - noise, 1 + noise)
        contention.learn(took_s, alone_s, round(took_s * bytes_per_s))
    return contention


def test_before_anything_is_known_loading_is_free_or_costs_what_it_did() -> None:
    assert Contention().byte_s == 0
    assert Contention(3e-9).byte_s == 3e-9


@pytest.mark.parametrize("byte_s", [0.0, 1e-9, 4e-9])
def test_what_a_byte_takes_is_recovered(byte_s: float) -> None:
    assert learnt(byte_s).byte_s == pytest.approx(byte_s, abs=1e-12)


def test_noise_alone_is_not_taken_for_contention() -> None:
    # At this rate it would have to be 1e-8 to stop computing.
    assert learnt(0.0, noise=0.2).byte_s < 1e-9


def test_what_was_known_is_forgotten_when_it_is_no_longer_so() -> None:
    assert learnt(1e-9, known_s=1e-6).byte_s == pytest.approx(1e-9)


def test_a_machine_that_stands_still_once_changes_nothing() -> None:
    contention = learnt(1e-9)
    contention.learn(1000.0, 0.5, 10**7)
    assert contention.byte_s == pytest.approx(1e-9)


def test_a_few_bytes_do_not_make_a_step_one_beside_loads() -> None:
    assert not Contention.is_beside_loads(2**20 - 1)
    assert Contention.is_beside_loads(2**20)
