"""What only a GPU can show, in under eight minutes on one H100 or H200: one table, and one JSON.

    python benchmarks/gpu.py [--smoke] [--parts copies,decode] [--minutes 8] [--json FILE] [--folder DIR]

Uses a random model of Llama-3.1-8B's shape that is made on the GPU, so that nothing is fetched. Parts:

    copies      blocks to the device and back beside plain page-locked copies of the same bytes
    exact       fp32: tokens equal to the clean run's from every tier and in every split
    rounded     bf16: the same by the rule for 16 bits, which has to see one wrong block
    attention   every attention backend: whether it is right, and its time by layer
    decode      decoding beside what the device's memory allows
    ttft        time to the first token: computed, from device, host and disk, and both at once
    cases       faults that others shipped, under load
    grid        measured costs against fixed rules, on the disk as it is and throttled

A part that is wrong or breaks stops no other; the status is 1 then. One that could pass ``--minutes`` is
skipped. ``--smoke`` is the short form: a model of one billion parameters, the parts copies, exact, rounded
and ttft, three minutes. ``--device cpu --tiny`` runs everything in miniature, to see that it works.

Beside torch and transformers (with tokenizers and safetensors) it needs ``xxhash``. To bring that along to a
machine that has it not: ``pip install --target DIR xxhash`` on one with the same Python, and there
``PYTHONPATH=DIR``.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "xxhash")


def run() -> None:
    """Run the benchmark, or say what is missing for it."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise SystemExit(f"not installed: {', '.join(missing)}; the head of {__file__} says what to do")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.on_gpu.command import main  # noqa: PLC0415 - what it needs is there, from here on

    main(__doc__ or "")


if __name__ == "__main__":
    run()
