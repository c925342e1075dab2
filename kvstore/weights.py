"""The content digest of a model's weights, remembered so that it costs nothing the second time."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from hashlib import blake2b
from pathlib import Path

from xxhash import xxh3_128

from kvstore.errors import ConfigError

_log = logging.getLogger(__name__)

_DIGEST_BYTES = 16
_PIECE_BYTES = 16 * 1024 * 1024
_MEMORY_VERSION = 1
_MAX_REMEMBERED = 256

# What tells that a file may have changed since it was read.
Identity = list[str | int]


def weights_digest(folder: Path, remembered: Path | None = None) -> str:
    """Return the hex digest of the names and contents of all weight files in ``folder``.

    Weight files are ``*.safetensors`` and their ``*.safetensors.index.json``. Reads all of them,
    unless the file ``remembered`` tells the digest of the very same files (resolved path, size,
    mtime, ctime and inode of each); what is computed is added there. Blocks for the reading.
    Raises ``ConfigError`` when there are no weights or they cannot be read.
    """
    try:
        files = _weight_files(folder)
        identity = [_identity(file) for file in files]
        memory = _recall(remembered)
        known = memory.get(_fingerprint(identity))
        if known is not None:
            return known
        digest = _digest(files)
        if [_identity(file) for file in files] != identity:
            raise ConfigError("model", f"the weights in {folder} changed while they were read")
    except OSError as error:
        raise ConfigError("model", f"the weights in {folder} cannot be read: {error.strerror}") from error
    if remembered:
        _remember(remembered, memory, _fingerprint(identity), digest)
    return digest


def _weight_files(folder: Path) -> list[Path]:
    tensors = list(folder.glob("*.safetensors"))
    if not tensors:
        raise ConfigError("model", f"no *.safetensors in {folder}; other weight formats are not read")
    return sorted([*tensors, *folder.glob("*.safetensors.index.json")], key=lambda file: file.name)


def _identity(file: Path) -> Identity:
    facts = file.stat()
    path = str(file.resolve())
    return [file.name, path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


def _fingerprint(identity: list[Identity]) -> str:
    return blake2b(json.dumps(identity).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _digest(files: list[Path]) -> str:
    whole = blake2b(digest_size=_DIGEST_BYTES, person=b"prefixd-weights")
    for file in files:
        name = file.name.encode()
        whole.update(len(name).to_bytes(8, "little") + name)
        whole.update(_content_digest(file))
    return whole.hexdigest()


def _content_digest(file: Path) -> bytes:
    content = xxh3_128()
    piece = memoryview(bytearray(_PIECE_BYTES))
    with file.open("rb", buffering=0) as opened:
        while num_read := opened.readinto(piece):
            content.update(piece[:num_read])
    return content.digest()


def _recall(remembered: Path | None) -> dict[str, str]:
    """Return digests by fingerprint; nothing when the file is missing or broken."""
    if remembered is None:
        return {}
    try:
        facts = json.loads(remembered.read_text(encoding="utf-8"))
        if facts["version"] != _MEMORY_VERSION:
            return {}
        return {key: digest for key, digest in facts["digests"].items() if _is_digest(digest)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_digest(value: object) -> bool:
    return (
        isinstance(value, str) and len(value) == 2 * _DIGEST_BYTES and set(value) <= set("0123456789abcdef")
    )


def _remember(remembered: Path, memory: dict[str, str], fingerprint: str, digest: str) -> None:
    """Write the memory anew, in one step; where that is not possible, say so: the next start reads again."""
    digests = dict(list(memory.items())[1 - _MAX_REMEMBERED :]) | {fingerprint: digest}
    text = json.dumps({"version": _MEMORY_VERSION, "digests": digests}, indent=1)
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=remembered.parent, prefix=f"{remembered.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(remembered)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        _log.warning("the digest of the weights cannot be kept in %s: %s", remembered.parent, error.strerror)
