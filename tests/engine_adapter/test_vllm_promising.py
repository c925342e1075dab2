"""What the vLLM connector promises a request: from where, for how long, and what becomes of the leases."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.engine_adapter.vllm_rig import BLOCK, PROMPT, WHOLE, OpenVllm, request


def test_leases_end_when_vllm_takes_nothing_of_what_was_promised(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    asked = request(PROMPT)
    assert vllm.side.num_to_load(asked, 0) == (WHOLE, False)
    vllm.side.allocated(asked, list(range(11)), 0)
    assert vllm.store.evict(vllm.side._requests[asked.request_id].keys[0]) == WHOLE // BLOCK


def test_blocks_of_a_server_are_not_waited_for_whatever_its_tier_is_called(open_vllm: OpenVllm) -> None:
    vllm = open_vllm(loading="auto")
    vllm.serve(request(PROMPT))
    assert vllm.side.num_to_load(request(PROMPT), 0) == (WHOLE, False)
    vllm.promiser.settings = replace(vllm.settings, store="unix:///nowhere")
    assert vllm.side.num_to_load(request(PROMPT), 0) == (WHOLE, True)


@pytest.mark.parametrize("mode", ["observe", "verify"])
def test_leases_end_when_nothing_is_promised(open_vllm: OpenVllm, mode: str) -> None:
    vllm = open_vllm(mode=mode, verify_share=1.0)
    vllm.serve(request(PROMPT))
    asked = request(PROMPT)
    assert vllm.side.num_to_load(asked, 0) == (0, False)
    vllm.promiser.prober.close()
    assert vllm.store.evict(vllm.side._requests[asked.request_id].keys[0]) == WHOLE // BLOCK


def test_a_block_is_where_the_slowest_of_its_ranks_has_it(open_vllm: OpenVllm) -> None:
    vllm = open_vllm([], ranks=2)
    tracked = vllm.side._tracked(request(PROMPT))
    assert tracked is not None
    fast, slow = vllm.store.tier_names[0], vllm.store.tier_names[-1]
    hits = [SimpleNamespace(tiers=tiers) for tiers in ([fast, slow, fast], [slow, fast, fast])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm.store, "lookup", lambda *_args, **_options: hits.pop())
        assert vllm.promiser._found(tracked) == [slow, slow, fast]


def test_a_promise_is_given_anew_before_its_leases_end(
    open_vllm: OpenVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    asked = request(PROMPT)
    tracked = vllm.side._tracked(asked)
    assert tracked is not None
    promise = vllm.promiser.promised(tracked, 0)
    assert vllm.promiser.promised(tracked, 0) is promise
    assert promise.until_s < min(hit.deadline_s for hit in tracked.hits)
    monkeypatch.setattr(vllm.store, "now_s", lambda: promise.until_s)
    assert vllm.promiser.promised(tracked, 0) is not promise


def test_media_that_do_not_answer_are_not_waited_for(
    open_vllm: OpenVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    now_s, abandoned = vllm.store.now_s(), list[bool]()
    silent = SimpleNamespace(done=lambda: False, abandon=lambda: abandoned.append(True))
    monkeypatch.setattr(vllm.store, "inquire", lambda *_args, **_options: silent)
    asked = request(PROMPT)
    monkeypatch.setattr(vllm.store, "now_s", lambda: now_s)
    assert vllm.side.num_to_load(asked, 0) == (None, False)
    monkeypatch.setattr(vllm.store, "now_s", lambda: now_s + 10)
    assert vllm.side.num_to_load(asked, 0) == (WHOLE, False)
    assert abandoned == [True]
