"""`gateway verify` reports what does not agree, and nothing that is merely late."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gateway.base.ids import month
from gateway.chain.services import Store
from gateway.cli.commands import program
from gateway.config.schema import Config, load
from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.store.embedded import EmbeddedStore
from gateway.store.money.archive import Archive, Archiver
from gateway.store.money.scripts import Settlement
from gateway.tools import verify
from gateway.usage.completeness import About
from gateway.usage.database import path_of
from gateway.usage.record import Record
from gateway.usage.stream import DROPPED, GATEWAYS, HEARD
from tests.patience import PATIENCE_S
from tests.records import arrival, end, id_at, usage_database
from tests.store.conftest import wallet_of_then

CHARGE = 27
"""The charge of an ordinary record, by its tokens and its price."""


class Books:
    """A configuration with a store of its own, an account and its usage log."""

    def __init__(self, file: Path, config: Config, store: Store) -> None:
        self.file, self.config, self.store = file, config, store
        self.rows = usage_database(config.data_path / "usage")

    async def request(self, age_s: float = 60, **changes: Any) -> Record:
        """Hold, charge and log a request that arrived `age_s` ago. `changes` are fields of its record."""
        arrived = arrival(id_at(round((time.time() - age_s) * 1000)))
        terms: dict[str, Any] = {"floor": 0, "lease_ms": 60_000, "fingerprint": "a", "max_holds": 100}
        await self.store.wallet.hold("acme", arrived.id, amount=1000, **terms)
        await self.store.wallet.settle("acme", arrived.id, CHARGE)
        record = end(arrived, **{"account": "acme", "charge_micros": CHARGE} | changes)
        self.rows.write([arrived, record])
        return record

    async def verify(self, *more: str, code: int = 0) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(await self.say("--json", *more, code=code))
        return report

    async def say(self, *more: str, code: int = 0) -> str:
        """Return what the command prints."""
        command = ["verify", "--config", str(self.file), *more]
        result = await asyncio.to_thread(CliRunner().invoke, program(), command)
        assert result.exit_code == code, result.output
        return result.output

    async def wrong(self) -> str:
        """Return the text of the only problem."""
        (problem,) = (await self.verify(code=1))["wrong"]
        assert problem["account"] == "acme"
        return str(problem["what"])


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    store = EmbeddedStore.start(tmp_path / "store")
    file = tmp_path / "gateway.yaml"
    file.write_text(f"redis: {store.url}\ndata: {tmp_path}/data\nstore: {{timeout: {PATIENCE_S}}}\n")
    config = load(file).config
    async with Store.open(config, store.url) as opened:
        await opened.accounts.create("acme")
        await opened.wallet.credit("acme", "opening", 1_000_000)
        made = Books(file, config, opened)
        yield made
        made.rows.close()
    store.stop()


async def test_books_that_agree_are_right(books: Books) -> None:
    for _ in range(3):
        await books.request()
    await books.store.accounts.create("empty")
    report = await books.verify()
    assert (report["accounts"], report["lines"], report["agreed"], report["unknown"]) == (2, 4, 3, 0)
    assert (report["wrong"], report["notes"]) == ([], [])


async def test_people_get_a_sentence(books: Books) -> None:
    await books.request()
    assert await books.say() == (
        "all is right: 1 account, 2 ledger lines, 1 request agrees with the usage log, 0 could not be compared\n"
    )
    await books.store.client.call("HSET", "gw:{acme}:wallet", "numbers", "999974 0 0 0")
    out = await books.say(code=1)
    assert out.startswith(
        "WRONG: account acme: the balance is 0.999974, the ledger adds up to 0.999973\n1 thing is wrong"
    )


async def test_a_charge_that_differs_from_the_log_is_reported(books: Books) -> None:
    record = await books.request(charge_micros=CHARGE + 1, price={})
    assert (
        await books.wrong() == f"request {record.id} was charged 0.000027 in the ledger and 0.000028 in the usage log"
    )


async def test_charges_of_an_account_that_the_store_does_not_have_are_reported(books: Books) -> None:
    books.rows.write([end(arrival(), account="gone", charge_micros=CHARGE) for _ in range(2)])
    books.rows.write([end(arrival(), account="free", charge_micros=0, price={})])
    (problem,) = (await books.verify(code=1))["wrong"]
    what = "2 requests were charged 54 micros in the usage log, and the store has no such account"
    assert problem == {"account": "gone", "what": what}
    assert (await books.verify("acme"))["wrong"] == []


async def test_a_settlement_of_an_earlier_copy_of_the_journal_that_was_charged_is_not_late(books: Books) -> None:
    record, other = await books.request(), await books.request()
    # A day later their ends are not kept any more, and a settlement is too late to be known.
    await books.store.client.call("HDEL", "gw:{acme}:wallet", record.id, other.id)
    await books.store.client.call("HSET", "gw:{acme}:stale", record.id, CHARGE)
    report = await books.verify()
    assert (report["stale"], report["agreed"]) == ([], 2)
    unknown = id_at(1)
    await books.store.client.call("HSET", "gw:{acme}:stale", other.id, CHARGE + 1, unknown, 5)
    assert {each["what"].split()[1] for each in (await books.verify())["stale"]} == {other.id, unknown}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("DEL", "gw:{bad}:wallet"), "has no balance in the store"),
        (("HSET", "gw:{bad}:wallet", "numbers", "1 2"), "is not as it was written"),
        (("HSET", "gw:{bad}:account", "limits", "{"), "is not as it was written"),
        (("HSET", "gw:{bad}:account", "status", "odd"), "is not as it was written"),
        (("HSET", "gw:{bad}:wallet", "archived", "1 2 3"), "the wallet's field `archived` is not as it was written"),
        (("HSET", "gw:{bad}:wallet", "D", "soon"), "is not as it was written"),
        (("HSET", "gw:{bad}:credits", "c", "much"), "is not as it was written"),
        (("XADD", "gw:{bad}:ledger", "*", "kind", "settle"), "is not as it was written"),
        (("SET", "gw:{bad}:leases", "x"), "WRONGTYPE"),
    ],
)
async def test_what_cannot_be_read_of_one_account_is_named_and_stops_no_other(
    books: Books, command: tuple[str, ...], named: str
) -> None:
    store, client = books.store, books.store.client
    await store.accounts.create("bad")
    if command[0] == "SET":
        await client.call("DEL", command[1])
    await client.call(*command)
    await store.accounts.create("zed")
    await client.call("HSET", "gw:{zed}:wallet", "numbers", "7 0 0 0")
    wrong = {each["account"]: each["what"] for each in (await books.verify(code=1))["wrong"]}
    assert sorted(wrong) == ["bad", "zed"]
    assert named in wrong["bad"]
    assert wrong["zed"].startswith("the balance is 0.000007")
    assert (await books.verify("acme"))["wrong"] == []
    assert "bad" in [each["account"] for each in (await books.verify("bad", code=1))["wrong"]]


async def test_a_charge_that_differs_from_its_own_price_is_reported(books: Books) -> None:
    record = await books.request(completion_tokens=43)
    assert await books.wrong() == f"request {record.id} was charged 0.000027, its price and tokens come to 0.000028"


async def test_a_capped_charge_is_computed_as_capped(books: Books) -> None:
    price = {"input": 150_000, "output": 600_000, "ratio": "1", "capped_micros": CHARGE}
    await books.request(completion_tokens=5000, price=price)
    assert (await books.verify())["agreed"] == 1


async def test_a_charge_that_never_reached_the_ledger_is_reported(books: Books) -> None:
    arrived = arrival()
    books.rows.write([arrived, end(arrived, account="acme", charge_micros=CHARGE)])
    assert await books.wrong() == f"request {arrived.id} was charged 0.000027 in the usage log and never in the ledger"


async def test_a_charge_in_the_journal_is_not_reported(books: Books) -> None:
    arrived = arrival()
    books.rows.write([arrived, end(arrived, account="acme", charge_micros=CHARGE)])
    books.store.journal.append(Settlement("acme", arrived.id, CHARGE))
    report = await books.verify()
    assert (report["wrong"], report["unknown"]) == ([], 1)
    books.store.journal.close()
    await books.store.journal.replay(books.store.wallet.deliver)
    assert (await books.verify())["agreed"] == 1


async def test_a_cost_that_came_too_late_is_listed_and_not_wrong(books: Books) -> None:
    old = arrival(id_at(round((time.time() - 2 * 86_400) * 1000)))
    await books.store.wallet.settle("acme", old.id, CHARGE)
    books.rows.write([old, end(old, account="acme", charge_micros=CHARGE)])
    report = await books.verify()
    assert report["stale"] == [{"account": "acme", "what": f"request {old.id} cost 0.000027"}]


async def test_a_charge_without_a_record_is_reported_once_the_record_cannot_be_late(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    await books.request()
    lost = arrival()
    await books.store.wallet.settle("acme", lost.id, CHARGE)
    report = await books.verify()
    assert (report["wrong"], report["unknown"]) == ([], 1)
    monkeypatch.setattr(verify, "SETTLED_MS", 0)
    assert await books.wrong() == f"request {lost.id} was charged 0.000027 and is not in the usage log"


async def test_records_that_are_not_in_the_files_yet_are_a_note(books: Books) -> None:
    await books.request()
    await books.store.usage.end(end(arrival(), account="acme"))
    (note,) = (await books.verify())["notes"]
    assert note.startswith("1 entries of the usage log are not written yet")


async def test_a_gateway_that_is_away_is_a_note_and_what_it_may_have_is_not_wrong(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "SETTLED_MS", 0)
    await books.request()
    lost = arrival(id_at(round((time.time() - 60) * 1000)))
    await books.store.wallet.settle("acme", lost.id, CHARGE)
    await away(books.store.client, "0" * 32, heard_s_ago=3600)
    report = await books.verify()
    assert (report["wrong"], report["unknown"]) == ([], 1)
    (note,) = report["notes"]
    assert note.startswith("gateway other-host (00000000) was last heard of at ")
    await away(books.store.client, "0" * 32, heard_s_ago=1)
    assert await books.wrong() == f"request {lost.id} was charged 0.000027 and is not in the usage log"


async def away(client: Client, installation: str, heard_s_ago: float, listen: str = "") -> None:
    """Register another gateway, which was last heard of some seconds ago."""
    about = msgspec.json.encode(About(host="other-host", listen=listen))
    await client.call("HSET", GATEWAYS, installation, about)
    await client.call("ZADD", HEARD, round((time.time() - heard_s_ago) * 1000), installation)


async def test_an_archived_charge_is_compared_if_the_archive_is_read(books: Books, tmp_path: Path) -> None:
    old, young, lost = arrival(id_at(round((time.time() - 100 * 86_400) * 1000))), arrival(), arrival()
    await books.store.accounts.create("elder")
    await wallet_of_then(books.store.client, 100 * 86_400).settle("elder", old.id, CHARGE)
    await books.store.wallet.settle("elder", young.id, CHARGE)
    for each in (old, young):
        books.rows.write([each, end(each, account="elder", charge_micros=CHARGE)])
    archive = Archive(tmp_path / "archive")
    before_ms = round((time.time() - 90 * 86_400) * 1000)
    assert await Archiver(books.store.client, archive).move("elder", before_ms) == 1
    report = await books.verify()
    assert (report["agreed"], report["unknown"], report["unread"]) == (1, 1, 1)
    report = await books.verify("--archive", str(archive.folder))
    assert (report["agreed"], report["unknown"], report["unread"]) == (2, 0, 0)
    books.rows.write([lost, end(lost, account="elder", charge_micros=CHARGE)])
    (problem,) = (await books.verify(code=1))["wrong"]
    assert problem["what"] == f"request {lost.id} was charged 0.000027 in the usage log and never in the ledger"


async def test_a_request_that_crashed_is_not_compared(books: Books) -> None:
    await books.request(outcome=Outcome.GATEWAY_CRASHED, charge_micros=0, price={})
    assert (await books.verify())["unknown"] == 1


async def test_a_hold_past_its_lease_is_ended_and_reported(books: Books) -> None:
    request_id = arrival().id
    terms: dict[str, Any] = {"floor": 5, "lease_ms": 1, "fingerprint": "a", "max_holds": 100}
    await books.store.wallet.hold("acme", request_id, amount=10, **terms)
    report = await books.verify()
    assert report["expired"] == [{"account": "acme", "what": f"request {request_id} was charged 0.000005"}]


async def test_one_account_may_be_checked(books: Books) -> None:
    await books.store.accounts.create("other")
    assert (await books.verify("other"))["accounts"] == 1
    assert "there is no account `nobody`" in await books.say("nobody", code=3)


async def test_lines_of_the_journal_that_cannot_be_read_are_reported_without_hiding_the_rest(books: Books) -> None:
    await books.request()
    books.store.journal.append(Settlement("acme", arrival().id, 1))
    books.store.journal.close()
    (file,) = books.store.journal.directory.iterdir()
    file.write_bytes(b"garbage\n" + file.read_bytes())
    report = await books.verify(code=1)
    assert report["damaged"] == [f"{file} has 1 lines that cannot be read; the gateway sets them aside"]
    assert (report["agreed"], report["wrong"]) == (1, [])
    assert await books.store.journal.replay(books.store.wallet.deliver) == 1
    assert f"DAMAGED: {file.parent}/unreadable/{file.name} has lines of the journal" in await books.say(code=1)


async def test_records_in_a_file_that_was_set_aside_are_not_reported_as_lost(books: Books) -> None:
    record = await books.request()
    books.rows.close()
    path_of(books.rows.folder, month(record.id)).write_bytes(b"garbage" * 1000)
    books.rows.write([end(arrival(), account="none", charge_micros=0, price={})])
    report = await books.verify(code=1)
    assert (report["wrong"], report["unknown"]) == ([], 1)
    assert [".damaged-" in text for text in report["damaged"]] == [True]


async def test_a_check_of_the_store_says_that_it_asks_no_other_gateway(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_API", "http://127.0.0.1:1")
    assert "does not ask $GATEWAY_API" in await books.say()


async def test_a_month_that_was_deleted_as_too_old_is_said(books: Books) -> None:
    await books.request()
    await books.store.client.call("SET", DROPPED, "2025-09")
    assert "note: 2025-09 was deleted from the usage log within the last day" in await books.say()
