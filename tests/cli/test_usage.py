"""The usage commands read the files, and for single requests also the store."""

from __future__ import annotations

import asyncio
import csv
import signal
import sys
import time
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from gateway.admin.actions.times import local
from gateway.cli.commands import program
from gateway.cli.common import print_csv
from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.usage.database import SUMS, UsageFiles
from gateway.usage.log import UsageLog
from gateway.usage.record import Record, decode
from tests.patience import PATIENCE_S
from tests.records import COSTED, arrival, end, id_at, usage_database

DAY_MS = 86_400_000

app = program()


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_url: str) -> UsageFiles:
    """The writer of the files that the commands read."""
    file = tmp_path / "gateway.yaml"
    file.write_text(f"redis: {store_url}\ndata: {tmp_path}\nstore: {{timeout: {PATIENCE_S}}}\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    monkeypatch.setenv("COLUMNS", "200")
    return usage_database(tmp_path / "usage")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def records(output: str) -> list[Record]:
    return [decode(line) for line in output.splitlines()]


def days_ago(days: float) -> Record:
    return arrival(id_at(round(time.time() * 1000 - days * DAY_MS)))


def test_list_shows_the_newest_first_with_whole_ids(rows: UsageFiles) -> None:
    old, new = end(days_ago(2)), end(days_ago(1), account="other")
    rows.write([old, new])
    header, first, second = run("usage", "list").splitlines()
    assert header.split()[:3] == ["arrived", "id", "account"]
    assert first.split()[2:4] == [new.id, "other"]
    assert second.split()[2:4] == [old.id, "demo"]


def test_times_are_those_of_the_file_with_its_zone(tmp_path: Path, rows: UsageFiles) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"{file.read_text()}time_zone: Asia/Kolkata\n")
    record = end(days_ago(1))
    rows.write([record])
    text = run("usage", "list").splitlines()[1][: len("2026-11-21 10:30:00+05:30")]
    assert text.endswith("+05:30")
    assert datetime.fromisoformat(text) == datetime.fromisoformat(record.arrived_at).replace(microsecond=0)
    assert record.id in run("usage", "list", "--from", text)
    assert record.id not in run("usage", "list", "--to", text)


