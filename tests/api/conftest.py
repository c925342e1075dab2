"""A tiny random model with a real tokenizer, served."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CONTEXT_TOKENS = 512


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Llama of 2 layers with random weights and a tokenizer of bytes."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer_of_bytes().save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_settings(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Settings]:
    """Return a maker of settings for small tiers in a folder of their own, from which all is loaded.

    The model computes faster than anything loads, so that measured costs would load nothing.
    """

    def make(**changes: object) -> Settings:
        small = {"model": model_folder, "device_bytes": "4MiB", "host_bytes": "16MiB", "disk_bytes": "32MiB"}
        folder = tmp_path_factory.mktemp("server")
        own = {"disk_path": folder / "blocks", "cache_path": folder, "reload_policy": "always-load"}
        return Settings.model_validate({**small, **own, **changes})

    return make


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings()


@pytest.fixture(scope="module")
def serving(settings: Settings) -> Iterator[Serving]:
    with closing(assemble(serving_config(settings))) as serving:
        yield serving


@pytest.fixture(scope="module")
def client(serving: Serving, settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(serving, settings)) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a Chromium without a window; without one its tests are skipped."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium here")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Return an empty page, which may do nothing that its policy forbids, and ask nobody but its server."""
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
    page = context.new_page()
    faults: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if "Security" in message.text else None)
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    yield page
    assert faults == []
    assert len(hosts) <= 1
    context.close()


def tokenizer_of_bytes() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, with words made of a few of them, and special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the cat sat on the mat and the dog sat on the cat"], trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )
