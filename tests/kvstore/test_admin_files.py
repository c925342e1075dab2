"""Files of blocks: others can read them, and only what was exported comes in again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from kvstore.admin.outcome import Exported, Imported
from kvstore.admin.progress import Progress
from kvstore.admin.selection import BlockFilter
from kvstore.admin.shapes import Shape, shape_of
from kvstore.errors import RequestError
from kvstore.namespace import Namespace
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from tests.kvstore.conftest import BLOCK_BYTES, DictBackend, Rig

ALL = BlockFilter()
# 2 layers, K and V, 16 tokens, 2 heads, 16 numbers in 2 bytes each: BLOCK_BYTES
CONFIG = '{"head_dim":16,"num_attention_heads":4,"num_hidden_layers":2,"num_key_value_heads":2}'
SHAPED = Namespace("weights", CONFIG, "float32", "bfloat16", block_tokens=16, label="tiny")
SHAPE = (2, 2, 16, 2, 16)


def numbers_of(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(SHAPE, generator=generator).to(torch.bfloat16)


def payload_of(number: int) -> memoryview:
    return memoryview(numbers_of(number).view(torch.uint8).numpy().tobytes())


def put(store: TieredStore, rig: Rig, *numbers: int) -> None:
    for index, number in enumerate(numbers):
        parent = rig.key(numbers[index - 1]) if index else b""
        store.put(SHAPED, rig.key(number), parent, payload_of(number), first_token=16 * index)
    assert store.flush(5.0)


def exported(store: TieredStore, wanted: BlockFilter = ALL) -> bytes:
    file = io.BytesIO()
    store.admin.export(wanted, file)
    return file.getvalue()


def other_store(rig: Rig, config: StoreConfig | None = None) -> TieredStore:
    rig.medium = DictBackend()
    return rig.open(config=config)


def test_others_can_read_what_was_exported(rig: Rig, tmp_path: Path) -> None:
    store = rig.open()
    put(store, rig, 1, 2, 3)
    path = tmp_path / "prefix.safetensors"
    with path.open("wb") as file:
        told = store.admin.export(BlockFilter(prefix=rig.key(2)), file)
    assert (told.num_blocks, told.nbytes, told.stays, told.is_cancelled) == (2, 2 * BLOCK_BYTES, (), False)
    with safe_open(path, framework="pt") as opened:
        assert set(opened.keys()) == {rig.key(2).hex(), rig.key(3).hex()}
        for number in (2, 3):
            tensor = opened.get_tensor(rig.key(number).hex())
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor, numbers_of(number))
        metadata = opened.metadata()
    assert (metadata["format"], metadata["version"], metadata["digest"]) == (
        "prefixd-blocks",
        "1",
        told.digest,
    )
    (manifest,) = json.loads(metadata["namespaces"])
    assert (manifest["label"], manifest["digest"]) == ("tiny", SHAPED.digest.hex())
    first, second = json.loads(metadata["blocks"])
    assert (first["key"], first["parent"], first["first_token"]) == (rig.key(2).hex(), rig.key(1).hex(), 16)
    assert (second["key"], second["parent"], second["created_ms"]) == (
        rig.key(3).hex(), rig.key(2).hex(), 1_000_000,
    )  # fmt: skip


def test_what_was_exported_comes_in_again(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, 1, 2)
    data = exported(store)
    rig.now_s += 100.0
    other = other_store(rig)
    progress = Progress()
    told = other.admin.import_(io.BytesIO(data), ttl_s=60.0, progress=progress)
    assert told == Imported(2, 2, 0, (), (SHAPED.digest,))
    assert (progress.done, progress.total) == (4, 4)
    assert other.flush(5.0)
    for number in (1, 2):
        out = bytearray(BLOCK_BYTES)
        assert other.get_into(rig.key(number), memoryview(out))
        assert out == payload_of(number)
    view = other.admin.block(rig.key(2))
    assert view is not None
    assert (view.parent, view.first_token, view.namespace) == (rig.key(1), 16, SHAPED.digest)
    assert (view.created_ms, view.ends_ms["disk"], view.tiers) == (1_000_000, 1_160_000, ("host", "disk"))
    assert other.known_namespaces() == [SHAPED]
    again = other.admin.import_(io.BytesIO(data))
    assert (again.num_stored, again.num_there) == (0, 2)
    assert exported(other) == data
    other.close()
    kept = rig.open(host_blocks=0)
    assert kept.get_into(rig.key(2), memoryview(bytearray(BLOCK_BYTES)))


def test_hard_ends_go_with_a_block_and_rules_count_from_its_first_write(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, 1)
    store.admin.set_ttl(ALL, hard_ttl_s=100.0)
    data = exported(store)
    rig.now_s += 50.0
    rules = Retention(TenantRule(Lifetime(hard_ttl_s=80.0)))
    for other, hard_ms in (
        (other_store(rig), 1_100_000),
        (other_store(rig, StoreConfig(retention=rules)), 1_080_000),
    ):
        other.admin.import_(io.BytesIO(data))
        view = other.admin.block(rig.key(1))
        assert view is not None
        assert view.hard_ms == hard_ms
    rig.now_s += 50.0
    late = other_store(rig).admin.import_(io.BytesIO(data))
    assert [(stay.key, stay.why.value) for stay in late.stays] == [(rig.key(1), "would have ended there")]


def test_what_is_in_quarantine_does_not_come_in(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, 1, 2)
    data = exported(store)
    store.quarantine(rig.key(1))
    told = store.admin.import_(io.BytesIO(data))
    assert [stay.why.value for stay in told.stays] == ["in quarantine", "in quarantine"]


def test_more_than_a_store_holds_makes_older_ones_go(rig: Rig) -> None:
    store = rig.open(host_blocks=8)
    put(store, rig, *range(8))
    data = exported(store)
    rig.medium = DictBackend()
    small = rig.open(host_blocks=2, disk_blocks=3)
    told = small.admin.import_(io.BytesIO(data))
    assert (told.num_stored, told.stays) == (8, ())
    assert small.statistics().tiers[2].num_blocks == 3


def test_forms_that_are_no_plain_numbers_are_bytes(rig: Rig, tmp_path: Path) -> None:
    store = rig.open()
    rig.put(store, 1)
    put(store, rig, 2)
    path = tmp_path / "mixed.safetensors"
    path.write_bytes(exported(store))
    with safe_open(path, framework="pt") as opened:
        tensor = opened.get_tensor(rig.key(1).hex())
        assert (tensor.dtype, tensor.shape) == (torch.uint8, (BLOCK_BYTES,))
        assert bytes(tensor.numpy()) == rig.payload(1)
        assert opened.get_tensor(rig.key(2).hex()).dtype == torch.bfloat16
        rows = json.loads(opened.metadata()["blocks"])
    assert [row["key"] for row in rows] == [rig.key(2).hex(), rig.key(1).hex()], "wider numbers first"


@pytest.mark.parametrize(
    ("namespace", "shape"),
    [
        (SHAPED, Shape("BF16", SHAPE)),
        (Namespace("w", CONFIG, "float16", "float16", 16), Shape("F16", SHAPE)),
        (Namespace("w", CONFIG, "float32", "float32", 8), Shape("F32", (2, 2, 8, 2, 16))),
        (Namespace("w", CONFIG, "bfloat16", "bfloat16", 32, tp_size=2), Shape("BF16", (2, 2, 32, 1, 16))),
        (Namespace("w", CONFIG.replace("16", "32"), "bfloat16", "bfloat16", 16), Shape("U8", (4096,))),
        (Namespace("w", CONFIG, "bfloat16", "int8", 16, "scaled"), Shape("U8", (4096,))),
        (Namespace("w", CONFIG, "bfloat16", "bfloat16", 16, layout="token,kv"), Shape("U8", (4096,))),
        (Namespace("w", "[]", "bfloat16", "bfloat16", 16), Shape("U8", (4096,))),
        (
            Namespace(
                "w",
                '{"hidden_size":64,"num_attention_heads":4,"num_hidden_layers":1}',
                "bfloat16",
                "bfloat16",
                16,
            ),
            Shape("BF16", (1, 2, 16, 4, 16)),
        ),
    ],
)
def test_shapes(namespace: Namespace, shape: Shape) -> None:
    assert shape_of(namespace, BLOCK_BYTES) == shape


class Evicting(Progress):
    """Evicts a block while others are written."""

    def __init__(self, evict: Callable[[], object]) -> None:
        super().__init__()
        self.evict = evict

    def step(self) -> None:
        super().step()
        self.evict()


def test_what_goes_before_its_turn_is_left_out_and_told(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, 1, 2, 3)
    file = io.BytesIO(bytes(1 << 20))
    told = store.admin.export(ALL, file, progress=Evicting(lambda: store.evict([rig.key(2)])))
    assert (told.num_blocks, told.nbytes) == (2, 2 * BLOCK_BYTES)
    assert [(stay.key, stay.why.value) for stay in told.stays] == [(rig.key(2), "not there")]
    assert other_store(rig).admin.import_(file).num_stored == 2


def test_a_bad_copy_is_not_exported_and_the_next_tiers_is(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(audit_share=1.0))
    put(store, rig, 1)
    hit = store.lookup([rig.key(1)])
    (slot,) = store.places(hit)
    assert slot is not None
    slot.view[0] ^= 1
    hit.release()
    data = exported(store)
    assert data[-BLOCK_BYTES:] == payload_of(1)
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, b"?" + payload[1:]
    with pytest.raises(RequestError, match="names no block that can be exported: 1 failed"):
        store.admin.export(ALL, io.BytesIO())


def test_what_nobody_knows_the_manifest_of_or_what_is_not_there_is_told(rig: Rig) -> None:
    rig.put(rig.open(), 1)
    rig.stores[0].close()
    rig.medium = DictBackend(rig.medium.frames)
    store = rig.open()
    store.put(SHAPED, rig.key(3), b"", payload_of(3))
    told = store.admin.export(BlockFilter(keys=(rig.key(1), rig.key(2), rig.key(3))), io.BytesIO())
    assert told.num_blocks == 1
    assert [(stay.key, stay.why.value) for stay in told.stays] == [
        (rig.key(2), "not there"),
        (rig.key(1), "its namespace is not known"),
    ]


def test_a_file_of_no_blocks_is_refused(rig: Rig) -> None:
    file = io.BytesIO(b"before")
    for wanted, why in (
        (BlockFilter(keys=(rig.key(1),)), "selection: names no block that can be exported: 1 not there"),
        (ALL, "selection: names no block that can be exported: no block is selected"),
    ):
        with pytest.raises(RequestError, match=why):
            rig.open().admin.export(wanted, file)
        assert file.getvalue() == b""


def test_called_off_or_failed_it_leaves_nothing(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, 1, 2)
    progress = Progress()
    progress.cancel()
    file = io.BytesIO(b"before")
    assert store.admin.export(ALL, file, progress=progress) == Exported(0, 0, "", (), is_cancelled=True)
    assert file.getvalue() == b""

    half = Evicting(int)
    half.evict = half.cancel
    told = store.admin.export(ALL, file, progress=half)
    assert (told.num_blocks, told.nbytes, told.is_cancelled, half.done) == (0, 0, True, 1)
    assert file.getvalue() == b""

    class Full(io.BytesIO):
        def write(self, _data: Any, /) -> int:
            raise OSError("no space left")

    full = Full(b"before")
    with pytest.raises(OSError, match="no space"):
        store.admin.export(ALL, full)
    assert full.getvalue() == b""
    assert store.num_holds == 0
    cancelled = other_store(rig).admin.import_(io.BytesIO(exported(store)), progress=progress)
    assert (cancelled.num_stored, cancelled.is_cancelled) == (0, True)


def test_one_block_at_a_time(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, 1, 2, 3)

    class Watched(io.BytesIO):
        largest = 0

        def write(self, data: Any) -> int:
            Watched.largest = max(Watched.largest, len(data))
            return super().write(data)

        def read(self, size: int | None = -1, /) -> bytes:
            Watched.largest = max(Watched.largest, size or 0)
            return super().read(size)

    file = Watched()
    store.admin.export(ALL, file)
    assert Watched.largest == BLOCK_BYTES
    assert other_store(rig).admin.import_(file).num_stored == 3
    assert Watched.largest == BLOCK_BYTES


def refused(store: TieredStore, data: bytes) -> str:
    """Return why a file is refused; nothing of it is stored."""
    with pytest.raises(RequestError) as caught:
        store.admin.import_(io.BytesIO(data))
    assert caught.value.param == "file"
    assert store.admin.blocks().total == 0
    assert store.num_holds == 0
    return caught.value.reason.removeprefix("cannot be imported: ")


def test_a_file_with_any_byte_changed_is_refused(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, 1)
    data = exported(store)
    other = other_store(rig)
    for index in [*range(len(data) - BLOCK_BYTES), len(data) - BLOCK_BYTES, len(data) - 1]:
        refused(other, data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
    for length in (0, 7, 8, 100, len(data) - 1):
        refused(other, data[:length])
    refused(other, data + b"\x00")
    why = refused(other, data[:-1] + bytes([data[-1] ^ 1]))
    assert why == f"block {rig.key(1).hex()} does not match its checksum"


Change = Callable[[dict[str, Any], list[Any], list[Any]], object]
"""Changes the header of a file, its manifests and what it says of its blocks."""


def forged(data: bytes, change: Change) -> bytes:
    """Return a file whose header somebody has changed who knows how digests are made."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header["__metadata__"]
    namespaces, blocks = json.loads(metadata["namespaces"]), json.loads(metadata["blocks"])
    change(header, namespaces, blocks)
    metadata["namespaces"] = json.dumps(namespaces, sort_keys=True)
    metadata["blocks"] = json.dumps(blocks, separators=(",", ":"))
    digest = blake2b(f"{metadata['namespaces']}\n{metadata['blocks']}".encode(), digest_size=32)
    metadata["digest"] = digest.hexdigest()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def in_block(name: str, value: object) -> Change:
    return lambda _header, _namespaces, blocks: blocks[0].update({name: value})


