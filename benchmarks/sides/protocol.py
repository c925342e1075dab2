"""How ``benchmarks/engines.py`` talks to an engine in its own process: one JSON object a line, both ways.

Only what comes with Python is imported, because each side runs in the environment of its own engine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Command = Callable[..., Any]
Prompts = Sequence[Sequence[int]]


def serve(load: Callable[[], Mapping[str, Command]]) -> None:
    """Load an engine, then answer lines ``{"do": NAME, ...arguments}`` with ``{"result": ...}``.

    Ends with the input. What engines print goes to standard error. The first line out says that the side
    is ready.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    commands = load()
    print(json.dumps({"result": "ready"}), file=answers)
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps({"result": commands[arguments.pop("do")](**arguments)}), file=answers)
