"""``prefixd doctor``."""

from __future__ import annotations

import typer

from api.commands.flags import takes_settings
from api.settings import Settings


@takes_settings
def doctor(settings: Settings) -> None:
    """Check what a server needs: Python, torch, the device, the model's folder, the disk, rules, plugins.

    Reads the same settings as serve, starts nothing, and ends with exit code 1 when something is missing.
    Ends with what steps and loads are known to cost on this machine, if a server has measured them before.

    For example:

        prefixd doctor --model ~/models/SmolLM2-135M-Instruct --disk-path /mnt/fast/prefixd
    """
    from api.diagnosis import diagnose
    from api.findings import Level

    findings = diagnose(settings)
    for finding in findings:
        typer.echo(f"{finding.level.value:<5} {finding.subject:<10} {finding.detail}")
    if any(finding.level is Level.BAD for finding in findings):
        raise typer.Exit(1)