def in_manifest(name: str, value: object) -> Change:
    return lambda _header, namespaces, _blocks: namespaces[0].update({name: value})


def in_metadata(name: str, value: object) -> Change:
    return lambda header, _namespaces, _blocks: header["__metadata__"].update({name: value})


def in_blocks(change: Callable[[list[Any]], object]) -> Change:
    return lambda _header, _namespaces, blocks: change(blocks)


def with_a_tensor_more(header: dict[str, Any], *_: list[Any]) -> None:
    header["more"] = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (in_metadata("version", "2"), "it is of version '2'; this is version 1"),
        (in_metadata("format", "pt"), "it holds other tensors than blocks"),
        (in_metadata("more", "text"), "its digest does not match"),
        (with_a_tensor_more, "its tensors are others than it says"),
        (lambda _header, namespaces, _blocks: namespaces.clear(), "a block is of no namespace"),
        (in_manifest("label", 7), "one of its namespaces cannot be read"),
        (in_manifest("weights", "?"), "one of its namespaces cannot be read"),
        (in_blocks(lambda blocks: blocks.append(blocks[0])), "a block is in it twice"),
        (in_blocks(lambda blocks: blocks.append(7)), "what it says of a block has other fields"),
        (in_blocks(lambda blocks: blocks[0].pop("parent")), "what it says of a block has other fields"),
        (in_blocks(lambda blocks: blocks.clear()), "its tensors are others than it says"),
        (in_block("key", "80"), "a key or checksum has another length"),
        (in_block("key", "?"), "key is not hexadecimal"),
        (in_block("key", 7), "key is no text"),
        (in_block("parent", "80"), "a key or checksum has another length"),
        (in_block("checksum", ""), "a key or checksum has another length"),
        (in_block("namespace", 1), "a block is of no namespace that it names"),
        (in_block("namespace", -1), "namespace is no number that can be"),
        (in_block("block_tokens", 8), "a block is of no namespace that it names"),
        (in_block("nbytes", 0), "a block has no bytes"),
        (in_block("nbytes", 1 << 60), "nbytes is no number that can be"),
        (in_block("nbytes", 100), "its tensors are others than it says"),
        (in_block("created_ms", 1.5), "created_ms is no number that can be"),
        (in_block("created_ms", True), "created_ms is no number that can be"),
        (in_block("hard_ms", None), "hard_ms is no number that can be"),
        (in_block("first_token", -1), "first_token is no number that can be"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_add_up_is_refused(rig: Rig, change: Change, reason: str) -> None:
    store = rig.open()
    put(store, rig, 1)
    data = forged(exported(store), lambda *_: None)
    assert refused(other_store(rig), forged(data, change)).startswith(reason)
    assert other_store(rig).admin.import_(io.BytesIO(data)).num_stored == 1


def test_what_is_no_file_of_ours_is_refused(rig: Rig) -> None:
    store = rig.open()
    assert refused(store, b"") == "it does not begin as a safetensors file does, or is cut short"
    assert refused(store, save({"tensor": torch.zeros(4)})).startswith("it holds other tensors than blocks")
    assert refused(store, (9).to_bytes(8, "little") + b"{" * 9) == "its header cannot be read as JSON"
    deep = b"[" * 100_000
    assert refused(store, len(deep).to_bytes(8, "little") + deep) == "its header cannot be read as JSON"
    assert refused(store, (2).to_bytes(8, "little") + b"[]").startswith("it holds other tensors")
