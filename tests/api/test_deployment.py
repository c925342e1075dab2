"""What lies in deploy/: that it is well formed, and that what it sets is what there is to set."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.commands.flags import flag_settings
from api.quantities import parse_bytes
from api.settings import Settings
from api.settings_sources import flag_name, load_settings
from kvstore.connect import connect
from kvstore.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
PAGE = (REPOSITORY / "docs" / "deploying.md").read_text()
# What stopping takes beside drain_s: last words, and what is queued for the disk.
CLOSING_S = 2 + 10
STAGING_BYTES = 256 << 20
_UNITS = {"Ki": "KiB", "Mi": "MiB", "Gi": "GiB", "Ti": "TiB"}


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with what follows them."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def arguments_of(instruction: str) -> list[str]:
    return [rest for word, rest in dockerfile() if word == instruction]


def image_environment() -> dict[str, str]:
    pairs = [pair for rest in arguments_of("ENV") for pair in shlex.split(rest)]
    return ours(dict(pair.split("=", 1) for pair in pairs))


def unit() -> dict[str, list[str]]:
    """Return the entries of the systemd unit; those of the same name in order."""
    entries: dict[str, list[str]] = {}
    for line in (DEPLOY / "prefixd.service").read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, separator, value = line.partition("=")
            assert separator, line
            entries.setdefault(name, []).append(value)
    return entries


def deployment() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())
    return loaded


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = deployment()["spec"]["template"]["spec"]
    return spec


def store() -> dict[str, Any]:
    (container,) = pod()["initContainers"]
    return dict(container)


def pod_environment() -> dict[str, str]:
    return {entry["name"]: entry.get("value", "a-secret") for entry in store()["env"]}


def ours(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith("PREFIXD_")}


def amount(quantity: str) -> int:
    return parse_bytes(re.sub(r"([KMGT]i)$", lambda found: _UNITS[found[1]], quantity))


def test_the_image_asks_for_a_token_and_otherwise_for_nothing() -> None:
    with pytest.raises(ConfigError, match="api_token"):
        load_settings({}, image_environment())
    settings = load_settings({}, {**image_environment(), "PREFIXD_API_TOKEN": "a-secret"})
    assert settings.model is None
    assert f"/{settings.disk_path.parts[1]}/" in arguments_of("VOLUME")[0]
    assert arguments_of("EXPOSE") == [str(settings.port)]


def test_the_image_is_made_of_the_package_and_runs_as_nobody_special() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    packed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
    copied = {name for rest in arguments_of("COPY") for name in rest.split()[:-1] if "--from" not in rest}
    assert packed <= copied
    assert [name for name in copied if not (REPOSITORY / name).exists()] == []
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied
    extras = next(rest for rest in arguments_of("ARG") if rest.startswith("EXTRAS="))
    assert set(extras.removeprefix("EXTRAS=").split(",")) <= set(project["project"]["optional-dependencies"])
    assert "engine" not in extras
    assert arguments_of("USER") == ["10001:10001"]
    assert len(arguments_of("FROM")) == 2


@contextmanager
def started(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[str, str]]:
    """Start a server with these settings, its places moved into ``folder``; give both its addresses."""
    moved = {"PREFIXD_HOST": "127.0.0.1", "PREFIXD_PORT": "0"}
    moved |= {"PREFIXD_HOST_BYTES": "8MiB", "PREFIXD_DISK_BYTES": "8MiB"}
    places = {"PREFIXD_SOCKET": "s", "PREFIXD_DISK_PATH": "blocks", "PREFIXD_CACHE_PATH": "cache"}
    moved |= {name: str(folder / place) for name, place in places.items()}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environ, **moved}
    command = [sys.executable, "-m", "prefixd", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        told = re.search(r"(unix:\S+) and (http:\S+)", ready)
        assert told, ready
        yield told[1], told[2]
        server.terminate()
        assert server.wait(20) == 0


def test_the_images_health_check_tells_a_server_from_none(tmp_path: Path) -> None:
    (check,) = (rest for word, rest in dockerfile() if word == "HEALTHCHECK")
    _, program, code = yaml.safe_load(check.partition("CMD ")[2])
    assert program == "-c"
    with started({**image_environment(), "PREFIXD_API_TOKEN": "a-secret"}, tmp_path) as (_, url):
        port = url.rpartition(":")[2]
        asked = {**os.environ, "PREFIXD_PORT": port}
        assert subprocess.run([sys.executable, "-c", code], env=asked, check=False).returncode == 0
    asking = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, check=False)
    assert asking.returncode == 1


def test_the_unit_sets_what_there_is_and_waits_until_all_is_written() -> None:
    entries = unit()
    environ = dict(entry.split("=", 1) for entry in entries["Environment"])
    settings = load_settings({}, environ)
    assert settings.model is None
    (stop_s,) = entries["TimeoutStopSec"]
    assert float(stop_s) > settings.drain_s + CLOSING_S
    assert entries["ExecStart"][0].endswith("/prefixd serve")
    assert entries["User"] == ["prefixd"]
    for place, folder in (
        (settings.socket, "RuntimeDirectory"),
        (settings.disk_path, "StateDirectory"),
        (settings.cache_path, "CacheDirectory"),
    ):
        assert place is not None
        assert entries[folder][0] in place.parts
        assert entries[f"{folder}Mode"] == ["0700"]
    assert entries["RestartPreventExitStatus"] == ["2"]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "prefixd.service").read_text()
    here = tmp_path / "prefixd.service"
    here.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", here], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no systemd-analyze here")
    assert [line for line in done.stderr.splitlines() if "prefixd.service" in line] == []


def test_the_pod_sets_what_there_is() -> None:
    settings = load_settings({}, pod_environment())
    assert settings.model is None
    assert {entry["containerPort"] for entry in store()["ports"]} == {settings.port}
    annotations = deployment()["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(settings.port)
    (name,) = (port["name"] for port in store()["ports"])
    probes = [store()[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert {(probe["path"], probe["port"]) for probe in probes} == {("/ready", name), ("/health", name)}


def test_the_pods_limits_hold_what_the_store_may_take() -> None:
    settings, limits = load_settings({}, pod_environment()), store()["resources"]["limits"]
    assert amount(limits["memory"]) >= settings.host_bytes + STAGING_BYTES + (1 << 30)
    assert store()["resources"]["requests"]["memory"] == limits["memory"]
    (blocks,) = (volume for volume in pod()["volumes"] if volume["name"] == "blocks")
    assert amount(blocks["emptyDir"]["sizeLimit"]) > settings.disk_bytes


def test_the_pod_stops_no_sooner_than_all_is_written() -> None:
    settings = load_settings({}, pod_environment())
    before_s = int(store()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] > before_s + settings.drain_s + CLOSING_S
    assert store()["restartPolicy"] == "Always"


def test_the_pods_secrets_come_from_a_secret_and_engines_find_the_socket() -> None:
    (engine,) = pod()["containers"]
    both = [
        entry for container in (store(), engine) for entry in container["env"] if "TOKEN" in entry["name"]
    ]
    assert [entry["valueFrom"]["secretKeyRef"] for entry in both] == [{"name": "prefixd", "key": "token"}] * 2
    assert f"unix://{pod_environment()['PREFIXD_SOCKET']}" in [entry.get("value") for entry in engine["env"]]
    volumes = {volume["name"] for volume in pod()["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in store()["volumeMounts"]}
    assert mounts.keys() == volumes
    assert engine["volumeMounts"] == [{"name": "socket", "mountPath": mounts["socket"]}]
    assert pod()["securityContext"]["runAsNonRoot"]
    assert str(pod()["securityContext"]["runAsUser"]) == arguments_of("USER")[0].partition(":")[0]


def test_a_store_with_the_pods_settings_serves_an_engine(tmp_path: Path) -> None:
    with started(ours(pod_environment()), tmp_path) as (address, _):
        engine = connect(address, "a-secret")
        assert engine.is_connected
        engine.close()


def test_prometheus_reads_the_metrics_with_a_token() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert all(job["authorization"]["type"] == "Bearer" for job in jobs)
    assert jobs[0]["metrics_path"] == "/metrics"
    assert jobs[0]["static_configs"][0]["targets"] == [f"127.0.0.1:{Settings().port}"]
    ports = [rule["regex"] for rule in jobs[1]["relabel_configs"] if "port_name" in rule["source_labels"][0]]
    assert ports == [store()["ports"][0]["name"]]


def test_what_the_page_names_is_there() -> None:
    variables = set(re.findall(r"\bPREFIXD_(\w+)", PAGE)) - {"CONFIG", "TOKEN", "URL"}
    assert {name.lower() for name in variables} <= set(Settings.model_fields)
    flags = {flag_name(name) for name in flag_settings()} | {"--config"}
    for line in re.findall(r"prefixd serve(.*)$", PAGE, re.MULTILINE):
        assert set(re.findall(r"--[a-z-]+", line)) <= flags, line
    assert [name for name in re.findall(r"deploy/([\w.-]+)", PAGE) if not (DEPLOY / name).exists()] == []
    assert {path.name for path in DEPLOY.iterdir()} <= set(re.findall(r"[\w.-]+", PAGE))
