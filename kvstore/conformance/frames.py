"""Frames for tests of backends, and the ways to put, get and verify them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import blake2b

from kvstore.frame import HEADER_BYTES, Expiry, Header, checksum
from kvstore.keys import KEY_BYTES
from kvstore.seams import Backend, Want

NAMESPACE = b"conformance-test"
SIZES = (1, 100, 4095, 4096, 4097, 65536, 70_000)


def make_key(name: object) -> bytes:
    """Return a key that stands for ``name``."""
    return blake2b(str(name).encode(), digest_size=KEY_BYTES).digest()


def make_payload(name: object, nbytes: int) -> bytes:
    """Return ``nbytes`` that differ for every ``name``."""
    word = blake2b(str(name).encode()).digest()
    return (word * (nbytes // len(word) + 1))[:nbytes]


def make_header(key: bytes, payload: bytes, parent: bytes = b"") -> Header:
    """Return the header that belongs to ``payload``."""
    size = len(payload)
    return Header(NAMESPACE, key, parent, 16, size, size, 1_700_000_000_000, Expiry(), checksum(payload))


def put(backend: Backend, key: bytes, payload: bytes, parent: bytes = b"") -> Header:
    """Store ``payload`` with a sound header, which is returned."""
    header = make_header(key, payload, parent)
    backend.put(key, memoryview(header.pack()), memoryview(payload))
    return header


def get(backend: Backend, key: bytes, nbytes: int) -> bytes | None:
    """Return the payload of ``key``, read into ``nbytes``, after verifying its frame; ``None``: a miss."""
    header, payload = bytearray(HEADER_BYTES), bytearray(nbytes)
    length = backend.get_into(key, memoryview(header), memoryview(payload))
    if length is None:
        return None
    return verified(key, header, memoryview(payload)[:length])


def verified(key: bytes, header: bytes | bytearray, payload: memoryview) -> bytes:
    """Return ``payload`` after making sure that it is what ``header`` says and the block of ``key``."""
    facts = Header.unpack(bytes(header))
    assert facts.key == key, "the frame of another key"
    assert facts.stored_bytes == len(payload), "a header of another length"
    assert facts.checksum == checksum(payload), "header and payload do not belong together"
    return bytes(payload)


def want_of(name: object, nbytes: int) -> Want:
    """Return a want for the block of ``name``, with memory for ``nbytes``."""
    return Want(make_key(name), memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(nbytes)))


def run_together(*jobs: Callable[[], None]) -> None:
    """Run ``jobs`` in a thread each and raise what the first of them raised."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  # handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
