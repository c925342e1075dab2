"""Whether memory stays within budgets plus weights plus 1 GB over thousands of requests.

    python benchmarks/soak.py MODEL_DIR [--requests 2000] [--json FILE]

Conversations of random length come and go, eight at a time; a third of all requests continue an
earlier one. The JSON says what was resident at most, beside what it may be.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from rich.progress import track

from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.request import Request, Sampling
from engine_adapter.serving_config import ServingConfig, TierSetup

_DEVICE_BYTES = 256 << 20
_HOST_BYTES = 256 << 20
_DISK_BYTES = 512 << 20
_AT_A_TIME = 8
_SLACK_BYTES = 10**9


def main() -> None:
    """Run the soak and write its figures."""
    arguments = _arguments()
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(assemble(_config(arguments.model, Path(folder)))) as serving,
    ):
        weights_bytes = sum(
            parameter.numel() * parameter.element_size()
            for parameter in serving.model_facts.model.parameters()
        )
        at_start, most, tokens = _soak(serving, arguments.requests)
        serving.engine.check()
        serving.store.check()
    limit = weights_bytes + _DEVICE_BYTES + _HOST_BYTES + _SLACK_BYTES
    report = {
        "requests": arguments.requests,
        "resident_at_start_bytes": at_start,
        "resident_most_bytes": most,
        "limit_bytes": limit,
        "is_within": most <= limit,
        "tokens_by_source": tokens,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


def _soak(serving: Serving, num_requests: int) -> tuple[int, int, dict[str, int]]:
    """Return resident bytes at the start and at most, and the prompt tokens by source."""
    at_start = _most_resident_bytes()
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        requests = _requests(num_requests, serving.model_facts.vocab_size)
        for answer in track(threads.map(serving.engine.generate, requests), total=num_requests):
            if answer.error is not None:
                raise SystemExit(answer.error)
    return at_start, _most_resident_bytes(), dict(serving.engine.statistics().tokens_by_source)


def _most_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _requests(num_requests: int, vocab_size: int) -> Iterator[Request]:
    rng = random.Random(17)  # noqa: S311 - the same conversations in every run
    conversations: list[list[int]] = []
    for _ in range(num_requests):
        start = rng.choice(conversations) if conversations and rng.random() < 1 / 3 else []
        prompt = [*start, *(rng.randrange(10, vocab_size) for _ in range(rng.randrange(20, 120)))][-1024:]
        conversations = [*conversations[-63:], prompt]
        yield Request(prompt, Sampling(temperature=0, max_tokens=rng.randrange(1, 6), ignore_eos=True))


def _config(model: Path, folder: Path) -> ServingConfig:
    return ServingConfig(
        model=model,
        weight_digests=folder / "digests.json",
        device="cpu",
        compute_dtype="auto",
        kv_dtype="auto",
        block_tokens=16,
        device_bytes=_DEVICE_BYTES,
        device_eviction="lru",
        tiers=(
            TierSetup("host", _HOST_BYTES, "lru", "through"),
            TierSetup("disk", _DISK_BYTES, "lru", "through", folder / "blocks"),
        ),
        default_ttl_s=3600.0,
        reload_policy="measured",
        load_deadline_s=5.0,
        mode="serve",
        verify_share=0.05,
        cost_folder=folder / "costs",
        max_batched_tokens=512,
        max_sequences=_AT_A_TIME,
        max_waiting=_AT_A_TIME,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json", type=Path, help="file for the report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
