"""Whoever learns from the traffic hears of it behind a queue that holds nobody up."""

from __future__ import annotations

import threading

from kvstore.served import ServedPrompt, ServedQueue
from tests.eventually import eventually


def prompt(number: int) -> ServedPrompt:
    return ServedPrompt(at_ms=number, block_tokens=4, keys=(b"a",), input_tokens=4)


def test_all_that_waits_is_handled_in_order_before_it_closes() -> None:
    heard: list[int] = []
    queue = ServedQueue("test", lambda served: heard.append(served.at_ms))
    for number in range(100):
        queue(prompt(number))
    assert queue.close()
    assert heard == list(range(100))
    queue(prompt(100))
    assert (heard[-1], queue.num_dropped) == (99, 1)
    assert queue.close()


def test_what_comes_faster_than_it_is_handled_is_dropped_and_counted() -> None:
    go_on = threading.Event()
    heard: list[int] = []

    def handle(served: ServedPrompt) -> None:
        assert go_on.wait(10)
        heard.append(served.at_ms)

    queue = ServedQueue("test", handle, most_waiting=3)
    queue(prompt(0))
    eventually(queue._inbox.empty)
    for number in range(1, 10):
        queue(prompt(number))
    assert queue.num_dropped == 6
    go_on.set()
    assert queue.close()
    assert heard == [0, 1, 2, 3]


def test_a_handler_that_does_not_come_to_an_end_holds_nobody_up() -> None:
    go_on = threading.Event()

    def handle(_: ServedPrompt) -> None:
        go_on.wait(10)

    queue = ServedQueue("test", handle)
    queue(prompt(0))
    assert not queue.close(timeout_s=0.05)
    go_on.set()
    assert queue.close()


def test_what_a_handler_raises_costs_the_others_nothing() -> None:
    heard: list[int] = []
    num_idle = 0

    def handle(served: ServedPrompt) -> None:
        if served.at_ms % 2:
            raise ValueError("odd")
        heard.append(served.at_ms)

    def when_idle() -> None:
        nonlocal num_idle
        num_idle += 1

    queue = ServedQueue("test", handle, when_idle)
    for number in range(4):
        queue(prompt(number))
    eventually(lambda: num_idle > 0)
    assert queue.close()
    assert (heard, queue.num_failed) == ([0, 2], 2)
