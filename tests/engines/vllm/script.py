"""Runs inside vLLM's environment: reads what to do as JSON from stdin, and prints what came of it.

``{"model": folder, "options": {...}, "connector": {...} | null, "do": [{"generate": [[tokens], ...], ...}]}``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq
from vllm import LLM, SamplingParams
from vllm.config import KVEventsConfig, KVTransferConfig
from vllm.distributed.kv_events import KVEventBatch
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest


def main() -> None:
    told = json.load(sys.stdin)
    connector = told.get("connector")
    transfer = None
    if connector is not None:
        transfer = KVTransferConfig(
            kv_connector="PrefixdConnector", kv_connector_module_path="engine_adapter.vllm",
            kv_role="kv_both", kv_connector_extra_config=connector,
        )  # fmt: skip
    options: dict[str, Any] = {
        "dtype": "bfloat16", "max_model_len": 2048, "max_num_batched_tokens": 2048, "enforce_eager": True,
        "skip_tokenizer_init": True, "disable_log_stats": False, "kv_transfer_config": transfer,
    }  # fmt: skip
    heard = None
    if told.get("events"):
        options["kv_events_config"] = KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=told["events"].replace("127.0.0.1", "*"),
            topic="",
        )
        heard = _listener(told["events"])
    llm = LLM(told["model"], **options | told.get("options", {}))
    results = [_done(llm, each, heard) for each in told["do"]]
    Path(told["out"]).write_text(json.dumps(results), encoding="utf-8")


def _listener(endpoint: str) -> Any:
    listener = zmq.Context.instance().socket(zmq.SUB)
    listener.connect(endpoint)
    listener.setsockopt(zmq.SUBSCRIBE, b"")
    return listener


def _events(listener: Any, wait_s: float) -> list[dict[str, Any]]:
    """Return what was published: each event's kind, medium, and hashes."""
    events = []
    while listener.poll(wait_s * 1000):
        batch = msgspec.msgpack.decode(listener.recv_multipart()[-1], type=KVEventBatch)
        for event in batch.events:
            hashes = [str(each) for each in getattr(event, "block_hashes", [])]
            kind = type(event).__name__
            events.append({"kind": kind, "medium": getattr(event, "medium", None), "hashes": hashes})
    return events


def _done(llm: LLM, action: dict[str, Any], heard: Any) -> Any:
    if "events" in action:
        return _events(heard, action["events"])
    if "counts" in action:
        return {
            each.name.partition(":prefixd_")[2]: each.value
            for each in llm.get_metrics()
            if "prefixd" in each.name
        }
    if "abandon" in action:
        return _abandoned(llm, action["abandon"], action["beside"])
    if "reset" in action:
        return llm.llm_engine.reset_prefix_cache(reset_connector=action["reset"] == "all")
    prompts = []
    for tokens in action["generate"]:
        prompt = TokensPrompt(prompt_token_ids=tokens)
        if action.get("salt"):
            prompt["cache_salt"] = action["salt"]
        prompts.append(prompt)
    sampling = SamplingParams(
        temperature=0, max_tokens=action.get("max_tokens", 16), ignore_eos=True, logprobs=1, detokenize=False
    )
    lora = action.get("lora")
    request = LoRARequest(lora["name"], lora["id"], lora["path"]) if lora else None
    outputs = llm.generate(prompts, sampling, use_tqdm=False, lora_request=request)
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [next(iter(each.values())).logprob for each in output.outputs[0].logprobs or []],
            "cached": output.num_cached_tokens,
            "reason": output.outputs[0].finish_reason,
        }
        for output in outputs
    ]


def _abandoned(llm: LLM, tokens: list[int], beside: list[int]) -> list[int]:
    """Abort a request after its first step; return what one is told that came in the same step."""
    engine, told = llm.llm_engine, list[int]()
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    for name, prompt in (("abandoned", tokens), ("beside", beside)):
        engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), sampling)
    engine.step()
    engine.abort_request(["abandoned"])
    while engine.has_unfinished_requests():
        for output in engine.step():
            told = list(output.outputs[0].token_ids)
    return told


if __name__ == "__main__":
    main()
