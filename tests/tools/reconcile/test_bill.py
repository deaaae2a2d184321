"""Bills are read as programs write them, and each mistake is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.tools.reconcile.bill import BillLine, Columns, amount, read

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


def test_columns_that_were_not_asked_for_are_not_read(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, "id,cost,day\na,1,nonsense\n", Columns("id", "cost"))
    assert line == BillLine(2, "a", 1_000_000_000, "", "")


def test_a_line_may_name_no_request_and_no_day(tmp_path: Path) -> None:
    assert lines(tmp_path, "id,cost,day,model\n,9,,fee\n") == [BillLine(2, "", 9_000_000_000, "", "fee")]


def test_a_field_may_have_separators_and_line_ends_in_quotes(tmp_path: Path) -> None:
    text = 'id,cost,day,model\na,"1234.50",2026-11-21,"a ""model"",\nof two lines"\nb,1,2026-11-22,m\n'
    first, second = lines(tmp_path, text)
    assert (first.cost, first.model) == (1_234_500_000_000, 'a "model",\nof two lines')
    assert second.number == 4


def test_an_id_is_compared_up_to_the_length_that_records_have(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, f"id,cost\n{'x' * 500},1\n", Columns("id", "cost"))
    assert line.id == "x" * 128


def test_a_column_is_found_by_its_exact_name(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, "ID,id,cost\na,b,1\n", Columns("id", "cost"))
    assert line.id == "b"


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
