"""Which weights a foreign engine serves: the digest of their files, wherever its hub's library keeps them."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from kvstore.errors import ConfigError
from kvstore.weights import weights_digest

DIGESTS = "weight_digests.json"
"""The file of a cache folder that remembers digests of weights."""
FileFacts = tuple[tuple[str, int, int, int, int], ...]


def named_digest(words: str) -> str:
    """Return what stands for weights that an operator has named in words of their own."""
    return blake2b(words.encode(), digest_size=16, person=b"prefixd-named").hexdigest()


def model_digest(model: str, revision: str | None, remembered: Path) -> str:
    """Return the digest of a model's weights; ``model`` is a folder or a name of the hub's.

    Reads all of them unless ``remembered`` tells it. Raises ``ConfigError`` where there are none to read.
    """
    try:
        return weights_digest(model_folder(model, revision), remembered)
    except ConfigError as error:
        raise ConfigError("weights", f"{error.reason}: say what they are in this setting") from error


def adapter_digest(adapter: str, remembered: Path) -> str:
    """Return the digest of a LoRA adapter's weights and configuration. Raises ``ConfigError``."""
    folder = model_folder(adapter, None, "adapter_config.json")
    weights = model_digest(str(folder), None, remembered)
    try:
        config = (folder / "adapter_config.json").read_bytes()
    except OSError as error:
        raise ConfigError("weights", f"the adapter in {folder} cannot be read: {error.strerror}") from error
    return blake2b(weights.encode() + config, digest_size=16).hexdigest()


def adapter_files(adapter: str) -> FileFacts:
    """Return what tells whether an adapter's files are those that were read before; reads none of them.

    Empty where there are none.
    """
    try:
        folder = model_folder(adapter, None, "adapter_config.json")
        files = [*folder.glob("*.safetensors*"), folder / "adapter_config.json"]
        facts = [(file.name, file.stat()) for file in sorted(files)]
    except (ConfigError, OSError):
        return ()
    return tuple((name, at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino) for name, at in facts)


def model_folder(model: str, revision: str | None, file: str = "config.json") -> Path:
    """Return where a model lies; nothing is fetched. Raises ``ConfigError``."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - the engine brings it

    try:
        found = try_to_load_from_cache(model, file, revision=revision)
    except ValueError:
        found = None
    if not isinstance(found, str):
        raise ConfigError("weights", f"the files of {model} are not found: say what they are in this setting")
    return Path(found).parent