def test_list_has_two_lines_for_each_request_where_one_would_be_too_long(
    rows: UsageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failed = {"outcome": Outcome.UPSTREAM_FAILED, "error_code": "upstream_timeout", "status": 504}
    refused = {"outcome": Outcome.REFUSED, "error_code": "token_invalid", "status": 401, "usage_source": "none"}
    nameless = {"account": "", "model": "", "channel": "", "charge_micros": 0}
    old, new = end(days_ago(2), **failed), end(days_ago(1), **refused, **nameless)
    rows.write([old, new])
    lines = run("usage", "list").splitlines()
    assert [line.split() for line in lines] == [
        ["arrived", "id", "account", "channel"],
        [*local(new.arrived_at, UTC).split(), new.id, "-", "-"],
        ["refused", "token_invalid", "401", "0.00", "2300", "ms"],
        [*local(old.arrived_at, UTC).split(), old.id, "demo", "openai"],
        ["gpt-4o-mini", "upstream_failed", "upstream_timeout", "504", "11+41", "0.000123", "2300", "ms"],
    ]
    assert max(map(len, lines)) <= 80


def test_an_empty_list_is_a_sentence(rows: UsageFiles) -> None:
    assert "There are no such requests" in run("usage", "list")
    assert run("usage", "list", "--json") == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("data", "data: {folder}/data is a file, not a folder: move it away, or change `data:`"),
        ("data/usage", "usage: cannot use {folder}/data/usage: Not a directory"),
    ],
)
@pytest.mark.parametrize("command", ["list", "summary"])
def test_a_file_in_the_place_of_a_folder_is_named(command: str, name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("no folder")
    file = tmp_path / "gateway.yaml"
    file.write_text(f"data: {tmp_path / 'data'}\n")
    result = CliRunner().invoke(app, ["usage", command, "-c", str(file)])
    assert result.exit_code != 0
    assert result.output == f"gateway: {said.format(folder=tmp_path)}\n"


def test_list_filters_by_account_time_and_outcome_and_limits_the_number(rows: UsageFiles) -> None:
    old, new, cut = end(days_ago(2)), end(days_ago(0.5)), end(days_ago(0.25), outcome=Outcome.CALLER_GONE)
    other = end(days_ago(0.1), account="other")
    rows.write([old, new, cut, other])
    mine = ("usage", "list", "--json", "--account", "demo")
    assert records(run(*mine)) == [cut, new, old]
    assert records(run(*mine, "--since", "1d")) == [cut, new]
    assert records(run(*mine, "--since", old.arrived_at[:10])) == [cut, new, old]
    assert records(run(*mine, "--outcome", "caller_gone")) == [cut]
    note, line = sorted(run(*mine, "--limit", "1").splitlines(), key=lambda each: each.startswith("{"))
    assert (records(line), note) == ([cut], "note: 1 are listed, and there are more: give a larger --limit")
    assert records(run("usage", "export", "--token", new.token_id)) == [old, new, cut, other]
    rows.write([end(days_ago(0.2), token_id="demo-2")])
    for command in (("usage", "list", "--json"), ("usage", "export"), ("usage", "summary", "--json")):
        assert len(run(*command, "--token", "demo-2").splitlines()) == 1


def test_an_invalid_time_is_wrong_usage_with_an_example(rows: UsageFiles) -> None:
    for text in ("5x", "yesterday", "2026-13-01", "-1h", ""):
        printed = run("usage", "list", "--since", text, code=2).replace("\u2502", "")
        assert "30m, 12h, 7d" in " ".join(printed.split())


def test_a_time_that_ends_before_it_begins_is_wrong_usage(rows: UsageFiles) -> None:
    for command in ("list", "summary", "export"):
        assert "must be before" in run("usage", command, "--from", "1h", "--to", "2h", code=2)
    assert run("usage", "list", "--json", "--from", "9998-12", "--to", "9999-12-30") == ""
    assert run("usage", "list", "--json", "--from", "0001-01", "--to", "1970-01") == ""


def test_show_prints_every_field(rows: UsageFiles) -> None:
    record = end(arrival())
    rows.write([record])
    assert records(run("usage", "show", record.id, "--json")) == [record]
    shown = dict(line.split(maxsplit=1) for line in run("usage", "show", record.id).splitlines())
    assert shown.keys() == {*msgspec.to_builtins(record), "charge"}
    assert shown["charge_micros"].strip() == "123"
    assert msgspec.json.decode(shown["price"]) == record.price


async def test_show_finds_what_is_still_in_the_stream(rows: UsageFiles, client: Client) -> None:
    log = UsageLog(client, UsageFiles(rows.folder))
    opened = arrival()
    await log.submit_arrival(opened)
    shown = await asyncio.to_thread(run, "usage", "show", opened.id, "--json")
    assert records(shown) == [opened]


def test_show_prints_nothing_that_a_terminal_would_obey(rows: UsageFiles) -> None:
    record = end(arrival(), upstream_usage='{"x":"\u009b2J",\n"prompt_tokens":1}')
    rows.write([record])
    shown = run("usage", "show", record.id)
    assert "\u009b" not in shown
    assert '{"x":"\\x9b2J",\\n"prompt_tokens":1}' in shown


def test_show_refuses_an_unknown_request(rows: UsageFiles) -> None:
    missing = arrival().id
    assert missing in run("usage", "show", missing, code=3)


def test_summary_groups_by_the_given_names(rows: UsageFiles) -> None:
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
    groups = ["day", "(UTC)", "token_id", "requests", "completed", "prompt", "cached", "written", "output"]
    assert header.split() == [*groups, "charge", "cost", "margin", "unknown"]
    sums = ["3", "3", "33", "4", "(12.1", "%)", "2", "123", "0.000246", "-", "-", "2"]
    assert [line.split() for line in lines] == [[day, "demo-k3f9x2ab", *sums], ["total", *sums]]


def test_summary_leaves_out_the_least_important_columns_of_a_table_that_is_too_wide(
    rows: UsageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows.write([end(days_ago(1), **COSTED)])
    result = CliRunner().invoke(app, ["usage", "summary", "--by", "day,account,model"])
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.splitlines()[0].split() == [
        *("day", "(UTC)", "account", "model", "requests", "output", "charge", "cost", "unknown")
    ]
    left_out = "written, cached, completed, margin, prompt"
    assert result.stderr == f"note: too wide for {left_out}; --csv and --json have all columns\n"


def test_requests_are_selected_and_summed_by_times_and_by_what_no_day_tells(rows: UsageFiles) -> None:
    at = 1_798_761_600_000  # 2027-01-01
    early, late = end(arrival(id_at(at))), end(arrival(id_at(at + 5_400_000)), outcome=Outcome.REFUSED, error_code="x")
    other = end(arrival(id_at(at + 5_400_000)), model="llama", group="trial")
    december = end(arrival(id_at(at - 1)))
    rows.write([early, late, other, december])

    def counted(*arguments: str) -> list[tuple[object, ...]]:
        lines = run("usage", "summary", "--json", *arguments).splitlines()
        totals = [msgspec.json.decode(line) for line in lines]
        return [(*list(total.values())[: -len(SUMS)], total["requests"]) for total in totals]

    assert counted("--by", "month") == [("2026-12", 1), ("2027-01", 3)]
    assert counted("--by", "month,hour", "--model", "gpt-4o-mini") == [
        ("2026-12", "2026-12-31T23", 1),
        ("2027-01", "2027-01-01T00", 1),
        ("2027-01", "2027-01-01T01", 1),
    ]
    assert counted("--by", "group,error", "--from", "2027-01") == [
        ("default", "", 1),
        ("default", "x", 1),
        ("trial", "", 1),
    ]
    assert counted("--by", "outcome", "--to", "2026-12") == [("completed", 1)]
    assert counted("--by", "model", "--from", "2027-01-01T01:00") == [("gpt-4o-mini", 1), ("llama", 1)]
    assert counted("--by", "day", "--outcome", "refused", "--account", "demo") == [("2027-01-01", 1)]
    assert records(run("usage", "list", "--json", "--from", "2027-01-01", "--to", "2027-01-01T00:30")) == [early]
    assert records(run("usage", "export", "--to", "2026-12")) == [december]
    (row,) = csv.DictReader(StringIO(run("usage", "list", "--csv", "--model", "llama")))
    assert row["id"] == other.id


def test_a_cost_that_is_not_known_is_not_0(rows: UsageFiles) -> None:
    rows.write([end(arrival()), end(arrival(), attempts=[], charge_micros=0, cost_micros=0, margin_micros=0)])
    for line in run("usage", "summary").splitlines()[1:]:
        assert line.split()[-3:] == ["-", "-", "1"]


def test_a_formula_is_a_text_in_csv(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv([{"model": text, "charge": -5} for text in ("=1+1", "+1", "-1", "@x", "gpt-4")])
    assert capsys.readouterr().out.split() == ["model,charge", "'=1+1,-5", "'+1,-5", "'-1,-5", "'@x,-5", "gpt-4,-5"]


def test_summary_and_export_print_csv(rows: UsageFiles) -> None:
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


def test_summary_includes_its_first_and_last_day(rows: UsageFiles) -> None:
    arrivals = [days_ago(days) for days in (3, 2, 1, 0)]
    rows.write(map(end, arrivals))
    first, last = arrivals[1].arrived_at[:10], arrivals[2].arrived_at[:10]
    printed = run("usage", "summary", "--from", first, "--to", last, "--json").splitlines()
    assert [msgspec.json.decode(line)["day"] for line in printed] == [first, last]


def test_summary_refuses_an_unknown_name(rows: UsageFiles) -> None:
    assert "nope" in run("usage", "summary", "--by", "day,nope", code=2)


def test_export_prints_all_the_oldest_first(rows: UsageFiles) -> None:
    written = [end(days_ago(days)) for days in range(70, 0, -1)]
    rows.write(written)
    assert records(run("usage", "export")) == written


async def test_tail_prints_each_request_when_it_has_ended(rows: UsageFiles) -> None:
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
