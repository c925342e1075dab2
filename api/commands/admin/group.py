"""All commands of the administration, in the order in which they are listed."""

from __future__ import annotations

import typer

from api.commands.admin import changing, deciding, files, looking, operating, ruling
from api.commands.explain import explain

_LOOK = "Look"
_CHANGE = "Change what is kept"
_RULE = "Say who may have what"
_DECIDE = "Decisions"
_OPERATE = "Operate"

admin = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look into a running server, and change what it keeps: blocks, pins, quotas, tiers, modes.",
)

for _panel, _commands in {
    _LOOK: (
        looking.overview, looking.tiers, looking.namespaces, looking.prefixes, looking.blocks, looking.block,
        looking.resolve, looking.pins, looking.quotas,
    ),
    _CHANGE: (
        changing.pin, changing.unpin, changing.ttl, changing.warm, changing.evict, changing.move,
        changing.verify, changing.drop, changing.clear, files.export, files.import_,
    ),
    _RULE: (ruling.quota, ruling.budget, ruling.drain, ruling.undrain, ruling.mode),
    _DECIDE: (deciding.plans, explain, deciding.history, deciding.shadows, deciding.audit),
    _OPERATE: (operating.jobs, operating.job, operating.cancel, operating.config, operating.log),
}.items():  # fmt: skip
    for _command in _commands:
        admin.command(_command.__name__.rstrip("_"), rich_help_panel=_panel)(_command)
