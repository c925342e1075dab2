"""What the codec ``zstd-planes`` makes of real KV: ratio, and bytes per second in and out on one core.

    python benchmarks/codec.py [--model DIR] [--tokens N] [--rounds N] [--json FILE]

The KV is that of this project's own documentation, computed by a model in bf16, in blocks of 16
tokens as they lie at rest. Every block is timed in every round; rates are of the median time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from api.folders import cache_folder
from backends.byte_planes import BytePlanes

_BLOCK_TOKENS = 16
_REPOSITORY = Path(__file__).parent.parent


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=cache_folder() / "SmolLM2-135M-Instruct")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    blocks = kv_blocks(arguments.model, arguments.tokens)
    torch.set_num_threads(1)
    told = json.dumps({"model": arguments.model.name, **measure(blocks, arguments.rounds)}, indent=1)
    print(told)
    if arguments.json:
        arguments.json.write_text(told + "\n")


def kv_blocks(model_folder: Path, num_tokens: int) -> list[bytes]:
    """Return the KV of the documentation's first tokens: layer, K then V, token, head, dimension."""
    pages = [_REPOSITORY / "README.md", *sorted((_REPOSITORY / "docs").glob("*.md"))]
    text = "\n".join(page.read_text() for page in pages)
    tokens = AutoTokenizer.from_pretrained(model_folder)(text, return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    with torch.no_grad():
        cache = model(tokens[:, :num_tokens], use_cache=True).past_key_values
    layers = [torch.stack((layer.keys[0], layer.values[0])) for layer in cache.layers]
    by_token = torch.stack(layers).transpose(2, 3)
    return [
        bytes(by_token[:, :, end - _BLOCK_TOKENS : end].contiguous().view(torch.uint8).numpy().data)
        for end in range(_BLOCK_TOKENS, by_token.shape[2] + 1, _BLOCK_TOKENS)
    ]


def measure(blocks: Sequence[bytes], num_rounds: int) -> dict[str, Any]:
    """Encode and decode every block ``num_rounds`` times; all that is decoded must be what was encoded."""
    codec = BytePlanes(item_bytes=2)
    block_bytes = len(blocks[0])
    room, out = memoryview(bytearray(block_bytes)), memoryview(bytearray(block_bytes))
    encode_s, decode_s, stored_bytes = [], [], 0
    for round_number in range(num_rounds):
        for block in blocks:
            raw = memoryview(block)
            nbytes, seconds = _timed(partial(codec.encode, raw, room))
            encode_s.append(seconds)
            if round_number == 0:
                stored_bytes += nbytes or block_bytes
            if nbytes is None:
                continue
            _, seconds = _timed(partial(codec.decode, room[:nbytes], out))
            decode_s.append(seconds)
            assert out == raw
    return {
        "block_bytes": block_bytes,
        "blocks": len(blocks),
        "samples": len(encode_s),
        "ratio": round(block_bytes * len(blocks) / stored_bytes, 4),
        "encode_bytes_per_s": round(block_bytes / median(encode_s)),
        "decode_bytes_per_s": round(block_bytes / median(decode_s)),
    }


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began_s = time.perf_counter()
    value = call()
    return value, time.perf_counter() - began_s


if __name__ == "__main__":
    main()
