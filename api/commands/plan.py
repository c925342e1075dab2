"""``prefixd plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_MODEL = "The model"
_COMPUTING = "What computes"
_OUTPUT = "Output"


def _option(panel: str | None, help_text: str, *names: str, **facts: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **facts)


_FOLDER = _option(_MODEL, "Folder with the model's config.json.", metavar="DIR")
_LAYERS = _option(_MODEL, "Layers.")
_HEADS = _option(_MODEL, "Query heads.")
_KV_HEADS = _option(_MODEL, "Heads of keys and values [default: as --heads].")
_HEAD_DIM = _option(_MODEL, "Numbers in a head.")
_PARAMETERS = _option(_MODEL, "Parameters that a token meets, like 8B; of experts the active ones.")
_KV_DTYPE = _option(_MODEL, "Form of the keys and values: bfloat16, float32, fp8, int8.")
_DEVICE = _option(_COMPUTING, "H100 or H200 [default: H100].")
_UTILISATION = _option(_COMPUTING, "What of the device's peak prefill gets [default: 0.43].")
_PREFILL = _option(_COMPUTING, "Instead: tokens/s over a first chunk, as measured.", min=1e-3, max=1e9)
_CHUNK = _option(_COMPUTING, "Most tokens computed in one step.", min=1)
_BLOCK = _option(_COMPUTING, "Tokens in a block.", min=1)
_TIER = _option(None, "A preset's name, or a tier as name=rate,latency; again for more.", metavar="TIER")
_LENGTHS = _option(None, "Prompt lengths [default: doubling from 128 to the context].", metavar="N,N")
_JSON = _option(_OUTPUT, "Also write it to this file.", "--json")
_PLOT = _option(_OUTPUT, "Also draw it, as .png, .svg or .pdf.", "--plot", metavar="FILE")


def plan(
    model: Annotated[Path | None, _FOLDER] = None,
    layers: Annotated[int | None, _LAYERS] = None,
    heads: Annotated[int | None, _HEADS] = None,
    kv_heads: Annotated[int | None, _KV_HEADS] = None,
    head_dim: Annotated[int | None, _HEAD_DIM] = None,
    parameters: Annotated[str | None, _PARAMETERS] = None,
    kv_dtype: Annotated[str | None, _KV_DTYPE] = None,
    device: Annotated[str | None, _DEVICE] = None,
    utilisation: Annotated[float | None, _UTILISATION] = None,
    prefill_tok_s: Annotated[float | None, _PREFILL] = None,
    chunk_tokens: Annotated[int, _CHUNK] = 2048,
    block_tokens: Annotated[int, _BLOCK] = 16,
    tier: Annotated[list[str] | None, _TIER] = None,
    lengths: Annotated[str | None, _LENGTHS] = None,
    json_file: Annotated[Path | None, _JSON] = None,
    plot_file: Annotated[Path | None, _PLOT] = None,
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
    from api.figures import check_figure_file
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
    check_figure_file(plot_file)
    expected = outlook(asked.server, asked.tiers, asked.lengths)
    typer.echo(summary(asked, expected))
    for name in asked.tiers if tier else ():
        typer.echo(f"\n{details(asked, name, expected)}")
    if json_file:
        write_report(report(asked, expected), json_file)
    if plot_file:
        from api.plan.figure import save_figure

        save_figure(asked, expected, plot_file)
