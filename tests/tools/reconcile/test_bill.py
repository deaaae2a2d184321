"""Bills are read in every form in which programs write them, and each mistake is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.tools.reconcile.bill import BillLine, Columns, read

COLUMNS = Columns("id", "cost", "day", "model")
BILL = "id,cost,day,model\na,0.5,2026-11-21,m\nb,0.25,2026-11-22,m\n"
LINES = [BillLine(2, "a", 500_000_000, "2026-11-21", "m"), BillLine(3, "b", 250_000_000, "2026-11-22", "m")]


def lines(tmp_path: Path, content: str | bytes, columns: Columns = COLUMNS, **options: str) -> list[BillLine]:
    file = tmp_path / "bill.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read(file, columns, **options))  # type: ignore[arg-type]


def refusal(tmp_path: Path, content: str | bytes, columns: Columns = COLUMNS, **options: str) -> str:
    with pytest.raises(Misconfigured) as refused:
        lines(tmp_path, content, columns, **options)
    return str(refused.value).replace(str(tmp_path / "bill.csv"), "bill.csv")


FORMS = {
    "plain": BILL.encode(),
    "a byte order mark": b"\xef\xbb\xbf" + BILL.encode(),
    "UTF-16": BILL.encode("utf-16"),
    "UTF-16 of the other order": b"\xfe\xff" + BILL.encode("utf-16-be"),
    "semicolons": BILL.replace(",", ";").encode(),
    "tabs": BILL.replace(",", "\t").encode(),
    "bars": BILL.replace(",", "|").encode(),
    "line ends of Windows": BILL.replace("\n", "\r\n").encode(),
    "no line end at the end": BILL.rstrip().encode(),
    "quotes": b'"id","cost","day","model"\n"a","0.5","2026-11-21","m"\n"b","0.25","2026-11-22","m"\n',
    "blanks": b"id , cost,day,model\n a ,0.5 , 2026-11-21,m\nb,0.25,2026-11-22,m\n",
    "another case": b"ID,Cost,DAY,Model\na,0.5,2026-11-21,m\nb,0.25,2026-11-22,m\n",
    "another order and more columns": b"x,model,day,cost,id,y\n,m,2026-11-21,0.5,a,\n,m,2026-11-22,0.25,b,\n",
    "times": b"id,cost,day,model\na,0.5,2026-11-21T23:59:59Z,m\nb,0.25,2026-11-22 00:00:00,m\n",
    "seconds since 1970": b"id,cost,day,model\na,0.5,1795219200,m\nb,0.25,1795305600000,m\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_bill_is_read(tmp_path: Path, form: str) -> None:
    assert lines(tmp_path, FORMS[form]) == LINES


def test_lines_are_counted_as_editors_do(tmp_path: Path) -> None:
    text = "sep=;\n\nid;cost;day;model\n\na;0,5;2026-11-21;m\n;;;\n\n\nb;0,25;2026-11-22;m\n"
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
    text = 'id,cost,day,model\na,"1,234.50",2026-11-21,"a ""model"",\nof two lines"\nb,1,2026-11-22,m\n'
    first, second = lines(tmp_path, text)
    assert (first.cost, first.model) == (1_234_500_000_000, 'a "model",\nof two lines')
    assert second.number == 4


def test_an_id_is_compared_up_to_the_length_that_records_have(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, f"id,cost\n{'x' * 500},1\n", Columns("id", "cost"))
    assert line.id == "x" * 128


def test_a_column_is_found_by_its_exact_name_first(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, "ID,id,cost\na,b,1\n", Columns("id", "cost"))
    assert line.id == "b"


def test_another_encoding_is_given(tmp_path: Path) -> None:
    content = "id,cost,day,model\na,1 €,2026-11-21,für\n".encode("cp1252")
    assert lines(tmp_path, content, encoding="cp1252")[0].model == "für"
    assert refusal(tmp_path, content) == "bill.csv: not UTF-8; give its encoding, as in `--encoding cp1252`"
    assert "there is no encoding `latin-99`" in refusal(tmp_path, content, encoding="latin-99")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "bill.csv: empty; give a CSV file with a header"),
        ("\n\n", "bill.csv: empty; give a CSV file with a header"),
        (
            "request;amount;day;model\na;1;2026-11-21;m\n",
            "bill.csv: there is no column `id`; name yours with --id. It has: request, amount, day, model",
        ),
        ("id,day,model\n", "bill.csv: there is no column `cost`; name yours with --cost. It has: id, day, model"),
        ("id,cost,cost,day,model\n", "bill.csv: the column `cost` is there 2 times; rename one"),
        ("id,cost,Day,DAY,model\n", "bill.csv: the column `day` is there 2 times; rename one"),
        (BILL + "c\n", "bill.csv:4: it has 1 fields, fewer than the header: is a quote or a separator missing?"),
        (BILL + "c,,2026-11-21,m\n", "bill.csv:4: it has no cost"),
        (BILL + "c,free,2026-11-21,m\n", "bill.csv:4: `free` is not an amount such as 0.0012"),
        (BILL + "c,NaN,2026-11-21,m\n", "bill.csv:4: `NaN` is not an amount such as 0.0012"),
        (BILL + 'c,"1,234",2026-11-21,m\n', None),
        (BILL + "c\x07d,1,2026-11-21,m\n", "bill.csv:4: `c\\x07d` is not an id"),
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
        (BILL.encode("utf-16-le"), None),
    ],
)
def test_a_damaged_bill_is_refused(tmp_path: Path, content: str | bytes, text: str | None) -> None:
    if text is None:
        if isinstance(content, bytes):
            assert "there is no column `id`" in refusal(tmp_path, content)
        else:
            assert lines(tmp_path, content)[2].cost == 1_234_000_000_000  # the lines before have a decimal point
    else:
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


def test_the_progress_is_the_bytes_that_were_read(tmp_path: Path) -> None:
    file = tmp_path / "bill.csv"
    file.write_text("id,cost\n" + "abcdefgh,0.001\n" * 20_000)
    told: list[int] = []
    assert sum(1 for _ in read(file, Columns("id", "cost"), progress=told.append)) == 20_000
    assert told == sorted(told)
    assert 2 <= len(told) <= 10
    assert 0 < told[-1] <= file.stat().st_size
