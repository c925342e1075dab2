"""What LMCache's keys leave out, put into namespaces of ours: dtype, shapes, chunk, version, weights.

::

    their key    model name, rank, object group, salt | hash of the tokens up to the chunk's end
    ours         namespace (16 bytes) -------------------> key (16 bytes) = blake2b(hash, key=namespace)

LMCache is not imported here: keys and objects are read as they come.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

from engine_adapter.foreign_weights import named_digest
from kvstore.keys import KEY_BYTES
from kvstore.namespace import Namespace, canonical_json

_KEY_FORMAT = 1
"""Of what is hashed here; another one's chunks are never found."""
_MOST_NAMESPACES = 4096  # salts are namespaces too


class Layout(NamedTuple):
    """How an object's bytes are read: the shape of each of its parts, and their dtypes."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(
            f"{dtype}[{','.join(map(str, shape))}]"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )


def layout_of(shapes: Sequence[Any], dtypes: Sequence[Any]) -> Layout:
    """Return the layout of torch's shapes and dtypes."""
    return Layout(
        tuple(tuple(int(size) for size in shape) for shape in shapes),
        tuple(str(dtype).removeprefix("torch.") for dtype in dtypes),
    )


def num_bytes_of(layout: Layout) -> int:
    """Return the length of an object that is laid out so."""
    parts = zip(layout.shapes, layout.dtypes, strict=True)
    return sum(math.prod(shape) * _width_bytes(dtype) for shape, dtype in parts)


def layout_of_object(memory: Any) -> Layout:
    """Return the layout of one of LMCache's memory objects."""
    meta = memory.meta
    return layout_of(meta.shapes or [meta.shape], meta.dtypes or [meta.dtype])


class Place(NamedTuple):
    """Where a chunk is kept in a store."""

    namespace: Namespace
    key: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """What all chunks of one server have in common."""

    version: str
    """LMCache's: what its objects mean may change with it."""
    chunk_tokens: int
    weights: str

    def namespace(self, key: Any, layout: Layout) -> Namespace:
        """Return the namespace of an object with this key and layout."""
        rank = int(key.kv_rank)  # four bytes: world size, rank, both again for the machine
        facts = {
            "model": str(key.model_name),
            "kv_rank": rank,
            "object_group": int(key.object_group_id),
            "key_format": _KEY_FORMAT,
            "lmcache": self.version,
        }
        return Namespace(
            weights=named_digest(json.dumps([key.model_name, self.weights])),
            model_config=canonical_json(facts),
            compute_dtype=",".join(layout.dtypes),
            kv_dtype=",".join(layout.dtypes),
            block_tokens=self.chunk_tokens,
            layout=f"lmcache {layout}",
            tp_rank=rank >> 16 & 0xFF,
            tp_size=max(1, rank >> 24 & 0xFF),
            label=f"{key.model_name} in LMCache",
        ).with_salt(str(key.cache_salt))


class Namespaces:
    """Namespaces by what LMCache says of an object, each made once. Thread-safe.

    A lookup need not say how objects are laid out: then they are as those of their group were last.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._known: OrderedDict[tuple[object, ...], Namespace] = OrderedDict()
        self._layouts: dict[tuple[str, int], Layout] = {}
        self._lock = Lock()

    def of(self, key: Any, layout: Layout | None) -> Namespace | None:
        """Return the namespace of an object; ``None``: nothing is known of its layout."""
        group = str(key.model_name), int(key.object_group_id)
        with self._lock:
            if layout is None:
                layout = self._layouts.get(group)
            if layout is None:
                return None
            self._layouts[group] = layout
            about = (*group, key.kv_rank, key.cache_salt, layout)
            namespace = self._known.get(about)
            if namespace is None:
                namespace = self._known[about] = self._identity.namespace(key, layout)
                if len(self._known) > _MOST_NAMESPACES:
                    self._known.popitem(last=False)
            return namespace


def _width_bytes(dtype: str) -> int:
    """Return the length of a number, by the bits in its type's name: ``bfloat16``, ``float8_e4m3fn``."""
    bits = re.search(r"[a-z](\d+)", dtype)
    return max(1, int(bits[1]) // 8) if bits else 1


def place_in(namespace: Namespace, chunk_hash: bytes) -> Place:
    """Return where the chunk with this hash is kept; the namespace is the store's own."""
    return Place(namespace, blake2b(chunk_hash, digest_size=KEY_BYTES, key=namespace.digest).digest())
