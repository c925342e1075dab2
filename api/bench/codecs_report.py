"""How ``prefixd bench codecs`` tells what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.table import Table

_CAPTION = """\
Errors of keys and values are those of writing them once, over their RMS. Tokens: share of equal ones in
greedy answers; choices: the same after each token of the text; logits: mean difference; perplexity of the
text. All against float32. GB/s are of fp32 numbers in and out; zstd: ratio of zstd-planes on top."""

_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("B/token", lambda figures: f"{figures['bytes_per_token']}"),
    ("keys", lambda figures: f"{figures['key_error']:.2%}"),
    ("values", lambda figures: f"{figures['value_error']:.2%}"),
    ("clamped", lambda figures: f"{figures['clamped_share']:.1e}"),
    ("tokens", lambda figures: f"{figures['tokens_equal']:.1%}"),
    ("choices", lambda figures: f"{figures['choices_equal']:.1%}"),
    ("logits", lambda figures: f"{figures['logit_difference']:.3f}"),
    ("perplexity", lambda figures: f"{figures['perplexity_over_float32']:+.2%}"),
    ("in", lambda figures: f"{figures['encode_bytes_per_s'] / 1e9:.2f}"),
    ("out", lambda figures: f"{figures['decode_bytes_per_s'] / 1e9:.2f}"),
    ("zstd", lambda figures: f"{figures['zstd_planes_ratio']:.2f}"),
    ("step", lambda figures: f"{figures['step_s'] * 1000:.0f} ms"),
)


def codecs_table(report: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the figures by form; of one that cannot be had, the reason."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.caption = _CAPTION
    shown.caption_justify = "left"
    shown.add_column("", no_wrap=True)
    for name, _ in _COLUMNS:
        shown.add_column(name, justify="right", no_wrap=True)
    for form, figures in report.items():
        if reason := figures.get("refused"):
            shown.caption = f"{form}: {reason}\n{shown.caption}"
        else:
            shown.add_row(form, *(show(figures) for _, show in _COLUMNS))
    return shown
