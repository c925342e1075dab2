"""The configuration of a running service, with its secrets hidden."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from api.admin.config_views import SettingList, SettingView
from api.admin.context import Shared
from api.error_schema import errors
from api.setting_facts import is_secret
from api.settings import Settings
from api.tenancy import Overseer

HIDDEN = "(hidden)"

router = APIRouter(prefix="/admin", tags=["operation"])


@router.get("/config", responses=errors(403))
async def get_config(context: Shared, _: Overseer) -> SettingList:
    """List all settings and their values; of a secret only whether it is set."""
    values = context.settings.model_dump(mode="json")
    settings = [_view(context.settings, name, value) for name, value in values.items()]
    return SettingList(data=settings, next_cursor=None, total=len(settings))


def _view(settings: Settings, name: str, value: Any) -> SettingView:
    is_hidden = is_secret(name)
    return SettingView(
        name=name,
        value=HIDDEN if is_hidden and value is not None else value,
        is_default=name not in settings.model_fields_set,
        is_secret=is_hidden,
        meaning=Settings.model_fields[name].description or "",
    )
