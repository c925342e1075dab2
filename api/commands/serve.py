"""``prefixd serve``."""

from __future__ import annotations

from contextlib import closing

from api.commands.flags import takes_settings
from api.listening import listening_socket
from api.serving_config import serving_config, sidecar_config
from api.settings import Settings
from api.settings_sources import check_budgets, check_redis


@takes_settings
def serve(settings: Settings) -> None:
    """Serve a model through the OpenAI API, with its prefixes cached in tiers; without one, a store alone.

    A store alone keeps prefixes for engines in other processes: at a unix socket on this machine, and over
    HTTP (docs/sidecar.md).

    Every flag is also a key of the --config file and an environment variable
    (--host-bytes, host_bytes, PREFIXD_HOST_BYTES); a flag wins over the environment, and that over the file.
    Secrets have no flag: PREFIXD_API_TOKEN, PREFIXD_REDIS_PASSWORD, and PREFIXD_REDIS_URL, which switches the
    Redis or Valkey tier on.

    For example:

        prefixd serve --model ~/models/SmolLM2-135M-Instruct

        prefixd serve --model ~/models/Qwen3-0.6B --host-bytes 8GiB --disk-bytes 50GiB --port 9000

        prefixd serve --config prefixd.toml --host-eviction reuse --retention rules.toml

        prefixd serve --host-bytes 64GiB --disk-bytes 1TiB --socket /run/prefixd.sock

        PREFIXD_API_TOKEN=secret prefixd serve --config prefixd.toml --host 0.0.0.0
    """
    check_budgets(settings)
    check_redis(settings)
    with closing(listening_socket(settings.host, settings.port)) as listener:
        from api.server import serve_store_until_stopped, serve_until_stopped

        if settings.model is None:
            serve_store_until_stopped(settings, sidecar_config(settings), listener)
        else:
            serve_until_stopped(settings, serving_config(settings, is_watched=True), listener)
