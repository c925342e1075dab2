"""Whoever rewrites a file's header has it for himself; others' files are not waited for."""

from __future__ import annotations

from threading import Event, Thread

from backends.disk_turns import Turns


def test_who_rewrites_waits_for_readers_of_that_file_alone() -> None:
    turns, is_rewriting = Turns(), Event()

    def rewrite() -> None:
        with turns.rewriting(b"a"):
            is_rewriting.set()

    thread = Thread(target=rewrite)
    with turns.reading(b"a"):
        with turns.rewriting(b"b"):
            thread.start()
        assert not is_rewriting.wait(0.1)
    assert is_rewriting.wait(10.0)
    thread.join()
