"""Accounts and payments of CSV files: many at once, repeatable, with the lines that were refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.base.crash_points import EXIT_CODE
from gateway.cli.commands import program
from tests.cli.processes import gateway
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def configured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_url: str,
) -> None:
    file = tmp_path / "gateway.yaml"
    channels = "{east: {base_url: 'http://127.0.0.1:1/v1', api_key: '${NOT_SET_HERE}'}}"
    groups = "{default: {}, trial: {}}"
    text = f"redis: {store_url}\ndata: {tmp_path}\nchannels: {channels}\ngroups: {groups}\n"
    file.write_text(f"{text}store: {{timeout: {PATIENCE_S}}}\n")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(program(), ["account", *map(str, arguments)])


def report(*arguments: str | Path, code: int = 0) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def written(folder: Path, *lines: str) -> Path:
    file = folder / "accounts.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return file


def test_a_thousand_accounts_are_created_and_credited_and_a_repetition_changes_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, "id,group,amount", *(f"user{number:04},trial,5.00" for number in range(1000)))
    done = {"rows": 1000, "created": 1000, "credited": 1000, "credited_before": 0, "credited_micros": 5_000_000_000}
    assert report("import", file) == done | {"refused": []}
    again = {"created": 0, "credited": 0, "credited_before": 1000, "credited_micros": 0}
    assert report("import", file) == done | again | {"refused": []}
    shown = json.loads(call("show", "user0999", "--json").stdout)
    assert (shown["group"], shown["balance_micros"]) == ("trial", 5_000_000)


def test_lines_that_are_refused_are_named_and_the_others_are_done(tmp_path: Path) -> None:
    file = written(tmp_path, "id,group,amount", "alice,,1", "B,,1", "carol,nowhere,1", "dave,,-1", "erin,,x", "frank,,")
    result = report("import", file, code=1)
    assert [refused["line"] for refused in result["refused"]] == [3, 4, 5, 6]
    assert (result["created"], result["credited"]) == (2, 1)
    plain = call("import", file)
    assert "line 4: the configuration has no group `nowhere`" in plain.stderr
    assert "6 lines: 0 accounts created, 0 credited with 0.00 in all, 1 credited before, 4 refused" in plain.stdout


def test_payments_are_credited_once_and_create_no_account(tmp_path: Path) -> None:
    assert call("create", "alice").exit_code == 0
    lines = ["alice,2.50,invoice-1", "alice,2.50,invoice-2", "nobody,1,invoice-3", "alice,9,invoice-1", "alice,1,"]
    file = written(tmp_path, "id,amount,transaction", *lines)
    result = report("credit", "--from", file, code=1)
    # of the two lines with one transaction, whichever is first is booked
    assert result["credited"] == 2
    assert [refused["line"] for refused in result["refused"]][-1] == 6
    assert {4, 6} <= {refused["line"] for refused in result["refused"]}
    assert report("credit", "--from", file, code=1)["credited"] == 0


@pytest.mark.parametrize(
    "lines",
    [["name,amount", "a,1"], [""], ["id,amount,transaction,colour", "a,1,t,red"]],
    ids=["no id", "empty", "unknown"],
)
def test_a_file_with_other_columns_is_wrong_usage(tmp_path: Path, lines: list[str]) -> None:
    result = call("credit", "--from", written(tmp_path, *lines))
    assert result.exit_code == 2
    assert "amount, transaction, and id or external_id" in result.output


def test_credit_needs_an_account_or_a_file() -> None:
    assert call("credit").exit_code == 2
    assert call("credit", "alice", "5").exit_code == 2


def test_external_ids_are_imported_and_name_accounts_to_credit(tmp_path: Path) -> None:
    file = written(tmp_path, "id,external_id", "alice,a@example.com", "robert,user-17", "carol,user-17", "dave,")
    result = report("import", file, code=1)
    (refused,) = result["refused"]
    assert result["created"] == 3
    assert refused["line"] in (3, 4), "the one that came second"
    assert "the external id 'user-17' " in refused["message"]
    dave = written(tmp_path, "id,external_id", "alice,a@example.com", "dave,d", "alice,other")
    refused = report("import", dave, code=1)["refused"]
    assert refused == [{"line": 4, "message": "the account `alice` has another external id: 'a@example.com'"}]
    payments = ["external_id,amount,transaction", "a@example.com,5,t1", "d,6,t2", "nobody,1,t3", ",1,t4"]
    result = report("credit", "--from", written(tmp_path, *payments), code=1)
    assert [refused["message"] for refused in result["refused"]] == [
        "no account has the external id 'nobody'; look it up in the list of accounts",
        "it names no account",
    ]
    assert result["credited_micros"] == 11_000_000
    again = written(tmp_path, "id,amount,transaction", "ext:d,6,t2")
    assert report("credit", "--from", again)["credited_before"] == 1


def test_two_lines_of_an_account_keep_its_external_id_and_one_of_another_account_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.csv"
    lines = [f"dup{n:03},e{n},{amount},{kind}{n}\n" for n in range(20) for kind, amount in (("a", 1), ("b", 2))]
    file.write_text("id,external_id,amount,transaction\n" + "".join(lines))
    result = CliRunner().invoke(program(), ["account", "import", str(file), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["refused"]) == (0, [])
    shown = CliRunner().invoke(program(), ["account", "show", "ext:e7", "--json"])
    account = json.loads(shown.stdout)
    assert (account["id"], account["balance_micros"]) == ("dup007", 3_000_000)
    thief = CliRunner().invoke(program(), ["account", "create", "thief", "--external-id", "e7"])
    assert thief.exit_code == 4
    file.write_text("id,external_id,amount,transaction\ndup000,e1,7,mixed\n")
    result = CliRunner().invoke(program(), ["account", "credit", "--from", str(file)])
    assert (result.exit_code, "does not have the external id 'e1'" in result.stderr) == (1, True)
    file.write_text("id,amount,amount,transaction\ndup000,1,100,twice\n")
    result = CliRunner().invoke(program(), ["account", "credit", "--from", str(file)])
    assert (result.exit_code, "names a column twice" in result.stderr) == (2, True)


@pytest.mark.parametrize("label", ["import.row:1", "import.row:700", "external.claimed:400", "external.written:650"])
async def test_an_import_that_was_killed_is_completed_by_running_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    file = written(
        tmp_path, "id,external_id,amount", *(f"user{number:04},u{number}@example.com,5.00" for number in range(800))
    )
    monkeypatch.setenv("GATEWAY_CRASH_AT", label)
    assert (await gateway("account", "import", str(file), cwd=tmp_path))[0] == EXIT_CODE
    monkeypatch.delenv("GATEWAY_CRASH_AT")
    code, out, err = await gateway("account", "import", str(file), "--json", cwd=tmp_path)
    progress = re.compile(r"\d+ of 800 lines\n")  # of one that takes long, on a busy machine
    assert (code, progress.sub("", err)) == (0, "")
    again = json.loads(out)
    assert again["credited"] + again["credited_before"] == again["rows"] == 800
    assert again["credited"] > 0
    code, out, err = await gateway("verify", cwd=tmp_path)
    assert code == 0, out + err
    assert "800 accounts, 800 ledger lines" in out


def test_a_file_with_semicolons_or_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = call("import", written(tmp_path, "id;group", "alice;default"))
    assert (result.exit_code, "separated by semicolons" in result.output) == (2, True)
    result = call("import", str(tmp_path / "none.csv"))
    assert (result.exit_code, "cannot be read: no such file or directory" in result.output) == (2, True)
    assert "Errno" not in result.output
