"""What the page says to type, read by LMCache itself."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from lmcache.cli.commands.server import ServerCommand
from lmcache.v1.distributed.config import parse_args_to_config

from engine_adapter.lmcache.prefetch_policy import register
from engine_adapter.lmcache.settings import AdapterSettings

PAGE = Path(__file__).parents[3] / "docs" / "lmcache.md"
_COMMAND = re.compile(
    r"^\$ (?:lmcache|python -m engine_adapter\.lmcache) server (.*?)^```", re.MULTILINE | re.DOTALL
)


def test_the_documented_commands_are_some() -> None:
    register()
    parser = argparse.ArgumentParser()
    ServerCommand().add_arguments(parser)
    commands = _COMMAND.findall(PAGE.read_text(encoding="utf-8"))
    read = [
        parse_args_to_config(parser.parse_args(shlex.split(each.replace("\\\n", " ")))) for each in commands
    ]
    assert [config.prefetch_policy for config in read] == ["default", "prefixd"]
    for config in read:
        (adapter,) = config.l2_adapter_config.adapters
        assert adapter.class_name == "PrefixdL2Adapter"
        assert AdapterSettings.parse(adapter.adapter_params) != AdapterSettings()
