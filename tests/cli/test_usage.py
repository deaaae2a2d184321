"""The usage commands read the files, and for single requests also the store."""

from __future__ import annotations

import asyncio
import csv
import signal
import sys
import time
from io import StringIO
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from gateway.cli import trace, usage
from gateway.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage.damage import UnusableFile
from gateway.usage.database import UsageDatabase
from gateway.usage.log import UsageLog
from gateway.usage.record import Record, decode
from tests.patience import PATIENCE_S
from tests.records import COSTED, arrival, end, id_at

DAY_MS = 86_400_000

app = typer.Typer()
usage.register(app)
trace.register(app)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str) -> UsageDatabase:
    """The writer of the files that the commands read."""
    file = tmp_path / "gateway.yaml"
    file.write_text(f"redis: {store_url}\ndata: {tmp_path}\nstore: {{timeout: {PATIENCE_S}}}\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    return UsageDatabase(tmp_path / "usage")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def records(output: str) -> list[Record]:
    return [decode(line) for line in output.splitlines()]


def days_ago(days: float) -> Record:
    return arrival(id_at(round(time.time() * 1000 - days * DAY_MS)))


def test_list_shows_the_newest_first_with_whole_ids(rows: UsageDatabase) -> None:
    old, new = end(days_ago(2)), end(days_ago(1), account="other")
    rows.write([old, new])
    header, first, second = run("usage", "list").splitlines()
    assert header.split()[:3] == ["arrived", "id", "account"]
    assert first.split()[1:3] == [new.id, "other"]
    assert second.split()[1:3] == [old.id, "demo"]


def test_an_empty_list_is_a_sentence(rows: UsageDatabase) -> None:
    assert "There are no such requests" in run("usage", "list")
    assert run("usage", "list", "--json") == ""


@pytest.mark.parametrize("name", ["data", "data/usage"])
@pytest.mark.parametrize("command", ["list", "summary"])
def test_a_file_in_the_place_of_a_folder_is_named(command: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("no folder")
    file = tmp_path / "gateway.yaml"
    file.write_text(f"data: {tmp_path / 'data'}\n")
    result = CliRunner().invoke(app, ["usage", command, "-c", str(file)])
    assert isinstance(result.exception, UnusableFile)
    assert str(result.exception) == f"usage: cannot use {tmp_path}/data/usage: Not a directory"


def test_list_filters_by_account_time_and_outcome_and_limits_the_number(rows: UsageDatabase) -> None:
    old, new, cut = end(days_ago(2)), end(days_ago(0.5)), end(days_ago(0.25), outcome=Outcome.CALLER_GONE)
    other = end(days_ago(0.1), account="other")
    rows.write([old, new, cut, other])
    mine = ("usage", "list", "--json", "--account", "demo")
    assert records(run(*mine)) == [cut, new, old]
    assert records(run(*mine, "--since", "1d")) == [cut, new]
    assert records(run(*mine, "--since", old.arrived_at[:10])) == [cut, new, old]
    assert records(run(*mine, "--outcome", "caller_gone")) == [cut]
    assert records(run(*mine, "--limit", "1")) == [cut]


def test_an_invalid_time_is_wrong_usage_with_an_example(rows: UsageDatabase) -> None:
    for text in ("5x", "yesterday", "2026-13-01", "-1h", ""):
        assert "30m, 12h, 7d" in " ".join(run("usage", "list", "--since", text, code=2).split())


def test_show_prints_every_field(rows: UsageDatabase) -> None:
    record = end(arrival())
    rows.write([record])
    assert records(run("usage", "show", record.id, "--json")) == [record]
    shown = dict(line.split(maxsplit=1) for line in run("usage", "show", record.id).splitlines())
    assert shown.keys() == set(msgspec.to_builtins(record))
    assert shown["charge_micros"].strip() == "123"
    assert msgspec.json.decode(shown["price"]) == record.price


async def test_show_finds_what_is_still_in_the_stream(rows: UsageDatabase, client: Client) -> None:
    log = UsageLog(client, rows.folder)
    opened = arrival()
    await log.submit_arrival(opened)
    shown = await asyncio.to_thread(run, "usage", "show", opened.id, "--json")
    assert records(shown) == [opened]


def test_show_prints_nothing_that_a_terminal_would_obey(rows: UsageDatabase) -> None:
    record = end(arrival(), upstream_usage='{"x":"\u009b2J",\n"prompt_tokens":1}')
    rows.write([record])
    shown = run("usage", "show", record.id)
    assert "\u009b" not in shown
    assert '{"x":"\\x9b2J",\\n"prompt_tokens":1}' in shown


def test_show_refuses_an_unknown_request(rows: UsageDatabase) -> None:
    missing = arrival().id
    assert missing in run("usage", "show", missing, code=3)


def test_summary_groups_by_the_given_names(rows: UsageDatabase) -> None:
    one, other = end(arrival(), **COSTED), end(arrival())
    free = end(arrival(), model="", charge_micros=0)
    rows.write([one, other, free])
    day = one.arrived_at[:10]
    by_model = run("usage", "summary", "--by", "account,model", "--json").splitlines()
    assert msgspec.json.decode(by_model[1]) == {
        "account": "demo",
        "model": "gpt-4o-mini",
        "requests": 2,
        "completed": 2,
        "prompt_tokens": 22,
        "cached_tokens": 4,
        "cache_write_tokens": 2,
        "completion_tokens": 82,
        "charge_micros": 246,
        "cost_micros": 100,
        "margin_micros": 23,
        "unknown_costs": 1,
    }
    header, *lines = run("usage", "summary", "--by", "day,token").splitlines()
    assert header.split() == [
        "day",
        "token_id",
        "requests",
        "completed",
        "prompt_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "completion_tokens",
        "charge",
        "cost",
        "margin",
        "unknown_costs",
    ]
    sums = ["3", "3", "33", "4", "2", "123", "0.000246", "0.0001", "0.000023", "2"]
    assert [line.split() for line in lines] == [[day, "demo-k3f9x2ab", *sums]]


def test_a_cost_that_is_not_known_is_not_0(rows: UsageDatabase) -> None:
    rows.write([end(arrival())])
    assert run("usage", "summary").splitlines()[1].split()[-3:] == ["-", "-", "1"]


def test_summary_and_export_print_csv(rows: UsageDatabase) -> None:
    record = end(arrival(), **COSTED)
    rows.write([record, end(arrival())])
    summed = list(csv.DictReader(StringIO(run("usage", "summary", "--by", "model", "--csv"))))
    sums = {"charge_micros": "246", "cost_micros": "100", "margin_micros": "23", "unknown_costs": "1"}
    assert [{name: row[name] for name in ("model", *sums)} for row in summed] == [{"model": "gpt-4o-mini", **sums}]
    first, second = csv.DictReader(StringIO(run("usage", "export", "--csv")))
    assert list(first) == list(Record.__struct_fields__)
    assert (first["id"], first["cost_micros"], first["margin_micros"]) == (record.id, "100", "23")
    assert msgspec.json.decode(first["price"]) == record.price
    assert first["upstream_usage"] == record.upstream_usage
    assert (second["cost_micros"], second["first_byte_ms"]) == ("", "312")
    assert run("usage", "summary", "--from", "2001-01-01", "--to", "2001-01-01", "--csv") == ""


def test_summary_includes_its_first_and_last_day(rows: UsageDatabase) -> None:
    arrivals = [days_ago(days) for days in (3, 2, 1, 0)]
    rows.write(map(end, arrivals))
    first, last = arrivals[1].arrived_at[:10], arrivals[2].arrived_at[:10]
    printed = run("usage", "summary", "--from", first, "--to", last, "--json").splitlines()
    assert [msgspec.json.decode(line)["day"] for line in printed] == [first, last]


def test_summary_refuses_an_unknown_name(rows: UsageDatabase) -> None:
    assert "nope" in run("usage", "summary", "--by", "day,nope", code=2)


def test_export_prints_all_the_oldest_first(rows: UsageDatabase) -> None:
    written = [end(days_ago(days)) for days in range(70, 0, -1)]
    rows.write(written)
    assert records(run("usage", "export")) == written


async def test_tail_prints_each_request_when_it_has_ended(rows: UsageDatabase) -> None:
    command = "from gateway.cli import main; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", command, "usage", "tail", "--json"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = asyncio.create_task(process.stdout.readline())
    written = []
    while not line.done():
        written.append(end(arrival()))
        rows.write([written[-1], arrival()])
        await asyncio.wait([line], timeout=0.1)
    assert decode(line.result()) in written
    process.send_signal(signal.SIGINT)
    rest, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert all(record in written for record in records(rest.decode()))
    assert process.returncode == 0
