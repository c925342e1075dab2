"""``prefixd simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.simulate.hints import Hints

_TRACE = typer.Argument(help="A trace of requests: JSON lines, plain or compressed by xz.", metavar="TRACE")
_POLICY = typer.Option(help="Eviction policies by name; OPT is the exact optimum.", metavar="A,B")
_CAPACITY = typer.Option(
    help="Capacities in blocks [default: 1, 2, 5, 10 and 20 % of the different blocks].", metavar="N,M"
)
_TTL = typer.Option("--ttl", help="Seconds after which a block that was not used again goes.", metavar="S")
_HINTS = typer.Option(
    help="Tell policies nothing (none), what the trace says (trace), or also of each session's last request"
    " that it ends it (hindsight).",
)
_BLOCK = typer.Option(help="Tokens in a block of the trace [default: 512, of Qwen-Bailian's form 16].", min=1)
_WORTH = "What hits are worth: TTFT and saved device time"
_PREFILL = typer.Option(help="Tokens/s of prefill.", min=1e-3, max=1e9, rich_help_panel=_WORTH)
_LOAD = typer.Option(
    help="What loads cost, like 3GB/s,0.2ms [default: nothing].",
    metavar="RATE,LATENCY",
    rich_help_panel=_WORTH,
)
_KV = typer.Option(
    help="Bytes of a token's keys and values, like 128KiB.", rich_help_panel=_WORTH, metavar="SIZE"
)
_MODEL = typer.Option(
    help="Instead: the model's folder, for those bytes and for what attention costs.",
    rich_help_panel=_WORTH,
    metavar="DIR",
)
_COSTS = typer.Option(
    help="Instead of rates: what a server has learnt, a file under costs in its cache_path.",
    rich_help_panel=_WORTH,
    metavar="FILE",
)
_TIER = typer.Option(help="The tier of that file that is simulated.", rich_help_panel=_WORTH, metavar="NAME")
_JSON = typer.Option("--json", help="Also write it to this file.", metavar="FILE")
_PLOT = typer.Option("--plot", help="Also draw it, as .png, .svg or .pdf.", metavar="FILE")


def simulate(
    trace: Annotated[Path, _TRACE],
    policy: Annotated[str, _POLICY] = "lru,OPT",
    capacity_blocks: Annotated[str | None, _CAPACITY] = None,
    ttl_s: Annotated[float | None, _TTL] = None,
    hints: Annotated[Hints, _HINTS] = Hints.NONE,
    block_tokens: Annotated[int | None, _BLOCK] = None,
    prefill_tok_s: Annotated[float | None, _PREFILL] = None,
    load: Annotated[str | None, _LOAD] = None,
    kv_token_bytes: Annotated[str | None, _KV] = None,
    model: Annotated[Path | None, _MODEL] = None,
    costs: Annotated[Path | None, _COSTS] = None,
    tier: Annotated[str | None, _TIER] = None,
    json_file: Annotated[Path | None, _JSON] = None,
    plot_file: Annotated[Path | None, _PLOT] = None,
) -> None:
    """Replay a trace of requests and tell what each eviction policy would have hit, at each capacity.

    Nothing is computed or stored: the policies and books of a server's tier decide, over block numbers. A
    trace is one's own, recorded by `prefixd serve --record-trace FILE`, or a published one in Mooncake's form
    (`timestamp` in ms, `input_length`, `hash_ids`; `session` and `stop` may be added) or Qwen-Bailian's
    (`chat_id`). A plot has `lru` and `OPT` as its bounds. How to read it stands in docs/simulate.md.

    For example:

        prefixd simulate conversation_trace.jsonl

        prefixd simulate agents.jsonl.xz --policy lru,OPT --capacity-blocks 2000,8000,32000 --plot agents.png

        prefixd simulate qwen_traceA_blksz_16.jsonl --policy lru --ttl 600 --json a.json

        prefixd simulate recorded.jsonl --prefill-tok-s 9000 --load 3GB/s,0.2ms --model ~/models/Qwen3-0.6B
    """
    from rich.console import Console

    from api.bench.report import check_report_file, write_report
    from api.figures import check_figure_file
    from api.simulate.pricing import CostFlags, prices
    from api.simulate.report import report, table
    from api.simulate.run import make_caches, question, run_cells, usual_capacities
    from api.simulate.trace import read_trace
    from kvstore.registry import Registry
    from policies.builtin import register_builtin

    registry = Registry()
    register_builtin(registry)
    asked = question(policy, capacity_blocks, ttl_s, registry, is_drawn=plot_file is not None, hints=hints)
    priced = prices(CostFlags(prefill_tok_s, load, kv_token_bytes, model, costs, tier))
    check_report_file(json_file)
    check_figure_file(plot_file)
    with Console(stderr=True).status(f"reading {trace.name}"):
        requests = read_trace(trace, block_tokens)
    makers = make_caches(asked, requests, registry)
    cells = run_cells(requests, makers, asked.capacities or usual_capacities(requests), priced)
    Console().print(table(requests, cells, asked.ttl_s))
    if json_file:
        write_report(report(requests, cells), json_file)
    if plot_file:
        from api.simulate.figure import save_figure

        save_figure(requests, cells, asked.ttl_s, plot_file)
