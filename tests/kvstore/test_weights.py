from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from unittest import mock

import pytest

from kvstore import weights
from kvstore.errors import ConfigError
from kvstore.weights import weights_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"a" * 1000)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"b" * 2000)
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "weights.json"


def never_reads() -> mock._patch[mock.MagicMock]:
    return mock.patch.object(weights, "_content_digest", side_effect=AssertionError("the weights were read"))


def test_the_digest_stays_the_same_from_release_to_release(model: Path) -> None:
    assert weights_digest(model) == "217b169d05c04c2cda6185f8e29e148a"


def test_equal_weights_elsewhere_have_an_equal_digest(model: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    digest = weights_digest(model)
    model.rename(moved)
    (moved / "config.json").write_text('{"other": "configuration"}')
    (moved / "README.md").write_text("hello")
    assert weights_digest(moved) == digest


@pytest.mark.parametrize("change", ["byte", "length", "name", "one more", "index", "swapped"])
def test_any_change_of_the_weights_changes_the_digest(model: Path, change: str) -> None:
    before = weights_digest(model)
    first, second = sorted(model.glob("*.safetensors"))
    if change == "byte":
        first.write_bytes(b"a" * 999 + b"A")
    elif change == "length":
        os.truncate(second, 1999)
    elif change == "name":
        first.rename(model / "model.safetensors")
    elif change == "one more":
        (model / "model-00003.safetensors").write_bytes(b"")
    elif change == "index":
        (model / "model.safetensors.index.json").write_text('{"metadata": {}}')
    else:
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    assert weights_digest(model) != before


def test_the_second_time_no_weights_are_read(model: Path, memory: Path) -> None:
    digest = weights_digest(model, memory)
    with never_reads():
        assert weights_digest(model, memory) == digest


def test_a_link_to_the_folder_reads_no_weights_either(model: Path, memory: Path, tmp_path: Path) -> None:
    digest = weights_digest(model, memory)
    (tmp_path / "link").symlink_to(model)
    with never_reads():
        assert weights_digest(tmp_path / "link", memory) == digest


def test_weights_changed_in_place_are_read_again_though_size_and_mtime_are_equal(
    model: Path, memory: Path
) -> None:
    before = weights_digest(model, memory)
    file = model / "model-00001-of-00002.safetensors"
    facts = file.stat()
    file.write_bytes(b"z" * 1000)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert weights_digest(model, memory) != before


def test_several_models_are_remembered_side_by_side(model: Path, memory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"c")
    digests = [weights_digest(folder, memory) for folder in (model, other)]
    with never_reads():
        assert [weights_digest(folder, memory) for folder in (model, other)] == digests


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"version": 1}', '{"version": 2, "digests": {}}', '{"version": 1, "digests": 3}', "\0"],
)
def test_a_broken_memory_is_ignored_and_mended(model: Path, memory: Path, content: str) -> None:
    memory.parent.mkdir()
    memory.write_text(content)
    digest = weights_digest(model, memory)
    assert digest == weights_digest(model)
    with never_reads():
        assert weights_digest(model, memory) == digest


def test_a_remembered_value_that_is_no_digest_is_not_believed(model: Path, memory: Path) -> None:
    digest = weights_digest(model, memory)
    facts = json.loads(memory.read_text())
    facts["digests"] = dict.fromkeys(facts["digests"], "../../etc")
    memory.write_text(json.dumps(facts))
    assert weights_digest(model, memory) == digest


def test_a_memory_that_cannot_be_written_costs_only_time_and_is_told(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert weights_digest(model, tmp_path / "file" / "weights.json") == weights_digest(model)
    (line,) = caplog.messages
    assert line.startswith(f"the digest of the weights cannot be kept in {tmp_path / 'file'}: ")


def test_writing_at_the_same_time_never_breaks_the_memory(model: Path, memory: Path) -> None:
    threads = [threading.Thread(target=weights_digest, args=(model, memory)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in memory.parent.iterdir()] == ["weights.json"]
    with never_reads():
        weights_digest(model, memory)


def test_weights_that_change_while_they_are_read_are_refused(model: Path) -> None:
    real = weights._content_digest

    def rewrites(file: Path) -> bytes:
        file.write_bytes(b"changed")
        return real(file)

    with (
        mock.patch.object(weights, "_content_digest", rewrites),
        pytest.raises(ConfigError, match="changed while they were read"),
    ):
        weights_digest(model)


@pytest.mark.parametrize("content", [None, "pytorch_model.bin", "model.safetensors.index.json"])
def test_a_folder_without_safetensors_is_refused(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / content).write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"no \*\.safetensors in"):
        weights_digest(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        weights_digest(tmp_path / "nowhere")


def test_weights_that_cannot_be_read_are_named(model: Path) -> None:
    (model / "broken.safetensors").symlink_to(model / "nowhere")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        weights_digest(model)
