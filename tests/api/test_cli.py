"""The command line: help, errors in one line, doctor, generate."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli import build_cli
from api.commands.flags import flag_settings
from api.settings_sources import flag_name
from prefixd import ROOMS, complaint, hidden_rooms
from tests.valkey import Valkey

COMMANDS = ("serve", "generate", "demo", "plan", "explain", "doctor", "version")
REPOSITORY = Path(__file__).parents[2]


def run(*arguments: str, **environ: str) -> Result:
    wide = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb", **environ}
    return CliRunner().invoke(build_cli(), list(arguments), env=wide)


def test_the_help_names_every_command() -> None:
    shown = run("--help").output
    assert all(command in shown for command in COMMANDS)
    assert run().output.strip() == shown.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "xample:" in result.output
    assert f"prefixd {command}" in result.output


@pytest.mark.parametrize("command", ["serve", "generate", "doctor"])
def test_every_setting_but_secrets_is_a_flag_with_help(command: str) -> None:
    shown = run(command, "--help").output
    for name in flag_settings():
        assert f"{flag_name(name)} " in shown, name
    assert "--config" in shown
    assert "--api-token" not in shown


def test_the_version_is_told_in_two_ways() -> None:
    assert run("version").output == run("--version").output
    assert run("version").output.startswith("prefixd ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("serve", "--port", "70000"),
            "prefixd: port: '70000' (--port): must be less than or equal to 65535.",
        ),
        (("serve", "--config", "none.toml"), "prefixd: config: cannot read none.toml: No such file"),
        (("serve", "--host-bytes", "900TiB"), "prefixd: host_bytes: 900 TiB is more than the machine's"),
        (("serve", "--redis-username", "ann"), "prefixd: redis_username: is for a Redis tier, and there is"),
        (("serve", "--host", "0.0.0.0"), "prefixd: api_token: required because 0.0.0.0 is reachable"),
        (
            ("generate", "--prompt", "x"),
            "prefixd: model: none is named; give its folder with --model DIR or PREFIXD_MODEL",
        ),
        (("serve", "--record-trace", ""), "prefixd: record_trace: '' (--record-trace): must name a file"),
        (("doctor", "--disk-bytes", "-1"), "prefixd: disk_bytes: '-1' (--disk-bytes): must be greater"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_line_and_code_2(arguments: tuple[str, ...], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_variable_of_the_environment_is_named_when_it_is_wrong() -> None:
    assert "(environment variable PREFIXD_PORT)" in run("serve", PREFIXD_PORT="x").stderr


def test_a_flag_that_is_not_there_is_refused() -> None:
    assert run("serve", "--no-such-flag").exit_code == 2


def test_a_model_that_cannot_be_served_is_one_line_and_code_1(tmp_path: Path) -> None:
    result = run(
        "generate", "--model", str(tmp_path), "--prompt", "x", "--disk-path", str(tmp_path / "blocks")
    )
    assert result.exit_code == 1
    assert result.stderr.startswith(f"prefixd: {tmp_path}: ")
    assert result.stderr.count("\n") == 1


def test_help_does_not_wait_for_what_computes() -> None:
    slow = {"torch", "transformers", "fastapi", "uvicorn", "matplotlib", "engine_adapter.assemble"}
    program = (
        f"import sys, api.cli; api.cli.build_cli(); print([name for name in {slow} if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


def test_generate_writes_text_and_says_where_its_tokens_came_from(model_folder: Path, tmp_path: Path) -> None:
    flags = ("--model", str(model_folder), "--disk-path", str(tmp_path / "blocks"), "--device-bytes", "4MiB")
    prompt = "the cat sat on the mat and the dog sat on the cat. " * 2
    options = ("--max-tokens", "5", "--reload-policy", "always-load")
    command = ("generate", *flags, "--prompt", prompt, *options)
    first, second = run(*command), run(*command)
    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr
    assert first.stdout == second.stdout
    assert " computed), 5 generated; TTFT " in first.stderr
    assert " disk), 5 generated; TTFT " in second.stderr


def test_doctor_finds_all_well_for_a_sound_model(model_folder: Path, tmp_path: Path) -> None:
    result = run("doctor", "--model", str(model_folder), "--disk-path", str(tmp_path), "--disk-bytes", "1MiB")
    assert result.exit_code == 0
    assert "FAIL" not in result.output
    for subject in ("python", "torch", "transformers", "packages", "device", "model", "disk", "plugins"):
        assert f" {subject} " in result.output


def test_doctor_says_what_answers_held_to_a_form_need(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"ok    llguidance {version('llguidance')}" in run("doctor").output
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert "need it; pip install 'prefixd[constrained]'" in run("doctor").output


def test_doctor_shows_the_costs_that_are_known_for_this_machine(model_folder: Path, tmp_path: Path) -> None:
    cache = {"PREFIXD_CACHE_PATH": str(tmp_path / "cache")}
    flags = ("--model", str(model_folder), "--disk-path", str(tmp_path / "blocks"), "--device-bytes", "4MiB")

    def lines() -> list[str]:
        shown = run("doctor", *flags, **cache).output.splitlines()
        return [line for line in shown if line.split()[1] == "costs"]

    assert [line.split("costs")[1].strip() for line in lines()] == [
        "none known yet; a server measures when it starts, and keeps them"
    ]
    assert run("generate", *flags, "--prompt", "the cat", "--max-tokens", "1", **cache).exit_code == 0
    (known,) = lines()
    assert "tiny-llama on cpu, up to 512 tokens a step: computes " in known
    assert " tokens/s; disk " in known
    assert known.endswith("/s")


def test_doctor_names_each_thing_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(
        "doctor", "--model", str(tmp_path), "--disk-path", str(tmp_path / "file" / "x"),
        "--host-bytes", "900TiB", "--reload-policy", "never-heard-of",
    )  # fmt: skip
    assert result.exit_code == 1
    wrong = [line.split()[1] for line in result.output.splitlines() if line.startswith("FAIL")]
    assert wrong == ["memory", "model", "disk", "plugins"]
    assert "there are: always-compute, always-load, " in result.output


def test_doctor_looks_at_what_is_kept_for_whom_and_what_is_learnt(tmp_path: Path) -> None:
    def told(*flags: str) -> dict[str, str]:
        lines = run("doctor", "--disk-bytes", "0", *flags).output.splitlines()
        return {
            line.split()[1]: line
            for line in lines
            if line.split()[1] in {"retention", "recording", "plugins"}
        }

    rules, file, foreign = tmp_path / "rules.toml", tmp_path / "trace.jsonl", tmp_path / "notes"
    rules.write_text('[tenants.acme]\nsalt_digest = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"\nttl = "1h"\n')
    foreign.write_text("mine")
    sound = told("--retention", str(rules), "--record-trace", str(file), "--shadow-policies", "lru,arc")
    assert {line.split()[0] for line in sound.values()} == {"ok"}
    assert "rules of 1 tenants" in sound["retention"]
    assert not file.exists()
    rules.write_text("[others]\nttl = 0\n")
    wrong = told("--retention", str(rules), "--record-trace", str(foreign), "--shadow-policies", "lru,mru")
    assert wrong["retention"].startswith("FAIL")
    assert "others.ttl: must be greater than 0" in wrong["retention"]
    assert wrong["recording"].startswith("warn")
    assert "choose another file" in wrong["recording"]
    assert "eviction 'mru' is not known" in wrong["plugins"]
    assert told("--record-trace", str(tmp_path / "none" / "t"))["recording"].startswith("FAIL")


def test_doctor_names_the_codecs_there_are(tmp_path: Path) -> None:
    flags = ("--disk-path", str(tmp_path), "--disk-bytes", "1MiB")
    assert (
        "codec 'gzip' is not known; there are: none, zstd-planes"
        in run("doctor", *flags, "--redis-codec", "gzip").output
    )
    assert "is not known" not in run("doctor", *flags, "--redis-codec", "none").output


def test_doctor_says_that_nothing_can_be_kept_between_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = run("doctor", "--cache-path", str(tmp_path / "file" / "cache")).output
    assert f"warn  cache      {tmp_path / 'file'} cannot be written, so each start reads all weights" in told


def test_a_redis_password_for_no_server_is_told_by_doctor_and_refused_by_serve() -> None:
    line = "redis_password: is for a Redis tier, and there is none; set PREFIXD_REDIS_URL"
    doctor = run("doctor", PREFIXD_REDIS_PASSWORD="swordfish")
    assert f"FAIL  redis      {line}" in doctor.output
    serve = run("serve", PREFIXD_REDIS_PASSWORD="swordfish")
    assert serve.stderr.startswith(f"prefixd: {line}")
    assert "swordfish" not in doctor.output + serve.stderr


def redis_finding(monkeypatch: pytest.MonkeyPatch, url: str, *flags: str) -> str:
    """Return what doctor says of the Redis tier, its level first."""
    monkeypatch.setenv("PREFIXD_REDIS_URL", url)
    lines = run("doctor", "--disk-bytes", "0", *flags).output.splitlines()
    return next(line for line in lines if line.split()[1] == "redis")


def test_doctor_says_how_the_redis_server_is(own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*flags: str) -> str:
        return redis_finding(monkeypatch, own_valkey.url, *flags)

    admin = own_valkey.admin()
    assert found().startswith("warn  redis      valkey ")
    assert found().endswith("no maxmemory, noeviction; it may outgrow its machine: set maxmemory")
    admin.config_set("maxmemory", "1gb")
    assert found().endswith("full, it refuses: set maxmemory-policy allkeys-lru")
    admin.config_set("maxmemory-policy", "allkeys-lru")
    assert found().endswith("less than the budget 8 GiB")
    assert found("--redis-bytes", "512MiB").startswith("ok    redis ")
    admin.config_set("requirepass", "swordfish")
    assert found().startswith("FAIL  redis ")
    assert "set redis_password" in found()
    own_valkey.kill()
    assert "the server cannot be reached" in found()
    url = own_valkey.url.replace("//", "//ann:swordfish@")
    assert "swordfish" not in redis_finding(monkeypatch, url)


def test_a_foreign_package_that_hides_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hidden_rooms() == {}
    assert set(hidden_rooms(tmp_path)) == set(ROOMS)
    foreign = tmp_path / "backends"
    foreign.mkdir()
    (foreign / "__init__.py").touch()
    ended = subprocess.run(
        [sys.executable, "-c", "from prefixd import main; main()", "version"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, f"prefixd: {complaint('backends', str(foreign))}\n")
