"""What the page says to type, read by vLLM itself."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from engine_adapter.vllm.settings import AdapterSettings

PAGE = Path(__file__).parents[3] / "docs" / "vllm.md"


def test_the_documented_command_is_one() -> None:
    command = PAGE.read_text(encoding="utf-8").partition("$ vllm serve ")[2].partition("```")[0]
    given = make_arg_parser(FlexibleArgumentParser()).parse_args(shlex.split(command))
    transfer = given.kv_transfer_config
    assert (given.model_tag, transfer.kv_role) == ("MODEL", "kv_both")
    assert hasattr(importlib.import_module(transfer.kv_connector_module_path), transfer.kv_connector)
    assert AdapterSettings.parse(transfer.kv_connector_extra_config).host_bytes == 16 << 30
