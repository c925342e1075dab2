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
_PREFILL = typer.Option(help="Prefill's tokens/s: tells TTFT and saved device time too.", min=1e-3, max=1e9)
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
    json_file: Annotated[Path | None, _JSON] = None,
    plot_file: Annotated[Path | None, _PLOT] = None,
) -> None:
    """Replay a trace of requests and tell what each eviction policy would have hit, at each capacity.

    Nothing is computed or stored: the policies and books of a server's tier decide, over block numbers. A
    trace is one's own or a published one, in Mooncake's form (`timestamp` in ms, `input_length`, `hash_ids`;
    `session` and `stop` may be added) or in Qwen-Bailian's (`chat_id`). A plot has `lru` and `OPT` as its
    bounds. How to read it stands in docs/simulate.md.

    For example:

        prefixd simulate conversation_trace.jsonl

        prefixd simulate agents.jsonl.xz --policy lru,OPT --capacity-blocks 2000,8000,32000 --plot agents.png

        prefixd simulate qwen_traceA_blksz_16.jsonl --policy lru --ttl 600 --json a.json
    """
    from rich.console import Console

    from api.bench.report import check_report_file, write_report
    from api.figures import check_figure_file
    from api.simulate.report import report, table
    from api.simulate.run import make_caches, question, run_cells, usual_capacities
    from api.simulate.trace import read_trace
    from kvstore.registry import Registry
    from policies.builtin import register_builtin

    registry = Registry()
    register_builtin(registry)
    asked = question(policy, capacity_blocks, ttl_s, registry, is_drawn=plot_file is not None, hints=hints)
    check_report_file(json_file)
    check_figure_file(plot_file)
    with Console(stderr=True).status(f"reading {trace.name}"):
        requests = read_trace(trace, block_tokens)
    makers = make_caches(asked, requests, registry)
    cells = run_cells(requests, makers, asked.capacities or usual_capacities(requests))
    Console().print(table(requests, cells, asked.ttl_s, prefill_tok_s))
    if json_file:
        write_report(report(requests, cells, prefill_tok_s), json_file)
    if plot_file:
        from api.simulate.figure import save_figure

        save_figure(requests, cells, asked.ttl_s, plot_file)
