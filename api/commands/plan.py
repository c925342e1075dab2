"""``prefixd plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "The model"
_COMPUTING = "What computes"
_OUTPUT = "Output"


def plan(
    model: Annotated[
        Path | None,
        typer.Option(help="Folder with the model's config.json.", metavar="DIR", rich_help_panel=_MODEL),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Layers.", rich_help_panel=_MODEL)] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.", rich_help_panel=_MODEL)] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(help="Heads of keys and values [default: as --heads].", rich_help_panel=_MODEL),
    ] = None,
    head_dim: Annotated[int | None, typer.Option(help="Numbers in a head.", rich_help_panel=_MODEL)] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            help="Parameters that a token meets, like 8B; of experts the active ones.", rich_help_panel=_MODEL
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(
            help="Form of the keys and values: bfloat16, float32, fp8, int8.", rich_help_panel=_MODEL
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="H100 or H200 [default: H100].", rich_help_panel=_COMPUTING)
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            help="What of the device's peak prefill gets [default: 0.43].", rich_help_panel=_COMPUTING
        ),
    ] = None,
    prefill_tok_s: Annotated[
        float | None,
        typer.Option(
            help="Instead: tokens/s over a first chunk, as measured.",
            min=1e-3,
            max=1e9,
            rich_help_panel=_COMPUTING,
        ),
    ] = None,
    chunk_tokens: Annotated[
        int, typer.Option(help="Most tokens computed in one step.", min=1, rich_help_panel=_COMPUTING)
    ] = 2048,
    block_tokens: Annotated[
        int, typer.Option(help="Tokens in a block.", min=1, rich_help_panel=_COMPUTING)
    ] = 16,
    tier: Annotated[
        list[str] | None,
        typer.Option(help="A preset's name, or a tier as name=rate,latency; again for more.", metavar="TIER"),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Prompt lengths [default: doubling from 128 to the context].", metavar="N,N"),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write it to this file.", rich_help_panel=_OUTPUT)
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Also draw it, as .png, .svg or .pdf.", metavar="FILE", rich_help_panel=_OUTPUT
        ),
    ] = None,
) -> None:
    """Tell on paper when to reload and when to recompute: break-even, split and TTFT over prompt lengths.

    From a model's shape, what computes and what the tiers deliver; nothing is measured. Tiers by name: host,
    nvme, net-10g, net-25g, net-100g, net-200g, redis. A tier that is named is shown in detail, with a plot in
    letters. How to read it stands in docs/planning.md.

    For example:

        prefixd plan --model ~/models/Llama-3.1-8B --tier net-25g --plot plan.png

        prefixd plan --layers 32 --heads 32 --kv-heads 8 --head-dim 128 --parameters 7B --device H200

        prefixd plan --model ~/models/Qwen3-0.6B --prefill-tok-s 900 --tier nfs=200MB/s,2ms --lengths 512,4096
    """
    from api.bench.report import check_report_file, write_report
    from api.plan.inputs import Computing, model_shape, question
    from api.plan.outlook import outlook
    from api.plan.report import report
    from api.plan.table import details, summary

    given = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "parameters": parameters,
        "kv_dtype": kv_dtype,
    }
    shape = model_shape(model, given)
    computing = Computing(device, utilisation, prefill_tok_s)
    asked = question(shape, computing, tier or (), lengths, chunk_tokens, block_tokens)
    check_report_file(json_file)
    _check_plot_file(plot_file)
    expected = outlook(asked.server, asked.tiers, asked.lengths)
    typer.echo(summary(asked, expected))
    for name in asked.tiers if tier else ():
        typer.echo(f"\n{details(asked, name, expected)}")
    if json_file:
        write_report(report(asked, expected), json_file)
    if plot_file:
        from api.plan.figure import save_figure

        save_figure(asked, expected, plot_file)


def _check_plot_file(file: Path | None) -> None:
    """Find out before anything is shown whether it can be drawn. Raises ``ConfigError``."""
    if file is None:
        return
    import importlib

    from api.bench.report import check_report_file
    from kvstore.errors import ConfigError

    if file.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise ConfigError("plot", f"{file} ends in neither .png nor .svg nor .pdf")
    importlib.import_module("api.plan.figure")
    check_report_file(file, "plot")
