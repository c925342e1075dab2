"""``prefixd bench codecs``: what each form of keys and values costs in bytes, exactness and time.

The text that comes with the demo is cut into passages. A model reads each one and then its continuation,
token by token, and writes one of its own, with its keys and values in one form after the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from api.bench.codecs_reader import Kept, Reader
from api.bench.timing import Work, medians
from api.demo.scenario import document
from api.prompts import encode_text
from backends.byte_planes import BytePlanes
from engine_adapter.assemble import device_named
from engine_adapter.engine.models import LoadedModel, load_model, read_tokenizer
from engine_adapter.serving_config import ServingConfig
from kvstore.errors import ConfigError

FORMS = ("float32", "bfloat16", "int8", "fp8")
"""Values of ``kv_dtype``; the others are compared with the first."""

_NUM_PASSAGES = 6
_MOST_PASSAGE_TOKENS = 192
_MOST_CONTINUED_TOKENS = 48


@dataclass(frozen=True)
class _Answers:
    """What a model did with the passages in one form: their keys and values, and what came after them.

    ``logits`` are ``[passages, tokens, vocabulary]`` for the text's continuations, ``nll`` is the mean
    negative log likelihood of these, ``greedy`` are the tokens of its own, ``step_s`` a step's time.
    """

    kept: Kept
    logits: torch.Tensor
    greedy: torch.Tensor
    nll: float
    step_s: float


@dataclass
class CodecsBench:
    """Measures one model; rates are medians over ``rounds``."""

    config: ServingConfig
    rounds: int
    _first: _Answers | None = field(default=None, init=False)

    def stages(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return what to run, by form, in this order; each returns the figures of its form."""
        return {form: partial(self._bench_form, form) for form in FORMS}

    def _bench_form(self, form: str) -> dict[str, Any]:
        """Measure one form; where this device cannot do it, the figures are the reason alone."""
        try:
            model = self._load(form)
        except ConfigError as error:
            if error.setting != "kv_dtype":
                raise
            return {"refused": error.reason}
        passages, continuations = self._cut_text(model)
        reader = Reader(model, passages, continuations.shape[1])
        answers = _answers(reader, continuations)
        first = self._first = self._first or answers
        return {
            "compute_dtype": model.namespace.compute_dtype,
            "passages": len(passages),
            "passage_tokens": passages.shape[1],
            "continued_tokens": continuations.shape[1],
            "bytes_per_token": model.kv_shape.token_bytes,
            **_compared(answers, first),
            **self._bench_codes(reader, first.kept),
        }

    def _load(self, form: str) -> LoadedModel:
        return load_model(
            self.config.model,
            block_tokens=self.config.block_tokens,
            device=device_named(self.config.device),
            compute_dtype=self.config.compute_dtype,
            kv_dtype=form,
        )

    def _cut_text(self, model: LoadedModel) -> tuple[torch.Tensor, torch.Tensor]:
        """Return passages of whole blocks and what follows each: ``[passages, tokens]`` both."""
        ids = encode_text(read_tokenizer(self.config.model), document())
        each = min(len(ids) // _NUM_PASSAGES, model.context_tokens - 1)
        num_continued = min(_MOST_CONTINUED_TOKENS, each // 4)
        step = model.kv_shape.block_tokens
        num_tokens = min(_MOST_PASSAGE_TOKENS, each - num_continued) // step * step
        if not num_tokens:
            raise ConfigError(
                "block_tokens", f"{step} is more than a passage of {each - num_continued} tokens"
            )
        text = torch.tensor(ids[: _NUM_PASSAGES * each]).view(_NUM_PASSAGES, each)
        return text[:, :num_tokens], text[:, num_tokens : num_tokens + num_continued]

    def _bench_codes(self, reader: Reader, kept: Kept) -> dict[str, Any]:
        """Keep the first form's keys and values in this one: errors, rates, and how far they compress."""
        num_clamped = reader.write(kept)
        found = reader.kept()
        sides: dict[str, Work] = {"encode": partial(reader.write, kept), "decode": reader.kept}
        took_s = medians(sides, self.rounds)
        nbytes = sum(tensor.numel() * 4 for layer in kept for tensor in layer)
        num_keys = sum(keys.numel() for keys, _ in kept)
        keys, values = ([(layer[kind], other[kind]) for layer, other in zip(kept, found, strict=True)]
                        for kind in (0, 1))  # fmt: skip
        return {
            "key_error": _relative_error(keys),
            "value_error": _relative_error(values),
            "largest_key_error": _largest_error(keys),
            "largest_value_error": _largest_error(values),
            "clamped_share": num_clamped / num_keys,
            "encode_bytes_per_s": nbytes / took_s["encode"],
            "decode_bytes_per_s": nbytes / took_s["decode"],
            "zstd_planes_ratio": _compressed_ratio(reader),
        }


def _answers(reader: Reader, continuations: torch.Tensor) -> _Answers:
    first = reader.read_passages()
    kept = reader.kept()
    logits, times_s = [first], list[float]()
    for index in range(continuations.shape[1] - 1):
        began_s = time.perf_counter()
        logits.append(reader.step(continuations[:, index], index))
        times_s.append(time.perf_counter() - began_s)
    forced = torch.stack(logits, 1)
    nll = float(cross_entropy(forced.flatten(0, 1), continuations.flatten().to(forced.device)))
    return _Answers(kept, forced, _greedy(reader, first, continuations.shape[1]), nll, median(times_s))


def _greedy(reader: Reader, first: torch.Tensor, num_tokens: int) -> torch.Tensor:
    tokens = [first.argmax(-1)]
    while len(tokens) < num_tokens:
        tokens.append(reader.step(tokens[-1], len(tokens) - 1).argmax(-1))
    return torch.stack(tokens, 1)


def _compared(answers: _Answers, first: _Answers) -> dict[str, float]:
    return {
        "tokens_equal": _mean(answers.greedy == first.greedy),
        "choices_equal": _mean(answers.logits.argmax(-1) == first.logits.argmax(-1)),
        "logit_difference": _mean((answers.logits - first.logits).abs()),
        "perplexity": math.exp(answers.nll),
        "perplexity_over_float32": math.exp(answers.nll - first.nll) - 1,
        "step_s": answers.step_s,
    }


def _mean(numbers: torch.Tensor) -> float:
    return float(numbers.float().mean())


def _relative_error(layers: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the RMS of the error over that of the numbers, the mean over layers."""
    return sum(float((found - exact).norm() / exact.norm()) for exact, found in layers) / len(layers)


def _largest_error(layers: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the largest error over the RMS of its layer's numbers."""
    return max(float((found - exact).abs().max() / exact.square().mean().sqrt()) for exact, found in layers)


def _compressed_ratio(reader: Reader) -> float:
    shape = reader.shape
    codec = BytePlanes(item_bytes=shape.dtype.itemsize)
    room = memoryview(bytearray(shape.block_bytes))
    stored_bytes, num_blocks = 0, 0
    for block in reader.blocks_at_rest():
        stored_bytes += codec.encode(block, room) or shape.block_bytes
        num_blocks += 1
    return num_blocks * shape.block_bytes / stored_bytes
