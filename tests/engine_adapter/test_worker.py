from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from engine_adapter.engine.worker import Worker
from kvstore.errors import EngineClosedError

TIMEOUT_S = 10


class Turns:
    """Does nothing in its turns, or raises; remembers how it ended."""

    def __init__(self, error: BaseException | None = None, idle_s: float | None = None) -> None:
        self.error = error
        self.ended = Event()
        self.failure = ""
        self._idle_s = idle_s

    def turn(self) -> bool:
        if self.error is not None:
            raise self.error
        return False

    def idle_s(self) -> float | None:
        return self._idle_s

    def end(self, failure: str) -> None:
        self.failure = failure
        self.ended.set()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test")
    yield made
    assert made.close(TIMEOUT_S)


def fail() -> None:
    raise ValueError("on purpose")


def test_what_is_called_is_done_on_the_thread_and_what_it_raises_is_raised(worker: Worker) -> None:
    worker.start(Turns())
    done: list[str] = []
    worker.call(lambda: done.append("once"))
    worker.call(lambda: worker.call(lambda: done.append("within")))
    assert done == ["once", "within"]
    with pytest.raises(ValueError, match="on purpose"):
        worker.call(fail)
    with pytest.raises(SystemExit):
        worker.call(lambda: exit(1))  # noqa: PLR1722 - as a caller's code may
    assert worker.trouble == ""


def test_before_the_start_and_after_the_end_nothing_is_taken(worker: Worker) -> None:
    with pytest.raises(EngineClosedError, match="not begun"):
        worker.call(fail)
    turns = Turns()
    worker.start(turns)
    assert worker.close(TIMEOUT_S)
    assert worker.close(TIMEOUT_S)
    assert turns.ended.is_set()
    assert turns.failure == ""
    with pytest.raises(EngineClosedError, match="it is closed"):
        worker.send(fail)


@pytest.mark.parametrize("error", [RuntimeError("a fault"), SystemExit("a fault")])
def test_a_turn_that_breaks_ends_all_and_says_why(worker: Worker, error: BaseException) -> None:
    turns = Turns(error)
    worker.start(turns)
    assert turns.ended.wait(TIMEOUT_S)
    assert "a fault" in turns.failure
    assert "a fault" in worker.trouble
    with pytest.raises(EngineClosedError, match="a fault"):
        worker.send(fail)


def test_what_was_sent_before_the_end_is_done_whatever_the_messages_before_it_raise(worker: Worker) -> None:
    turns, is_sent, done = Turns(), Event(), Event()
    worker.start(turns)
    worker.send(lambda: is_sent.wait(TIMEOUT_S))
    for message in (fail, fail, fail, done.set):
        worker.send(message)
    is_sent.set()
    assert turns.ended.wait(TIMEOUT_S)
    assert done.is_set()
    assert "on purpose" in turns.failure


def test_it_can_be_closed_from_its_own_thread(worker: Worker) -> None:
    turns, answers = Turns(), list[bool]()
    worker.start(turns)
    worker.call(lambda: answers.append(worker.close(TIMEOUT_S)))
    assert answers == [False]
    assert turns.ended.wait(TIMEOUT_S)


def test_a_wait_may_be_of_any_length(worker: Worker) -> None:
    worker.start(Turns(idle_s=1e300))
    worker.call(lambda: None)
    assert worker.trouble == ""
