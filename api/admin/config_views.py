"""What the administration tells of the settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.admin.fields import Listed, list_of
from api.examples import example


class SettingView(BaseModel):
    """A setting and its value; that of a secret is hidden."""

    model_config = example(
        name="host_bytes", value=2 << 30, is_default=True, is_secret=False, meaning="Memory."
    )

    name: str
    value: Any
    is_default: bool
    is_secret: bool
    meaning: str


class SettingList(Listed[SettingView]):
    """All settings."""

    model_config = list_of(SettingView)
