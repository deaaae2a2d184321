"""`gateway reconcile` names every call on which a bill and the usage log do not agree."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.base.ids import utc
from gateway.cli.commands import program
from gateway.usage.record import AttemptRecord, Record
from tests.records import arrival, end, id_at, usage_database

DAY_MS = 86_400_000
NOON = (round(time.time() * 1000) // DAY_MS - 3) * DAY_MS + DAY_MS // 2
DAY = utc(NOON)[:10]
NEXT_DAY = utc(NOON + DAY_MS)[:10]
COST = 1500
"""The cost of an ordinary call, in micros."""


def record(
    number: int, cost: int | None = COST, channel: str = "openai", at_ms: int = 0, model: str = "gpt-4o"
) -> Record:
    attempt = AttemptRecord(channel, 200, "", cost, f"req-{number}", f"gen-{number}")
    return end(
        arrival(id_at(at_ms or NOON + number)), model=model, channel=channel, attempts=[attempt], cost_micros=cost
    )


class Books:
    """A configuration, its usage log, and a bill that agrees with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bill = folder / "bill.csv"
        self.file = folder / "gateway.yaml"
        self.file.write_text(
            f"data: {folder}\nchannels:\n  openai: {{base_url: 'http://a/v1', api_key: secret-of-openai}}\n"
            "  azure: {base_url: 'http://b/v1'}\n"
        )
        self.records = [record(number) for number in range(20)]
        self.lines = [f"{DAY}T12:00:00Z,gen-{number},openai/gpt-4o,0.0015" for number in range(20)]

    def run(self, *arguments: object, code: int = 0, **options: Any) -> Result:
        with closing(usage_database(self.folder / "usage")) as database:
            database.write(self.records)
        self.bill.write_text("\n".join(["created_at,generation_id,model,cost_total", *self.lines]) + "\n")
        return self.again(*arguments, code=code, **options)

    def again(self, *arguments: object, code: int = 0, **options: Any) -> Result:
        columns = ["--id", "generation_id", "--cost", "cost_total", "--day", "created_at", "--model", "model"]
        command = ["reconcile", str(self.bill), *columns, *map(str, arguments), "--config", str(self.file)]
        result = CliRunner().invoke(program(), command, **options)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: object, code: int = 0) -> dict[str, list[dict[str, Any]]]:
        """Return what is printed as JSON, by its kind."""
        kinds: dict[str, list[dict[str, Any]]] = {}
        for line in self.run("--json", *arguments, code=code).stdout.splitlines():
            row = json.loads(line)
            kinds.setdefault(row.pop("kind"), []).append(row)
        return kinds


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path)


def test_a_bill_that_agrees(books: Books) -> None:
    result = books.run()
    assert [line.split() for line in result.stdout.splitlines() if line] == [
        ["day", "model", "lines", "calls", "cost", "unknown", "billed", "expected", "difference"],
        [DAY, "gpt-4o", "20", "20", "0", "0.03", "0.03", "+0.00"],
        ["20", "of", "20", "calls", "on", "both", "sides", "agree."],
    ]
    assert result.stderr == f"note: calls of openai from {DAY} to {DAY} (UTC) must be on the bill\n"


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31"])
def test_a_day_at_the_end_of_the_calendar(books: Books, day: str) -> None:
    books.lines.append(f"{day},gen-foreign,openai/gpt-4o,0.02")
    assert [row["day"] for row in books.json(code=1)["only_in_bill"]] == [day]
    books.json("--from", min(day, DAY), "--to", max(day, DAY), code=1)


