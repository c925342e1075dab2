"""Salts, resets, KV events, tensor parallelism with a server as the store: one process each."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.serving_config import SidecarConfig, TierSetup
from engine_adapter.sidecar import open_sidecar
from tests.engines.vllm.conftest import Run

pytestmark = pytest.mark.timeout(900)

LOAD = {"reload_policy": "always-load"}
IN_MEMORY = LOAD | {"host_bytes": 256 << 20}
WHOLE = 992  # of the first prompt of 1,000 tokens, in blocks of 32


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def test_salts_are_kept_apart_and_a_reset_of_everything_forgets(
    run_vllm: Run, prompts: list[list[int]], tmp_path: Path
) -> None:
    ask = {"generate": [prompts[0]], "max_tokens": 8}
    own, all_ = {"reset": "own"}, {"reset": "all"}
    do = [ask, own, ask, ask | {"salt": "a"}, own, ask | {"salt": "a"}, ask | {"salt": "b"}, all_, ask]
    connector = IN_MEMORY | {"cache_path": str(tmp_path)}
    done = run_vllm(do, connector, block_size=32)

    answers = [answer[0] for answer in done if isinstance(answer, list)]
    assert [answer["cached"] for answer in answers] == [0, WHOLE, 0, WHOLE, 0, 0]
    assert len({tuple(answer["tokens"]) for answer in answers}) == 1
    assert [answer for answer in done if isinstance(answer, bool)] == [True, True, True]


def test_many_at_once_and_too_little_room_for_all(
    run_vllm: Run, prompts: list[list[int]], tmp_path: Path
) -> None:
    """vLLM's pool holds about two of them: requests are preempted, and what was lost is loaded."""
    many = [prompt[:600] for prompt in prompts] + [prompts[0][100:700], prompts[1][50:500]]
    alone = [{"generate": [prompt], "max_tokens": 40} for prompt in many]
    connector = IN_MEMORY | {"cache_path": str(tmp_path)}
    clean = run_vllm(alone, block_size=32)
    together = {"generate": many, "max_tokens": 40}
    pressed = run_vllm(
        [together, together], connector, block_size=32, num_gpu_blocks_override=48,
        max_num_batched_tokens=256, max_model_len=1024,
    )  # fmt: skip

    wanted = [answer["tokens"] for (answer,) in clean]
    for answers in pressed:
        assert [answer["reason"] for answer in answers] == ["length"] * len(many)
        same = sum(answer["tokens"] == tokens for answer, tokens in zip(answers, wanted, strict=True))
        assert same >= len(many) - 1  # in 16 bits another batch may tip a token over


def test_routers_hear_of_blocks_that_are_stored_and_of_a_reset(
    run_vllm: Run, prompts: list[list[int]], tmp_path: Path
) -> None:
    ask = {"generate": [prompts[1]], "max_tokens": 2}
    do = [ask, {"events": 2.0}, {"reset": "all"}, ask, {"events": 2.0}]
    connector = IN_MEMORY | {"cache_path": str(tmp_path)}
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    _, first, _, _, second = run_vllm(do, connector, events=endpoint, block_size=32)

    own = {name for event in first if event["medium"] == "GPU" for name in event["hashes"]}
    ours = [name for event in first if event["medium"] == "CPU" for name in event["hashes"]]
    assert sorted(ours) == sorted(own)
    assert len(ours) == 500 // 32
    assert "AllBlocksCleared" in {event["kind"] for event in second}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    address = tmp_path / "prefixd.sock"
    tiers = (TierSetup("host", 256 << 20, "lru", "through"),)
    sidecar = open_sidecar(SidecarConfig(tiers, None, {}, address))
    yield f"unix://{address}"
    sidecar.close()


def test_two_ranks_with_tiers_of_their_own(
    run_vllm: Run, prompts: list[list[int]], own_store: dict[str, Any]
) -> None:
    ask = [{"generate": [prompt], "max_tokens": 8} for prompt in prompts[:2]]
    options = {"block_size": 32, "tensor_parallel_size": 2}
    stored, loaded = (run_vllm(ask, own_store | LOAD, **options) for _ in range(2))

    assert [answer["cached"] for (answer,) in loaded] == [WHOLE, 480]
    assert [answer["tokens"] for (answer,) in loaded] == [answer["tokens"] for (answer,) in stored]


def test_a_server_as_the_store(run_vllm: Run, prompts: list[list[int]], server: str, tmp_path: Path) -> None:
    connector = LOAD | {"store": server, "cache_path": str(tmp_path / "cache")}
    ask = [{"generate": [prompt], "max_tokens": 8} for prompt in prompts[:2]]
    stored, loaded = (run_vllm(ask, connector, block_size=32) for _ in range(2))

    assert [answer["cached"] for (answer,) in loaded] == [WHOLE, 480]
    assert [answer["tokens"] for (answer,) in loaded] == [answer["tokens"] for (answer,) in stored]
