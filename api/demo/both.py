"""The end of the demonstration: one prompt at break-even is computed, loaded, and both at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from api.bench.reload_plan import Arm, Cell, Known
from api.bench.reload_runs import Outcome, running
from api.demo.scenario import document
from api.quantities import format_rate
from api.serving_config import serving_config
from api.settings import Settings

NUM_STEPS = 4
_PROMPT_TOKENS = 1024
_LATENCY_S = 0.01
_SETTINGS = {"compute_dtype": "float32", "kv_dtype": "float32", "device_bytes": "192MiB"}
_BAR_WIDTH = 48
_LABEL_WIDTH = 9


@dataclass(frozen=True, slots=True)
class Ways:
    """TTFT in seconds by way, the rate of break-even, why both was chosen, and whether answers were clean."""

    prompt_tokens: int
    break_even_bytes_per_s: float
    ttft_s: dict[str, float]
    reason: str
    are_equal: bool


def three_ways(model: Path, workspace: Path, step: Callable[[str], None]) -> Ways:
    """Store a prompt on a disk tier, throttle it to break-even, and answer it in three ways.

    Calls ``step`` ``NUM_STEPS`` times with what begins. Blocks for some ten seconds.
    """
    step("one prompt, stored on a slow tier")
    settings = Settings.model_validate({**_SETTINGS, "model": model, "disk_path": workspace})
    config = serving_config(settings)
    with running(config, workspace / "both") as runner:
        prompt = list(runner.tokenizer.encode(document()))[:_PROMPT_TOKENS]
        runner.store([prompt])
        step("computing it")
        computed = runner.computed(len(prompt))
        known = Known({len(prompt): _ttft_s(computed)}, {}, config.load_deadline_s)
        cell = Cell(len(prompt), 1.0, _LATENCY_S)
        step("loading it at break-even")
        loaded = runner.measure(cell, Arm("always-load"), known)
        step("both at once")
        both = runner.measure(cell, Arm("measured"), known)
        rate = runner.prompt_bytes(len(prompt)) / _ttft_s(computed)
    (plan,) = both.plans
    outcomes = {"compute": computed, "load": loaded, "both": both}
    return Ways(
        len(prompt),
        rate,
        {way: _ttft_s(outcome) for way, outcome in outcomes.items()},
        plan.reason if plan else "nothing could be loaded",
        all(outcome.is_equal for outcome in outcomes.values()),
    )


def shown(ways: Ways) -> str:
    """Return the three bars over an axis in seconds, and the sentence of the plan."""
    longest_s = max(ways.ttft_s.values())
    lines = [
        f"{way:{_LABEL_WIDTH}}{_bar(ttft_s / longest_s)} {ttft_s:.2f} s"
        for way, ttft_s in ways.ttft_s.items()
    ]
    rate = format_rate(ways.break_even_bytes_per_s)
    title = f"TTFT of one prompt of {ways.prompt_tokens} tokens on a tier throttled to break-even, {rate}:"
    return "\n".join([title, "", *lines, *_axis(longest_s), "", ways.reason])


def _bar(share: float) -> str:
    return "█" * max(1, round(share * _BAR_WIDTH))


def _axis(longest_s: float) -> list[str]:
    """Return a line with a mark at each quarter, and the seconds below them."""
    quarter = _BAR_WIDTH // 4
    margin = " " * _LABEL_WIDTH
    marks = "└" + ("─" * (quarter - 1) + "┴") * 4
    seconds = "".join(f"{longest_s * part / 4:<{quarter}.2f}" for part in range(5))
    return [margin + marks, f"{margin}{seconds.rstrip()} s"]


def _ttft_s(outcome: Outcome) -> float:
    return outcome.sample.ttft_s[0]
