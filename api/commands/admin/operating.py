"""Jobs, settings and the log."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.admin.asking import Asking, asks_server, in_path
from api.commands.admin.doing import finish
from api.commands.admin.job_sheets import job_sheets, jobs_sheets
from api.commands.admin.looking import LIMIT
from api.commands.admin.operating_sheets import config_sheets, log_sheets

_ID = Annotated[str, typer.Argument(help="The job's id, as it was printed.")]


@asks_server
def jobs(asking: Asking, limit: LIMIT = 20) -> None:
    """List the jobs that run, and those that ended within the last hour.

    For example:

        prefixd admin jobs
    """
    asking.show(asking.listed("jobs", limit), jobs_sheets)


@asks_server
def job(
    asking: Asking,
    id: _ID,  # noqa: A002  as it is told
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until it ends.")] = False,
) -> None:
    """Show how far a job is, and what came of it; with --wait, when it has ended, and end as it did.

    For example:

        prefixd admin job 5ad1f00d5ad1f00d --wait
    """
    found = asking.get(f"jobs/{in_path(id)}", "state")
    if wait:
        finish(asking, found, no_wait=False)
    else:
        asking.show(found, job_sheets)


@asks_server
def cancel(asking: Asking, id: _ID) -> None:  # noqa: A002  as it is told
    """Have a job stop before its next step; what is done stays done.

    For example:

        prefixd admin cancel 5ad1f00d5ad1f00d
    """
    asking.show(asking.send("DELETE", f"jobs/{in_path(id)}", "state"), job_sheets)


@asks_server
def config(asking: Asking) -> None:
    """Show the settings of the server; secrets stay hidden.

    For example:

        prefixd admin config
    """
    asking.show(asking.get("config"), config_sheets)


@asks_server
def log(asking: Asking, limit: LIMIT = 20) -> None:
    """List what was done to the server by whom, the latest first.

    For example:

        prefixd admin log --limit 100
    """
    asking.show(asking.listed("log", limit), log_sheets)
