"""What bodies and answers look like: their models' configurations, with examples for the descriptions."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

DIGEST = "6b7d2c1e0f9a4b5c8d3e2f1a0b9c8d7e"
AT = 1_767_225_600.25
"""A time in seconds of the epoch."""
BODY = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


def example(**values: Any) -> ConfigDict:
    """Return the configuration of an answer's model, with what it looks like."""
    return ConfigDict(frozen=True, json_schema_extra={"examples": [values]})


def body_example(*bodies: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a body's model: other fields are refused."""
    return ConfigDict(**BODY, json_schema_extra={"examples": list(bodies)})


def example_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return what a model's configuration says it looks like."""
    extra: Any = model.model_config["json_schema_extra"]
    shown: dict[str, Any] = extra["examples"][0]
    return shown
