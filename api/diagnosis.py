"""What ``prefixd doctor`` looks at. Each check is a function that returns what it found."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from api.commands.version import installed_version
from api.findings import Finding, Level
from api.folders import cost_folder
from api.quantities import format_bytes, format_rate
from api.redis_findings import look_at_redis
from api.retention_file import read_retention
from api.serving_config import shadow_policies
from api.settings import Settings
from api.settings_sources import check_budgets
from backends.builtin import register_builtin as register_backends
from backends.disk_frames import allows_direct_io
from engine_adapter.cost_file import costs_of_this_machine
from engine_adapter.engine.costs import KnownCosts
from engine_adapter.trace_file import require_replaceable
from kvstore.errors import ConfigError
from kvstore.registry import Kind, Registry
from policies.builtin import register_builtin as register_policies
from policies.cost_model import Work
from policies.steps import StepCosts
from policies.wording import format_seconds
from prefixd import complaint, hidden_rooms

_MODEL_FILES = ("config.json", "*.safetensors", "tokenizer.json")
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def diagnose(settings: Settings) -> list[Finding]:
    """Return all findings, in the order in which a server would meet them."""
    checks = (
        _python, _packages, _forms, _rooms, _device, _memory, _model, _adapters, _cache, _disk, look_at_redis,
        _retention, _recording, _plugins, _costs,
    )  # fmt: skip
    return [finding for check in checks for finding in check(settings)]


def _python(_: Settings) -> Iterator[Finding]:
    level = Level.GOOD if sys.version_info >= (3, 11) else Level.BAD
    yield Finding("python", level, f"{platform.python_version()} on {platform.machine()}")


def _packages(_: Settings) -> Iterator[Finding]:
    for package in ("torch", "transformers"):
        version = installed_version(package)
        if find_spec(package) is None:
            yield Finding(package, Level.BAD, "not installed; pip install 'prefixd[engine]'")
        else:
            yield Finding(package, Level.GOOD, version)


def _forms(_: Settings) -> Iterator[Finding]:
    if find_spec("llguidance") is None:
        reason = "not installed, and only answers held to a form need it; pip install 'prefixd[constrained]'"
        yield Finding("llguidance", Level.GOOD, reason)
    else:
        yield Finding("llguidance", Level.GOOD, installed_version("llguidance"))


def _rooms(_: Settings) -> Iterator[Finding]:
    hidden = hidden_rooms()
    for room, place in hidden.items():
        yield Finding("packages", Level.BAD, complaint(room, place))
    if not hidden:
        yield Finding("packages", Level.GOOD, "no foreign package hides one of prefixd's")


def _device(settings: Settings) -> Iterator[Finding]:
    if find_spec("torch") is None:
        return
    import torch  # noqa: PLC0415 - it may be missing

    if torch.cuda.is_available():
        yield Finding("device", Level.GOOD, f"cuda: {torch.cuda.get_device_name()}")
    elif settings.device == "cuda":
        yield Finding("device", Level.BAD, "cuda is asked for, and torch sees no GPU; use --device auto")
    else:
        yield Finding("device", Level.GOOD, f"cpu with {torch.get_num_threads()} threads; no GPU")


def _memory(settings: Settings) -> Iterator[Finding]:
    try:
        check_budgets(settings)
    except ConfigError as error:
        yield Finding("memory", Level.BAD, str(error))
    else:
        yield Finding("memory", Level.GOOD, f"host tier {format_bytes(settings.host_bytes)}")


def _model(settings: Settings) -> Iterator[Finding]:
    folder = settings.model
    if folder is None:
        yield Finding("model", Level.DOUBTFUL, "none is named; give its folder with --model DIR")
        return
    missing = [name for name in _MODEL_FILES if not folder.is_dir() or not any(folder.glob(name))]
    if missing:
        yield Finding("model", Level.BAD, f"{folder} has no {', '.join(missing)}")
    else:
        yield Finding("model", Level.GOOD, str(folder))


def _adapters(settings: Settings) -> Iterator[Finding]:
    for name, folder in settings.lora.items():
        missing = [file for file in _ADAPTER_FILES if not (folder / file).is_file()]
        if missing:
            yield Finding("adapter", Level.BAD, f"{name}: {folder} has no {', '.join(missing)}")
        else:
            yield Finding("adapter", Level.GOOD, f"{name}: {folder}")


def _cache(settings: Settings) -> Iterator[Finding]:
    parent = _first_there(settings.cache_path)
    if _is_writable(parent):
        yield Finding("cache", Level.GOOD, str(settings.cache_path))
    else:
        reason = "so each start reads all weights and measures anew; choose another --cache-path"
        yield Finding("cache", Level.DOUBTFUL, f"{parent} cannot be written, {reason}")


def _disk(settings: Settings) -> Iterator[Finding]:
    if not settings.disk_bytes:
        yield Finding("disk", Level.GOOD, "no disk tier is asked for")
        return
    parent = _first_there(settings.disk_path)
    free_bytes = shutil.disk_usage(parent).free
    room = f"{format_bytes(free_bytes)} free at {settings.disk_path}"
    if not _is_writable(parent):
        yield Finding("disk", Level.BAD, f"{parent} cannot be written; choose another --disk-path")
    elif free_bytes < settings.disk_bytes:
        yield Finding(
            "disk", Level.DOUBTFUL, f"{room}, less than the budget {format_bytes(settings.disk_bytes)}"
        )
    elif not allows_direct_io(parent / f".prefixd-doctor-{os.getpid()}"):
        yield Finding(
            "disk", Level.DOUBTFUL, f"{room}; no O_DIRECT there, so reads fill the page cache as well"
        )
    else:
        yield Finding("disk", Level.GOOD, f"{room}, O_DIRECT works")


def _first_there(folder: Path) -> Path:
    """Return ``folder``, or the first of those that it is to be made in that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _retention(settings: Settings) -> Iterator[Finding]:
    if settings.retention is None:
        yield Finding("retention", Level.GOOD, "no file of rules is named")
        return
    try:
        plan = read_retention(settings.retention)
    except ConfigError as error:
        yield Finding("retention", Level.BAD, error.reason)
        return
    num = f"{len(plan.tenants)} tenants, {len(plan.namespaces)} namespaces, {len(plan.prefixes)} prefixes"
    yield Finding("retention", Level.GOOD, f"{settings.retention}: rules of {num}")


