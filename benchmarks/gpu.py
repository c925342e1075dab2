"""What only a GPU can show: equality from every tier, copy rates, TTFT computed and loaded.

    python benchmarks/gpu.py --smoke [--json FILE]

Uses a random Llama of about one billion parameters, so that nothing is fetched. ``--device cpu
--tiny`` runs the same script in miniature, to see that it works before a GPU is at hand.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.request import CacheUse, Completion, Request, Sampling
from engine_adapter.serving_config import ServingConfig, TierSetup

_TIERS = ("device", "host", "disk")
_ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Size:
    """The random model's shape, and how long the prompts are."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    prompt_tokens: int
    pool_bytes: int
    rounds: int = 3


SMOKE = Size(16, 2048, 32, 8, 32_000, prompt_tokens=8192, pool_bytes=4 << 30)
TINY = Size(2, 64, 4, 2, 500, prompt_tokens=200, pool_bytes=8 << 20)


def main() -> None:
    """Run the script."""
    arguments = _arguments()
    size = TINY if arguments.tiny else SMOKE
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        make_model(Path(folder) / "model", size)
        report: dict[str, Any] = {"device": _device_name(arguments.device), "size": asdict(size)}
        for dtype in ("float32", "bfloat16"):
            config = serving_config(Path(folder), arguments.device, dtype, size)
            with closing(assemble(config)) as serving:
                report[dtype] = measure(serving, size)
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    if not report["float32"]["tokens_equal"]:
        raise SystemExit("in float32 an answer from a tier differs from the clean run")


def measure(serving: Serving, size: Size) -> dict[str, Any]:
    """Return TTFT by source, whether answers are equal, and copy rates, for one served model."""
    rng = random.Random(5)  # noqa: S311 - prompts that are the same in every run
    ttft_s: dict[str, list[float]] = {source: [] for source in ("computed", *_TIERS)}
    are_equal = True
    for number in range(size.rounds + 1):
        prompt = [rng.randrange(10, size.vocab) for _ in range(size.prompt_tokens)]
        answers = {"computed": generate(serving, prompt, CacheUse.OFF)}
        generate(serving, prompt, CacheUse.WRITE)
        for tier in _TIERS:
            keep_only_below(serving, _TIERS[: _TIERS.index(tier)])
            answers[tier] = generate(serving, prompt, CacheUse.ON)
            if not answers[tier].usage.tokens_by_source.get(tier):
                raise SystemExit(f"nothing was loaded from {tier}: {answers[tier].usage.tokens_by_source}")
        are_equal &= len({answer.token_ids for answer in answers.values()}) == 1
        for source, answer in answers.items():
            if number and answer.usage.ttft_s is not None:
                ttft_s[source].append(answer.usage.ttft_s)
    return {
        "tokens_equal": are_equal,
        "ttft_s": {source: median(times) for source, times in ttft_s.items()},
        "copy": copy_rates(serving, size.rounds),
    }


def generate(serving: Serving, prompt: Sequence[int], cache: CacheUse) -> Completion:
    """Answer greedily and wait until everything stored has reached the disk."""
    sampling = Sampling(temperature=0, max_tokens=_ANSWER_TOKENS, ignore_eos=True)
    answer = serving.engine.generate(Request(prompt, sampling, cache))
    if answer.error is not None:
        raise SystemExit(answer.error)
    serving.engine.flush(120.0)
    return answer


def keep_only_below(serving: Serving, tiers: Sequence[str]) -> None:
    """Empty the faster tiers, so that the next one down serves the hit."""
    for tier in tiers:
        serving.clear(tier)


def copy_rates(serving: Serving, rounds: int) -> dict[str, float]:
    """Return GB/s of blocks into and out of a pool beside plain copies of the same bytes."""
    shape, device = serving.model_facts.kv_shape, serving.model_facts.device
    num_blocks = max(8, (256 << 20) // shape.block_bytes) if device.type == "cuda" else 8
    pool = torch.zeros(
        (*shape.dimensions[:2], num_blocks * shape.block_tokens, *shape.dimensions[3:]),
        dtype=shape.dtype,
        device=device,
    )
    plain = torch.empty_like(pool, device="cpu", pin_memory=device.type == "cuda")
    staging = torch.empty(
        (num_blocks, *shape.dimensions), dtype=shape.dtype, pin_memory=device.type == "cuda"
    )

    def blocks() -> list[tuple[torch.Tensor, torch.Tensor]]:
        step = shape.block_tokens
        return [
            (pool[:, :, index * step : (index + 1) * step], staging[index]) for index in range(num_blocks)
        ]

    def copy_blocks(*, into_pool: bool) -> None:
        for in_pool, at_rest in blocks():
            (in_pool.copy_(at_rest) if into_pool else at_rest.copy_(in_pool))

    gigabytes = num_blocks * shape.block_bytes / 1e9
    sides: dict[str, Callable[[], object]] = {
        "plain_to_device": lambda: pool.copy_(plain),
        "blocks_to_device": lambda: copy_blocks(into_pool=True),
        "plain_to_host": lambda: plain.copy_(pool),
        "blocks_to_host": lambda: copy_blocks(into_pool=False),
    }
    return {
        name: gigabytes / median(_seconds(work, device) for _ in range(rounds + 1))
        for name, work in sides.items()
    }


def make_model(folder: Path, size: Size) -> None:
    """Write a random Llama with a tokenizer of one word per id."""
    config = LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        vocab_size=size.vocab,
        max_position_embeddings=2 * size.prompt_tokens,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.05,
    )
    torch.manual_seed(3)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    vocabulary = {f"w{number}": number for number in range(size.vocab)}
    special = {"bos_token": "w0", "eos_token": "w1"}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=None))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers leaves it untyped


def serving_config(folder: Path, device: str, dtype: str, size: Size) -> ServingConfig:
    """Return a server with all three tiers below ``folder``."""
    tiers = (
        TierSetup("host", size.pool_bytes, "lru", "through"),
        TierSetup("disk", 2 * size.pool_bytes, "lru", "through", folder / f"blocks-{dtype}"),
    )
    return ServingConfig(
        model=folder / "model",
        weight_digests=folder / "digests.json",
        device=device,
        compute_dtype=dtype,
        kv_dtype="auto",
        block_tokens=16,
        device_bytes=size.pool_bytes,
        device_eviction="lru",
        tiers=tiers,
        default_ttl_s=None,
        reload_policy="always-load",
        load_deadline_s=30.0,
        mode="serve",
        verify_share=0.05,
        cost_folder=folder / "costs",
        max_batched_tokens=2048,
        max_sequences=64,
        max_waiting=64,
    )


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    _wait_for(device)
    began_s = time.perf_counter()
    work()
    _wait_for(device)
    return time.perf_counter() - began_s


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", required=True, help="the short form, under three minutes"
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="in miniature, for a trial on a CPU")
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("--folder", type=Path, help="where the model and the disk tier go for the run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
