import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine_adapter.engine.made_once import made_once


def write_answer(folder: Path) -> None:
    (folder / "answer").write_text("42")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_missing_folder_is_made_and_one_that_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    def refuse(_folder: Path) -> None:
        raise AssertionError("made twice")

    made = made_once(tmp_path / "deep" / "model", write_answer)
    assert (made / "answer").read_text() == "42"
    assert made_once(tmp_path / "deep" / "model", refuse) == made
    assert names_in(made.parent) == ["model", "model.lock"]


def test_nothing_is_left_when_making_fails(tmp_path: Path) -> None:
    def fail_half_way(folder: Path) -> None:
        write_answer(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        made_once(tmp_path / "model", fail_half_way)
    assert names_in(tmp_path) == ["model.lock"]


# Stands in for a conversion: it writes the first of two files and then takes its time.
KILLED_HALF_WAY = """
import sys, time
from pathlib import Path
from engine_adapter.engine.made_once import made_once

def make(folder):
    (folder / "first").write_text("half")
    print("half way", flush=True)
    time.sleep(60)

made_once(Path(sys.argv[1]), make)
"""


def test_a_killed_process_leaves_nothing_that_passes_for_a_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_HALF_WAY, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half way\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert not folder.exists()
    assert names_in(made_once(folder, write_answer)) == ["answer"]
    assert names_in(tmp_path) == ["model", "model.lock"]


def test_of_several_at_once_one_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        time.sleep(0.1)
        write_answer(folder)

    def want(_number: int) -> str:
        return (made_once(tmp_path / "model", make) / "answer").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(want, range(4))) == ["42"] * 4
    assert len(made) == 1