def test_three_rows_missing_two_foreign_and_four_that_differ(books: Books) -> None:
    for number in (3, 4, 5, 6):
        books.lines[number] = books.lines[number].replace("0.0015", f"0.00{number}")
    del books.lines[10:13]
    books.lines += [f"{DAY}T12:00:00Z,gen-foreign-{name},openai/gpt-4o,0.02" for name in "ab"]
    found = books.json(code=1)
    ids = {
        kind: [row["upstream_id"] for row in found.get(kind, [])] for kind in ("differs", "only_in_bill", "only_in_log")
    }
    assert ids == {
        "differs": ["gen-6", "gen-5", "gen-4", "gen-3"],
        "only_in_bill": ["gen-foreign-a", "gen-foreign-b"],
        "only_in_log": ["req-10", "req-11", "req-12"],
    }
    assert found["differs"][0] == {
        "upstream_id": "gen-6",
        "request": books.records[6].id,
        "day": DAY,
        "model": "gpt-4o",
        "channel": "openai",
        "line": 8,
        "lines": 1,
        "billed": "0.006",
        "expected": "0.0015",
    }
    assert [row["request"] for row in found["only_in_log"]] == [each.id for each in books.records[10:13]]
    assert [row["line"] for row in found["only_in_bill"]] == [19, 20]
    narrow = books.run(code=1, env={"COLUMNS": "80"}).stdout
    assert f"gen-6        {books.records[6].id}" in narrow  # both ids stay where other columns are left out
    (total,) = found["total"]
    assert (total["matched"], total["agree"]) == (17, 13)
    assert {kind: total[kind] for kind in ids} == {
        "differs": {"count": 4, "amount": "0.012"},
        "only_in_bill": {"count": 2, "amount": "0.04"},
        "only_in_log": {"count": 3, "amount": "-0.0045"},
    }
    sums = {
        (row["day"], row["model"]): (row["lines"], row["calls"], row["billed"], row["expected"]) for row in found["sum"]
    }
    assert sums == {(DAY, "gpt-4o"): (17, 20, "0.0375", "0.03"), (DAY, "openai/gpt-4o"): (2, 0, "0.04", "0.00")}
    table = books.again(code=1).stdout
    assert "4 billed in another amount than expected:\n" in table
    assert "2 only on the bill:\n" in table
    assert "3 only in the usage log:\n" in table
    assert f"8     gen-6        {books.records[6].id}  {DAY}  gpt-4o  0.006   0.0015    +0.0045" in table


def test_the_tolerance_is_an_amount_or_a_part(books: Books) -> None:
    books.lines[0] = books.lines[0].replace("0.0015", "0.00152")
    books.run(code=1)
    books.run("--tolerance", "0.00001", code=1)
    books.run("--tolerance", "0.00002")
    books.run("--tolerance", "1%", code=1)
    books.run("--tolerance", "1.4%")


def test_a_request_that_is_billed_twice_is_named(books: Books) -> None:
    books.lines.append(books.lines[7])
    found = books.json(code=1)
    (twice,) = found["billed_twice"]
    assert (twice["upstream_id"], twice["lines"], twice["line"], twice["billed"]) == ("gen-7", 2, 9, "0.003")
    assert [row["upstream_id"] for row in found["differs"]] == ["gen-7"]


def test_a_request_on_two_lines_that_sum_up_agrees(books: Books) -> None:
    books.lines[7] = books.lines[7].replace("0.0015", "0.0005")
    books.lines.append(books.lines[7].replace("0.0005", "0.001"))
    assert "1 on several lines of the bill:" in books.run().stdout


def test_other_channels_and_other_days_are_not_of_the_bill(books: Books) -> None:
    books.records += [record(50, channel="azure"), record(51, at_ms=NOON + DAY_MS)]
    books.run()
    assert [
        row["upstream_id"] for row in books.json("--channel", "azure", "--channel", "openai", code=1)["only_in_log"]
    ] == ["req-50"]
    late = books.json("--to", NEXT_DAY, code=1)
    assert [row["upstream_id"] for row in late["only_in_log"]] == ["req-51"]


def test_calls_without_a_known_cost_are_counted_and_not_compared(books: Books) -> None:
    books.records += [record(60, cost=None)]
    books.lines.append(f"{DAY},gen-60,openai/gpt-4o,123.45")
    result = books.run()
    assert "note: 1 calls have no known cost and were not compared: give their channels a `cost`" in result.stderr


def test_a_line_without_an_id_is_only_on_the_bill(books: Books) -> None:
    books.lines.append(f"{DAY},,monthly fee,20")
    assert [(row["upstream_id"], row["line"], row["billed"]) for row in books.json(code=1)["only_in_bill"]] == [
        ("", 22, "20.00")
    ]


def test_a_bill_of_which_nothing_is_known_says_what_to_look_at(books: Books) -> None:
    result = books.run("--id", "model", code=1)
    assert "note: no id of the bill is in the usage log: is --id the right column" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--id", "uuid"], "there is no column `uuid`; name yours with --id. It has: created_at, generation_id, model"),
        (["--tolerance", "much"], "`much` is not a tolerance"),
        (["--tolerance", "-1"], "`-1` is not a tolerance"),
        (["--channel", "opnai"], "there is no channel `opnai`; known: openai, azure"),
        (["--from", "yesterday"], "is not a time"),
        (["--cost", "model"], "bill.csv:2: `openai/gpt-4o` is not an amount"),
    ],
)
def test_a_mistake_is_one_clear_line(books: Books, arguments: list[str], text: str) -> None:
    stderr = books.run(*arguments, code=2).stderr
    assert text in " ".join(stderr.replace("│", " ").split())
    assert "secret-of-openai" not in stderr
