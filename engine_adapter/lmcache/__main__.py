"""LMCache's command, knowing our prefetch policy too: ``python -m engine_adapter.lmcache server ...``.

LMCache asks for the names of policies when it builds its parser, before it loads any plugin.
"""

from __future__ import annotations

from lmcache.cli.main import main

from engine_adapter.lmcache.prefetch_policy import register

if __name__ == "__main__":
    register()
    main()
