"""Renders ``docs/settings.md`` from the settings: ``python -m api.settings_page > docs/settings.md``."""

from __future__ import annotations

import sys
from itertools import groupby

from api.setting_facts import is_secret, setting_group, shown_default
from api.settings import Settings
from api.settings_sources import flag_name, variable_name

_OPENING = """\
# Settings

No setting is needed but the model. Each one is looked for in four places, and the last that names it wins:
its default, a TOML file (`--config FILE` or `PREFIXD_CONFIG`), the environment, a flag of the command line.
In the file a setting is a key at top level:

```toml
model = "~/models/SmolLM2-135M-Instruct"
host_bytes = "8GiB"
disk_bytes = "50GiB"
```

Sizes are written like `2GiB`, `500MB` or as a number of bytes; times are in seconds. A setting that is not
known or cannot be used ends the start with one line that says why, and exit code 2. An empty environment
variable counts as not set, and so do the variables that Kubernetes makes for a service called `prefixd`.
`PREFIXD_URL` and `PREFIXD_TOKEN` are no settings: they tell [commands](commands.md#administration) which
server to ask.
"""


def settings_page() -> str:
    """Return the page: a table for each group of settings."""
    parts = [_OPENING]
    for group, names in groupby(Settings.model_fields, setting_group):
        parts.append(
            f"\n## {group}\n\n| setting | flag | environment | default | meaning |\n|---|---|---|---|---|\n"
        )
        parts += [_row(name) for name in names]
    return "".join(parts)


def _row(name: str) -> str:
    flag = "no flag: process lists are public" if is_secret(name) else f"`{flag_name(name)}`"
    meaning = Settings.model_fields[name].description
    return f"| `{name}` | {flag} | `{variable_name(name)}` | {shown_default(name)} | {meaning} |\n"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