def _recording(settings: Settings) -> Iterator[Finding]:
    file = settings.record_trace
    if file is None:
        yield Finding("recording", Level.GOOD, "no trace is recorded")
        return
    if not _is_writable(file.parent):
        yield Finding(
            "recording", Level.BAD, f"{file.parent} cannot be written; choose another --record-trace"
        )
        return
    try:
        require_replaceable(file)
    except ConfigError as error:
        yield Finding("recording", Level.DOUBTFUL, error.reason)  # it may be our own server's
    else:
        yield Finding("recording", Level.GOOD, f"{file}, {format_bytes(settings.record_trace_bytes)} at most")


def _shadow_names(settings: Settings) -> tuple[str, ...]:
    try:
        return shadow_policies(settings.shadow_policies)
    except ConfigError:
        return (settings.shadow_policies,)


def _plugins(settings: Settings) -> Iterator[Finding]:
    registry = Registry()
    register_policies(registry)
    register_backends(registry)
    foreign = {entry.name for kind in Kind for entry in entry_points(group=f"prefixd.{kind.value}")}
    yield Finding("plugins", Level.GOOD, ", ".join(sorted(foreign)) or "none beside the built-in ones")
    wanted = [(Kind.RELOAD, settings.reload_policy)]
    wanted += [
        (Kind.EVICTION, name)
        for name in (
            settings.device_eviction,
            settings.host_eviction,
            settings.disk_eviction,
            settings.redis_eviction,
            *_shadow_names(settings),
        )
    ]
    wanted.append((Kind.CODEC, settings.redis_codec))
    for kind, name in dict.fromkeys(wanted):
        if name not in registry.names(kind):
            known = ", ".join(registry.names(kind))
            yield Finding("plugins", Level.BAD, f"{kind.value} {name!r} is not known; there are: {known}")


def _costs(settings: Settings) -> Iterator[Finding]:
    kept = costs_of_this_machine(cost_folder(settings.cache_path))
    for about, known in kept:
        yield Finding("costs", Level.GOOD, f"{about}: {_told(known)}")
    if not kept:
        yield Finding("costs", Level.GOOD, "none known yet; a server measures when it starts, and keeps them")


def _told(known: KnownCosts) -> str:
    """Return what is known of a model's steps and each tier's loads."""
    compute = StepCosts(known.steps).cost()
    tokens = max((step.work.tokens for step in known.steps), default=0)
    parts = []
    if compute is not None and tokens:
        parts.append(f"computes {tokens / compute.of(Work.prefill(0, tokens)):.0f} tokens/s")
    for tier, line in known.lines.items():
        parts.append(f"{tier} {format_seconds(line.latency_s)}, then {format_rate(line.bytes_per_s)}")
    return "; ".join(parts) or "nothing"
