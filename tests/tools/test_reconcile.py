"""Bills and the calls of the usage log: read as they are written, and joined by every id."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.tools.reconcile import BillLine, Call, Columns, Join, Sum, amount, logged, read
from gateway.usage.database import UnusableFile, UsageFiles, path_of
from gateway.usage.record import AttemptRecord, Record
from tests.records import arrival, end, id_at, usage_database

# Bills are read as programs write them, and each mistake is one clear line.
COLUMNS = Columns("id", "cost", "day", "model")
BILL = "id,cost,day,model\na,0.5,2026-11-21,m\nb,0.25,2026-11-22,m\n"
HOW = ": a point separates decimals, and nothing thousands; leave out the currency"
LINES = [BillLine(2, "a", 500_000_000, "2026-11-21", "m"), BillLine(3, "b", 250_000_000, "2026-11-22", "m")]


def lines(tmp_path: Path, content: str | bytes, columns: Columns = COLUMNS) -> list[BillLine]:
    file = tmp_path / "bill.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read(file, columns))


def refusal(tmp_path: Path, content: str | bytes, columns: Columns = COLUMNS) -> str:
    with pytest.raises(Misconfigured) as refused:
        lines(tmp_path, content, columns)
    return str(refused.value).replace(str(tmp_path / "bill.csv"), "bill.csv")


FORMS = {
    "plain": BILL.encode(),
    "a byte order mark": b"\xef\xbb\xbf" + BILL.encode(),
    "line ends of Windows": BILL.replace("\n", "\r\n").encode(),
    "no line end at the end": BILL.rstrip().encode(),
    "quotes": b'"id","cost","day","model"\n"a","0.5","2026-11-21","m"\n"b","0.25","2026-11-22","m"\n',
    "blanks": b"id , cost,day,model\n a ,0.5 , 2026-11-21,m\nb,0.25,2026-11-22,m\n",
    "another order and more columns": b"x,model,day,cost,id,y\n,m,2026-11-21,0.5,a,\n,m,2026-11-22,0.25,b,\n",
    "times": b"id,cost,day,model\na,0.5,2026-11-21T23:59:59Z,m\nb,0.25,2026-11-22 00:00:00,m\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_bill_is_read(tmp_path: Path, form: str) -> None:
    assert lines(tmp_path, FORMS[form]) == LINES


def test_lines_are_counted_as_editors_do(tmp_path: Path) -> None:
    text = "\n\nid,cost,day,model\n\na,0.5,2026-11-21,m\n,,,\n\n\nb,0.25,2026-11-22,m\n"
    assert [(line.number, line.id, line.cost) for line in lines(tmp_path, text)] == [
        (5, "a", 500_000_000),
        (9, "b", 250_000_000),
    ]


@pytest.mark.parametrize(
    ("text", "id_"),
    [("id,cost,day\na,1,nonsense\n", "a"), (f"id,cost\n{'x' * 500},1\n", "x" * 128), ("ID,id,cost\na,b,1\n", "b")],
    ids=["a column that was not asked for", "an id longer than records have it", "a name of other letters"],
)
def test_the_columns_that_were_asked_for_are_read(tmp_path: Path, text: str, id_: str) -> None:
    assert lines(tmp_path, text, Columns("id", "cost")) == [BillLine(2, id_, 1_000_000_000, "", "")]


def test_a_field_may_have_separators_and_line_ends_in_quotes(tmp_path: Path) -> None:
    text = 'id,cost,day,model\na,"1234.50",2026-11-21,"a ""model"",\nof two lines"\nb,1,2026-11-22,m\n'
    first, second = lines(tmp_path, text)
    assert (first.cost, first.model) == (1_234_500_000_000, 'a "model",\nof two lines')
    assert second.number == 4


READ = {
    "0": 0,
    "0.0012": 1_200_000,
    "12": 12_000_000_000,
    "-0.5": -500_000_000,
    "0.000000001": 1,
    "0.0000000015": 2,
    "4.2e-05": 42_000,
    "1E-3": 1_000_000,
    "1234567.50": None,
}


@pytest.mark.parametrize("text", READ)
def test_an_amount_is_read_exactly(text: str) -> None:
    if (nanos := READ[text]) is None:
        with pytest.raises(ValueError, match="is more than 1000000: is it the cost of one request"):
            amount(text)
    else:
        assert amount(text) == nanos


@pytest.mark.parametrize(
    "text",
    [
        *("abc", "NaN", "inf", "1.2.3", "--1", "12 34", "1,234.5", "0,5", "0x10", "$0.10", "0.10 USD", "5%", "(0.10)"),
        *("1/2", "1" * 100, "1.5.", "\u0663", "\u22120.10"),
    ],
)
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an amount such as 0\.0012: a point separates decimals") as refused:
        amount(text)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "bill.csv: empty; give a CSV file with a header"),
        ("\n\n", "bill.csv: empty; give a CSV file with a header"),
        (
            "request,amount,day,model\na,1,2026-11-21,m\n",
            "bill.csv: there is no column `id`; name yours with --id. It has: request, amount, day, model",
        ),
        (
            "id;cost;day;model\na;1;2026-11-21;m\n",
            "bill.csv: there is no column `id`; name yours with --id. It has: id;cost;day;model "
            "(commas must separate columns)",
        ),
        ("id,day,model\n", "bill.csv: there is no column `cost`; name yours with --cost. It has: id, day, model"),
        ("id,cost,cost,day,model\n", "bill.csv: the column `cost` is there 2 times; rename one"),
        ("id,cost,day,day,model\n", "bill.csv: the column `day` is there 2 times; rename one"),
        (BILL + "c\n", "bill.csv:4: it has 1 fields, fewer than the header: is a quote or a separator missing?"),
        (BILL + "c,,2026-11-21,m\n", "bill.csv:4: it has no cost"),
        (BILL + "c,free,2026-11-21,m\n", f"bill.csv:4: `free` is not an amount such as 0.0012{HOW}"),
        (BILL + "c,NaN,2026-11-21,m\n", f"bill.csv:4: `NaN` is not an amount such as 0.0012{HOW}"),
        (BILL + 'c,"1,234",2026-11-21,m\n', f"bill.csv:4: `1,234` is not an amount such as 0.0012{HOW}"),
        (BILL + "c\x07d,1,2026-11-21,m\n", "bill.csv:4: `c\\x07d` is not an id"),
        (
            BILL + "c,1,1795219200,m\n",
            "bill.csv:4: `1795219200` is not a day such as 2026-11-21: leave out --day, or convert the column",
        ),
        (
            BILL + "c,1,21/11/2026,m\n",
            "bill.csv:4: `21/11/2026` is not a day such as 2026-11-21: leave out --day, or convert the column",
        ),
        (
            BILL + 'c,"1,2026-11-21,m\n',
            "bill.csv: not valid CSV: unexpected end of data; look for a quote that is not closed",
        ),
        (
            BILL + 'c,"1"2,2026-11-21,m\n',
            "bill.csv: not valid CSV: ',' expected after '\"'; look for a quote that is not closed",
        ),
        (BILL.encode("utf-16"), "bill.csv: not UTF-8; convert it, as with `iconv -f cp1252 -t utf-8`"),
    ],
)
def test_a_damaged_bill_is_refused(tmp_path: Path, content: str | bytes, text: str) -> None:
    assert refusal(tmp_path, content) == text


def test_a_quote_that_is_never_closed_does_not_read_the_whole_file(tmp_path: Path) -> None:
    text = refusal(tmp_path, BILL + '"' + "c,1,2026-11-21,m\n" * 100_000)
    assert text.startswith("bill.csv: not valid CSV: field larger than field limit")


def test_every_wrong_line_is_named_up_to_ten(tmp_path: Path) -> None:
    text = refusal(tmp_path, BILL + "c,?,,\n" * 3).splitlines()
    assert [line.partition(": ")[0] for line in text] == ["bill.csv:4", "bill.csv:5", "bill.csv:6"]
    many = refusal(tmp_path, BILL + "c,?,,\n" * 300).splitlines()
    assert len(many) == 11
    assert many[-1] == "and perhaps more: only the first are shown"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(Misconfigured, match="name a readable CSV file"):
            list(read(path, COLUMNS))


# Lines of a bill and calls of the usage log are joined by every id that an upstream gives.
DAY = "2026-11-20"
EXACT = {"differs": 0, "only_in_bill": 0, "only_in_log": 0, "billed_twice": 0}


def line(id: str, cost: int, number: int = 2, day: str = DAY, model: str = "m") -> BillLine:  # noqa: A002
    return BillLine(number, id, cost, day, model)


def call(*names: str, cost: int | None = 10, day: str = DAY, channel: str = "openai", request: str = "r") -> Call:
    return Call(request, day, "m", channel, names, cost)


@pytest.fixture
def join() -> Iterator[Join]:
    with Join(lambda billed, expected: abs(billed - expected) > 2) as made:
        yield made


def joined(
    join: Join, lines: list[BillLine], calls: list[Call], *channels: str, first: str = "", last: str = ""
) -> dict[str, int]:
    """Join both sides and return how many were found of each kind."""
    join.add_lines(lines)
    join.add_calls(calls)
    join.join(first, last, channels)
    return {kind: join.total(kind)[0] for kind in EXACT}


def test_a_line_is_found_by_either_id(join: Join) -> None:
    found = joined(join, [line("req-1", 10), line("cmpl-2", 10)], [call("req-1", "cmpl-1"), call("req-2", "cmpl-2")])
    assert found == EXACT
    assert (join.count("matched"), join.count("agree")) == (2, 2)


def test_both_ids_of_a_call_on_the_bill_are_one_amount(join: Join) -> None:
    assert joined(join, [line("req", 4), line("cmpl", 6)], [call("req", "cmpl")])["differs"] == 0


def test_a_bill_without_days_is_of_the_days_of_its_calls(join: Join) -> None:
    calls = [call("a"), call("b", day="2026-11-22"), call("c", day="2026-11-21"), call("d", day="2026-11-23")]
    join.add_lines([line("a", 10, day=""), line("b", 10, day="")])
    join.add_calls(calls)
    assert join.join("", "", ()) == (DAY, "2026-11-22", ["openai"])
    assert [side.id for side in join.found("only_in_log")] == ["c"]


def test_an_id_of_several_calls_joins_nothing(join: Join) -> None:
    found = joined(join, [line("echo", 10), line("cmpl-2", 10)], [call("echo", "cmpl-1"), call("echo", "cmpl-2")])
    assert found == EXACT | {"only_in_bill": 1, "only_in_log": 1}
    assert join.count("shared") == 1


def test_the_sums_of_each_day_and_model(join: Join) -> None:
    lines = [line("a", 10), line("b", 20), line("b", 5), line("x", 7, model="other"), line("", 3, day="", model="")]
    calls = [call("a"), call("b", day="2026-11-21"), call("c", cost=None), call("d", cost=4)]
    joined(join, lines, calls)
    assert list(join.sums()) == [
        Sum("", "", 1, 0, 0, 3, 0),
        Sum(DAY, "m", 1, 3, 1, 10, 14),
        Sum(DAY, "other", 1, 0, 0, 7, 0),
        Sum("2026-11-21", "m", 2, 1, 0, 25, 10),
    ]


def test_the_temporary_file_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Join(lambda billed, expected: billed != expected) as join:
        join.add_lines([line("a", 1)])
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


# The calls of upstreams are read from the files.
NOV_20 = 1_795_132_800_000
"""2026-11-20 00:00 UTC."""
DAY_MS = 86_400_000


def served(at_ms: int, *attempts: AttemptRecord, **changes: object) -> Record:
    return end(arrival(id_at(at_ms)), attempts=list(attempts), **changes)


def calls(folder: Path, since_ms: int | None = None, until_ms: int | None = None) -> list[Call]:
    unusable: list[UnusableFile] = []
    found = list(logged(UsageFiles(folder), since_ms=since_ms, until_ms=until_ms, unusable=unusable))
    assert unusable == []
    return found


def test_each_attempt_is_a_call_with_its_names_and_its_cost(tmp_path: Path) -> None:
    record = served(
        NOV_20,
        AttemptRecord("a", 500, "upstream_error", 0, "req-1"),
        AttemptRecord("b", 200, "", 7, "req-2", "cmpl-2"),
        upstream_request_id="req-2",
    )
    usage_database(tmp_path).write([record])
    assert calls(tmp_path) == [
        Call(record.id, "2026-11-20", "gpt-4o-mini", "a", ("req-1",), 0),
        Call(record.id, "2026-11-20", "gpt-4o-mini", "b", ("req-2", "cmpl-2"), 7000),
    ]


def test_an_id_that_is_both_is_one_name(tmp_path: Path) -> None:
    usage_database(tmp_path).write([served(NOV_20, AttemptRecord("a", 200, "", 1, "same", "same"))])
    assert calls(tmp_path)[0].names == ("same",)


def test_where_no_cost_is_known_the_one_that_the_upstream_stated_counts(tmp_path: Path) -> None:
    tried, last = AttemptRecord("a", 502, "x", None, "req-1"), AttemptRecord("b", 200, "", None, "req-2")
    usage_database(tmp_path).write([served(NOV_20, tried, last, upstream_cost_micros=9)])
    assert [call.cost for call in calls(tmp_path)] == [None, 9000]


def test_only_requests_that_ended_and_called_an_upstream_count(tmp_path: Path) -> None:
    opened = arrival(id_at(NOV_20))
    usage_database(tmp_path).write([opened, served(NOV_20 + 1)])
    assert calls(tmp_path) == []


def test_only_requests_of_the_period_are_read(tmp_path: Path) -> None:
    attempt = AttemptRecord("a", 200)
    records = [served(NOV_20 + day * DAY_MS, attempt) for day in (-25, 0, 1, 2, 30)]
    usage_database(tmp_path).write(records)
    found = calls(tmp_path, NOV_20, NOV_20 + 2 * DAY_MS)
    assert [call.request for call in found] == [records[1].id, records[2].id]
    assert len(calls(tmp_path)) == 5


def test_the_last_attempt_without_an_id_has_that_of_the_record(tmp_path: Path) -> None:
    record = served(NOV_20, AttemptRecord("a", 500), AttemptRecord("b", 200), upstream_request_id="req-2")
    usage_database(tmp_path).write([record])
    with sqlite3.connect(path_of(tmp_path, "2026-11")) as file:
        plain = '[{"channel":"a","status":500,"error":"x"},{"channel":"b","status":200,"error":""}]'
        file.execute("UPDATE requests SET attempts = ?", (plain,))
    file.close()
    assert [(call.names, call.cost) for call in calls(tmp_path)] == [((), None), (("req-2",), None)]


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    attempt = AttemptRecord("a", 200)
    database = usage_database(tmp_path)
    database.write([served(NOV_20, attempt), served(NOV_20 - 25 * DAY_MS, attempt)])
    database.close()
    path_of(tmp_path, "2026-10").write_bytes(b"no database" * 1000)
    unusable: list[UnusableFile] = []
    assert len(list(logged(UsageFiles(tmp_path), since_ms=None, until_ms=None, unusable=unusable))) == 1
    assert "usage-2026-10.sqlite" in str(unusable[0])
