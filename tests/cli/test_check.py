"""`gateway check` says whether a start would succeed, or why not in one line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import program
from gateway.config.document import shipped
from tests.cli.processes import gateway
from tests.postgres import PostgresServer

CHAIN = "plugins: [{use: usage-logger}, {use: auth}, {use: rate-limit}, {use: quota}, {use: model-routing}]\n"
MODELS = "channels: {up: {base_url: 'http://h/v1'}}\nmodels: {m: {free: true, channels: [up]}}\ngroups: {default: {}}\n"


def file_of(folder: Path, text: str) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(f"{text}data: {folder}/data\n")
    return file


def check(file: Path, *more: str, code: int) -> tuple[str, str]:
    result = CliRunner().invoke(program(), ["check", "--config", str(file), *more])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_a_good_file_is_good(tmp_path: Path) -> None:
    out, err = check(file_of(tmp_path, CHAIN + MODELS), code=0)
    assert out.endswith("good\n")
    assert err == ""
    out, _ = check(file_of(tmp_path, CHAIN + MODELS), "--json", code=0)
    assert json.loads(out) == {
        "config": f"{tmp_path}/gateway.yaml",
        "store": f"none at {tmp_path}/data yet: `gateway serve` makes it",
        "chain": ["usage-logger", "auth", "rate-limit", "quota", "model-routing"],
        "models": ["m"],
        "channels": ["up"],
        "adds": {},
        "answers": "as streams alone: chat completions in one piece need `port.allow_non_streaming`",
        "bound": None,
        "warnings": [],
    }


def test_the_shipped_files_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-4711")
    for name in ("gateway.yaml", "demo.yaml"):
        out, err = check(shipped(name), code=0)
        assert "sk-canary" not in out + err


def test_a_log_that_misses_refusals_is_a_warning(tmp_path: Path) -> None:
    chain = "groups: {default: {}}\nplugins: [{use: auth}, {use: usage-logger}, {use: model-routing}]\n"
    out, _ = check(file_of(tmp_path, chain), "--json", code=0)
    assert json.loads(out)["warnings"] == [
        "`usage-logger` is below `auth`: requests refused there leave no record; move it to the top"
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("listen: 8080\n", "1: listen: must be text, not a whole number; write HOST:PORT, as in 127.0.0.1:8080"),
        ("admin: 9090\n", "1: admin: must be text or null, not a whole number; write HOST:PORT, as in 127.0.0.1:8080"),
        ("workers: 0\n", "1: workers: must be a whole number >= 1"),
        ("plugins: [{use: auth}]\n", "1: plugins[0]: nothing in the chain provides Route: "
         "add `- use: model-routing` as the last plugin"),
        ("plugins: [{use: 'starts:Not'}, {use: auth}, {use: model-routing}]\n", "1: plugins[0]: 'starts:Not' "
         "does not start: today is no day for it"),
    ],
)  # fmt: skip
def test_an_error_that_would_stop_a_start_is_one_line_and_exit_2(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "starts.py").write_text(
        "from gateway import Plugin\n\nclass Not(Plugin):\n"
        "    async def start(self, services):\n        raise ValueError('today is no day for it')\n"
    )
    out, err = check(file_of(tmp_path, text), code=2)
    assert (out, err) == ("", f"gateway: {tmp_path}/gateway.yaml:{error}\n")


async def test_the_process_says_the_same_without_a_traceback(tmp_path: Path) -> None:
    file = file_of(tmp_path, "redis: ${NO_SUCH_VARIABLE_0815}\n")
    code, out, err = await gateway("check", "--config", str(file), cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err == (
        f"gateway: {file}:1: redis: the environment variable NO_SUCH_VARIABLE_0815 is not set; "
        "export it or write a value\n"
    )


def test_a_store_that_does_not_answer_is_exit_6_and_shows_no_url(tmp_path: Path) -> None:
    text = f"{CHAIN}redis: redis://:sesame-4711@127.0.0.1:1\n"
    _, err = check(file_of(tmp_path, text), code=6)
    assert err.startswith("gateway: the store ")
    assert err.endswith(" (it is at 127.0.0.1:1)\n")
    assert err.count("\n") == 1
    assert "sesame" not in err


def test_the_bound_of_balances_is_said_in_words_and_on_request_in_figures(tmp_path: Path) -> None:
    assert (
        "bound     none: no plugin charges, or every model is free\n"
        in check(file_of(tmp_path, CHAIN + MODELS), code=0)[0]
    )
    priced = CHAIN + MODELS.replace("free: true", "input: 1, output: 1")
    out, _ = check(file_of(tmp_path, priced), code=0)
    assert "bound     no balance falls below zero, or below its account's credit line\n" in out
    assert "warnings  none\n" in out
    verbose, _ = check(file_of(tmp_path, priced), "--verbose", code=0)
    figures = json.loads(check(file_of(tmp_path, priced), "--json", code=0)[0])["bound"]
    assert figures.startswith("every balance stays >= -credit line; one failover of the store may take it ")
    assert f"bound     {figures}\n" in verbose
    for text in (out, verbose):
        assert [line for line in text.splitlines() if line != line.rstrip()] == [], "no line is padded"
    holds_less = priced.replace("{use: quota}", "{use: quota, with: {max_hold: 0.1}}")
    assert (
        " below its credit line: `max_hold` lets requests cost more than they hold"
        in check(file_of(tmp_path, holds_less), code=0)[0]
    )


def test_a_short_credential_is_a_warning_that_does_not_show_it(tmp_path: Path) -> None:
    models = MODELS.replace("'http://h/v1'", "'http://h/v1', api_key: ollama")
    out, _ = check(file_of(tmp_path, CHAIN + models), "--json", code=0)
    assert json.loads(out)["warnings"] == [
        "channels.up: a credential of fewer than 12 characters is not removed from the upstream's answers"
    ]
    assert "ollama" not in out


def test_a_field_that_callers_may_send_although_it_is_billed_is_a_warning_unless_the_channel_drops_it(
    tmp_path: Path,
) -> None:
    text = CHAIN + MODELS + "port: {allow_fields: [models, plugins, service_tier]}\n"
    out, _ = check(file_of(tmp_path, text.replace("'http://h/v1'", "'http://h/v1', drop: [plugins]")), "--json", code=0)
    assert json.loads(out)["warnings"] == [
        "port.allow_fields: `service_tier` changes what upstreams bill, and nothing here has a price for that; "
        "`drop` it in channels that may bill it: up"
    ]


def test_a_database_that_the_store_lacks_is_named_with_its_place(tmp_path: Path, store_url: str) -> None:
    file = file_of(tmp_path, f"{CHAIN}redis: '{store_url}?db=99'\n")
    _, err = check(file, code=2)
    assert err == (
        f"gateway: {file}:2: redis: the store has no database of this number; "
        "use a smaller one, or raise `databases` in the store's settings\n"
    )


def test_a_plugin_that_ends_the_process_is_named(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import os\nos._exit(0)\n")
    _, err = check(file_of(tmp_path, "plugins: [{use: 'leaves:P'}, {use: model-routing}]\n"), code=2)
    assert err == f"gateway: {tmp_path}/gateway.yaml:1: plugins[0]: 'leaves:P' ended its process with exit code 0\n"


def test_what_is_probably_a_mistake_is_a_warning(tmp_path: Path) -> None:
    text = (
        "channels: {up: {base_url: 'http://h/v1'}}\nmodels: {small: {input: 1, output: 2, channels: [up]}}\n"
        "groups: {trial: {models: [smal, 'gpt-*', '*']}}\n"
        "plugins: [{use: usage-logger}, {use: auth}, {use: model-routing}]\n"
    )
    out, _ = check(file_of(tmp_path, text), "--json", code=0)
    assert json.loads(out)["warnings"] == [
        "groups.trial.models: there is no model `smal`; did you mean `small`?",
        "groups.trial.models: no model matches `gpt-*`; known: small",
        "groups: there is no `default`, the group of accounts that are created without --group",
        "plugins: nothing charges, so every request is free: add `- use: quota` above model-routing",
    ]
    plain = check(file_of(tmp_path, text), code=0)[0].splitlines()
    assert plain[-5].startswith("warnings  groups.trial.models: there is no model `smal`")
    assert plain[-4].startswith("          groups.trial.models: no model matches")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_an_authority_that_strict_checks_refuse_is_a_warning(tmp_path: Path) -> None:
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.pem")
    command = ("openssl", "req", "-x509", *new, "-subj", "/CN=Our CA")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    text = CHAIN + MODELS.replace("base_url:", "ca_file: ca.pem, base_url:", 1)
    out, _ = check(file_of(tmp_path, text), "--json", code=0)
    (warning,) = json.loads(out)["warnings"]
    assert warning.endswith(
        ".ca_file: the certificate of 'Our CA' lacks Key Usage: trusted here, and refused by most clients from Python 3.13 on"
    )


def test_a_certificate_that_cannot_be_used_is_wrong_as_for_a_start(tmp_path: Path) -> None:
    tls = f"tls: {{certificate: {tmp_path}/tls.pem, key: {tmp_path}/key.pem}}\n"
    _, err = check(file_of(tmp_path, CHAIN + MODELS + tls), code=2)
    assert "tls" in err
    assert "No such file" in err
    for name in ("tls.pem", "key.pem"):
        (tmp_path / name).write_text("nothing")
    _, err = check(file_of(tmp_path, CHAIN + MODELS + tls), code=2)
    assert "they are not a certificate and its key" in err


def test_the_database_of_the_usage_log_is_asked(tmp_path: Path, database_url: str) -> None:
    text = f"{CHAIN}{MODELS}usage: {{database: '{database_url}'}}\n"
    out, _ = check(file_of(tmp_path, text), code=0)
    assert re.search(r"usage_log +PostgreSQL 1[4-9]", out)
    wrong = text.replace(PostgresServer.password, "wrong-password-71")
    _, err = check(file_of(tmp_path, wrong), code=1)
    assert "usage.database cannot be used: connection failed: " in err
    assert "wrong-password-71" not in err
