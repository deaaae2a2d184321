"""Archived lines are in the file, once and in order, and the balance equals their sum plus that of the ledger."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.base.errors import StoreAway, StoreError
from gateway.store.client.client import Argument, Client
from gateway.store.money.archive import YOUNGEST_S, Archive, Archived, ArchiveError, Archiver, encode
from gateway.store.money.wallet import Credit, Settle, Wallet
from tests.patience import PATIENCE_S
from tests.store.conftest import (
    ACCOUNT,
    KEY,
    StartStore,
    move_balance,
    new_request_id,
    numbers,
    open_account,
    overdue,
    set_numbers,
    take,
    wallet_of_then,
)

DAY_S = 24 * 3600
OLD_S = 100 * DAY_S


def days_ago(days: float) -> int:
    return int((time.time() - days * DAY_S) * 1000)


async def text_of_ledger(client: Client) -> bytes:
    """The ledger, encoded as the archive's file."""
    return b"".join(encode(line, fields) for line, fields in await client.call("XRANGE", KEY + "ledger", "-", "+"))


async def archived(client: Client) -> Archived:
    return Archived.of(await client.call("HGET", KEY + "wallet", "archived"))


@pytest.fixture
async def past(client: Client) -> Wallet:
    """A wallet that writes lines a hundred days old, of an account with 1000 micros since then."""
    await open_account(client)
    past = wallet_of_then(client, OLD_S)
    await past.credit(ACCOUNT, "opening", 1000)
    return past


@pytest.fixture
async def archive(tmp_path: Path, client: Client) -> AsyncIterator[Archive]:
    """An archive that is audited together with the ledger at the end of the test."""
    archive = Archive(tmp_path / "archive")
    yield archive
    wallet = Wallet(client)
    assert await wallet.verify(ACCOUNT) == []
    assert (await wallet.audit(ACCOUNT, archive)).wrong == []


@pytest.fixture
def archiver(client: Client, archive: Archive) -> Archiver:
    return Archiver(client, archive)


class TestArchiver:
    async def test_moves_old_lines_and_leaves_the_rest(
        self, client: Client, past: Wallet, archive: Archive, archiver: Archiver
    ) -> None:
        await past.settle(ACCOUNT, new_request_id(OLD_S), 7)
        await past.adjust(ACCOUNT, "gift", -3, "a “reason”")
        old = await text_of_ledger(client)
        await Wallet(client).settle(ACCOUNT, new_request_id(), 5)
        assert await archiver.move(ACCOUNT, days_ago(90)) == 3
        assert archive.file(ACCOUNT).read_bytes() == old
        assert archive.file(ACCOUNT).stat().st_mode & 0o777 == 0o600
        moved = await archived(client)
        assert (moved.lines, moved.total, moved.transactions, moved.credited) == (3, 990, 2, 997)
        assert await client.call("XLEN", KEY + "ledger") == 1
        assert await archiver.move(ACCOUNT, days_ago(90)) == 0

    async def test_moves_no_line_at_or_after_the_given_time(
        self, client: Client, past: Wallet, archiver: Archiver
    ) -> None:
        ((line, _),) = await client.call("XRANGE", KEY + "ledger", "-", "+")
        moment = int(line.partition(b"-")[0])
        assert await archiver.move(ACCOUNT, moment) == 0
        assert await archiver.move(ACCOUNT, moment + 1) == 1

    async def test_an_account_without_old_lines_gets_no_file(
        self, client: Client, archive: Archive, archiver: Archiver
    ) -> None:
        await open_account(client, 10)
        assert await archiver.move(ACCOUNT, days_ago(90)) == 0
        assert await archiver.move("nobody", days_ago(90)) == 0
        assert not archive.folder.exists()

    async def test_moves_many_pages_while_the_account_is_verified_and_used(
        self, client: Client, past: Wallet, archiver: Archiver
    ) -> None:
        await asyncio.gather(*(past.settle(ACCOUNT, new_request_id(OLD_S), 1) for _ in range(3500)))
        now, moving = Wallet(client), asyncio.create_task(archiver.move(ACCOUNT, days_ago(90)))
        verified = 0
        while not moving.done():
            await now.settle(ACCOUNT, new_request_id(), 1)
            assert await now.verify(ACCOUNT) == []
            verified += 1
        assert await moving == 3501
        assert verified >= 1
        assert await client.call("XLEN", KEY + "ledger") == verified

    async def test_a_line_to_which_a_late_settlement_may_refer_is_refused(
        self, client: Client, archive: Archive, archiver: Archiver
    ) -> None:
        await open_account(client)
        await wallet_of_then(client, YOUNGEST_S - 60).credit(ACCOUNT, "opening", 10)
        with pytest.raises(StoreError, match="too young"):
            await archiver.move(ACCOUNT, days_ago(0))
        assert await client.call("XLEN", KEY + "ledger") == 1
        assert await archived(client) == Archived()

    async def test_a_request_whose_line_moved_is_not_charged_again(
        self, client: Client, past: Wallet, archiver: Archiver
    ) -> None:
        request_id = new_request_id(OLD_S)
        wallet = Wallet(client)
        await client.call("HSET", KEY + "wallet", request_id, "1 10 1 4 a")
        await client.call("ZADD", KEY + "leases", 1, request_id)
        await set_numbers(client, (await numbers(client))[0], 10, 1, 1)
        await past.sweep(ACCOUNT)
        await archiver.move(ACCOUNT, days_ago(90))
        assert (await wallet.settle(ACCOUNT, request_id, 9)).outcome is Settle.STALE
        assert await client.call("HGET", KEY + "wallet", request_id) is None

    async def test_a_credit_whose_line_moved_is_not_repeated(
        self, client: Client, past: Wallet, archiver: Archiver
    ) -> None:
        await archiver.move(ACCOUNT, days_ago(90))
        assert (await Wallet(client).credit(ACCOUNT, "opening", 1000)).outcome is Credit.DONE

    async def test_lines_that_a_killed_run_wrote_are_not_written_again(
        self, client: Client, past: Wallet, archive: Archive, archiver: Archiver
    ) -> None:
        for _ in range(3):
            await past.settle(ACCOUNT, new_request_id(OLD_S), 1)
        whole = await text_of_ledger(client)
        for size in random.sample(range(len(whole) + 1), 20):
            with archive.locked(ACCOUNT) as file:
                file.verify(Archived())
            archive.file(ACCOUNT).write_bytes(whole[:size])
            dump = {name: await client.call("DUMP", KEY + name) for name in ("ledger", "wallet")}
            assert await archiver.move(ACCOUNT, days_ago(90)) == 4
            assert archive.file(ACCOUNT).read_bytes() == whole
            for name, copy in dump.items():  # the trim is forgotten, as by a store that lost its last second
                await client.call("RESTORE", KEY + name, 0, copy, "REPLACE")
        assert (await Wallet(client).audit(ACCOUNT, archive)).wrong == []
        assert await archiver.move(ACCOUNT, days_ago(90)) == 4

    async def test_a_file_with_other_lines_stops_it(
        self, client: Client, past: Wallet, archive: Archive, archiver: Archiver
    ) -> None:
        archive.folder.mkdir()
        archive.file(ACCOUNT).write_text('{"line":"1-1","kind":"credit","id":"x","amount":1}\n')
        with pytest.raises(ArchiveError, match="what follows byte 0 is not in the ledger"):
            await archiver.move(ACCOUNT, days_ago(90))
        assert await client.call("XLEN", KEY + "ledger") == 1

    @pytest.mark.parametrize("damage", ["another folder", "a line lost", "an amount changed", "not a line"])
    async def test_a_file_without_the_trimmed_lines_stops_it(
        self, client: Client, past: Wallet, archive: Archive, archiver: Archiver, damage: str
    ) -> None:
        await past.settle(ACCOUNT, new_request_id(OLD_S), 7)
        await archiver.move(ACCOUNT, days_ago(90))
        await wallet_of_then(client, 95 * DAY_S).settle(ACCOUNT, new_request_id(95 * DAY_S), 5)
        path = archive.file(ACCOUNT)
        right = path.read_bytes()
        first, second, _ = right.split(b"\n")
        wrong = {
            "another folder": b"",
            "a line lost": first + b"\n",
            "an amount changed": right.replace(b"-7", b"-8"),
            "not a line": second + b"\n" + b"[]\n",
        }
        path.write_bytes(wrong[damage])
        for _ in range(2):
            with pytest.raises(ArchiveError, match=r"archived lines up to|line 2 is not a line of a ledger"):
                await archiver.move(ACCOUNT, days_ago(90))
        assert (await Wallet(client).audit(ACCOUNT, archive)).wrong != []
        path.write_bytes(right)
        assert await archiver.move(ACCOUNT, days_ago(90)) == 1

    async def test_a_second_archiver_on_a_file_is_refused(
        self, past: Wallet, archive: Archive, archiver: Archiver
    ) -> None:
        with archive.locked(ACCOUNT), pytest.raises(ArchiveError, match="another archiver is at work"):
            await archiver.move(ACCOUNT, days_ago(90))
        assert await archiver.move(ACCOUNT, days_ago(90)) == 1

    async def test_of_two_archivers_with_folders_of_their_own_one_has_all_lines(
        self, client: Client, past: Wallet, archive: Archive, archiver: Archiver, tmp_path: Path
    ) -> None:
        await asyncio.gather(*(past.settle(ACCOUNT, new_request_id(OLD_S), 1) for _ in range(2500)))
        whole = await text_of_ledger(client)
        archives = (archive, Archive(tmp_path / "other"))
        await asyncio.gather(
            *(Archiver(client, each).move(ACCOUNT, days_ago(90)) for each in archives), return_exceptions=True
        )
        texts = [each.file(ACCOUNT).read_bytes() for each in archives]
        assert all(whole.startswith(text) for text in texts)
        (leader,) = [each for each, text in zip(archives, texts, strict=True) if text == max(texts, key=len)][:1]
        await Archiver(client, leader).move(ACCOUNT, days_ago(90))
        assert leader.file(ACCOUNT).read_bytes() == whole
        archive.file(ACCOUNT).write_bytes(whole)

    async def test_a_trim_that_is_repeated_trims_once(self, client: Client, past: Wallet, archiver: Archiver) -> None:
        await past.settle(ACCOUNT, new_request_id(OLD_S), 7)
        (first, _), _ = await client.call("XRANGE", KEY + "ledger", "-", "+")
        with archiver.archive.locked(ACCOUNT) as file:
            file.append(await client.call("XRANGE", KEY + "ledger", "-", "+"))
        assert (await archiver.trim(ACCOUNT, Archived(), 1, first)).lines == 1
        with pytest.raises(ArchiveError, match="archived elsewhere"):
            await archiver.trim(ACCOUNT, Archived(), 1, first)
        assert await client.call("XLEN", KEY + "ledger") == 1

    @pytest.mark.parametrize("count", [1, 3])
    async def test_only_the_lines_that_were_written_are_trimmed(
        self, client: Client, past: Wallet, archiver: Archiver, count: int
    ) -> None:
        await past.settle(ACCOUNT, new_request_id(OLD_S), 7)
        _, (last, _) = await client.call("XRANGE", KEY + "ledger", "-", "+")
        with pytest.raises(StoreError, match="does not begin with these lines"):
            await archiver.trim(ACCOUNT, Archived(), count, last)
        assert await client.call("XLEN", KEY + "ledger") == 2


async def test_an_audit_reports_violations_across_archive_and_ledger(
    client: Client, past: Wallet, archive: Archive, archiver: Archiver
) -> None:
    request_id = new_request_id(OLD_S)
    await past.settle(ACCOUNT, request_id, 7)
    await archiver.move(ACCOUNT, days_ago(90))
    line = await client.call("XADD", KEY + "ledger", "*", "kind", "orphan", "id", request_id, "amount", -7)
    await move_balance(client, -7)
    wallet = Wallet(client)
    assert await wallet.verify(ACCOUNT) == []
    assert (await wallet.audit(ACCOUNT, archive)).wrong == [
        f"request {request_id} was resolved twice: orphan after orphan"
    ]
    await client.call("XDEL", KEY + "ledger", line)
    assert await wallet.verify(ACCOUNT) == ["the balance is 0.000986, the ledger adds up to 0.000993"]
    await move_balance(client, 7)
    await client.call("HSET", KEY + "credits", "made-up", 5)
    assert await wallet.verify(ACCOUNT) == [
        "credits whose lines are archived come to 0.001005 in 2 transactions, the archive to 0.001 in 1"
    ]
    assert (await wallet.audit(ACCOUNT, archive)).wrong == ["credits and ledger differ in transactions made-up"]
    await client.call("HDEL", KEY + "credits", "made-up")


async def test_a_ledger_that_is_trimmed_while_it_is_read_is_read_again(
    client: Client, past: Wallet, archiver: Archiver, archive: Archive, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Client.connect(store_url, timeout_s=PATIENCE_S)
    call, moved = reader.call, list[int]()

    async def late(*command: Argument) -> Any:
        if command[0] == "XRANGE":
            moved.append(await archiver.move(ACCOUNT, days_ago(90)))
        return await call(*command)

    monkeypatch.setattr(reader, "call", late)
    assert await Wallet(reader).verify(ACCOUNT) == []
    assert moved == [1, 0]
    await reader.close()


async def test_a_late_line_whose_expiry_is_archived_is_no_violation(
    client: Client, past: Wallet, archiver: Archiver, archive: Archive
) -> None:
    request_id = new_request_id(OLD_S)
    for kind, amount in (("expire", -9), ("late", 4)):
        stamp = f"{days_ago(100 - 1)}-*" if kind == "late" else f"{days_ago(100)}-*"
        await client.call("XADD", KEY + "ledger", stamp, "kind", kind, "id", request_id, "amount", amount)
        await move_balance(client, amount)
    assert await archiver.move(ACCOUNT, days_ago(99.5)) == 2
    wallet = Wallet(client)
    audit = await wallet.audit(ACCOUNT)
    assert (audit.wrong, audit.requests) == ([], {})
    audit = await wallet.audit(ACCOUNT, archive)
    assert {request_id: resolved.charged for request_id, resolved in audit.requests.items()} == {request_id: 5}
    young = new_request_id()
    line = await client.call("XADD", KEY + "ledger", "*", "kind", "late", "id", young, "amount", 0)
    assert await wallet.verify(ACCOUNT) == [f"request {young} was resolved twice: late after nothing"]
    await client.call("XDEL", KEY + "ledger", line)


async def test_a_full_store_can_be_archived(own_store: StartStore, tmp_path: Path) -> None:
    client = Client.connect(own_store().url, timeout_s=PATIENCE_S)
    await open_account(client)
    await wallet_of_then(client, OLD_S).credit(ACCOUNT, "opening", 10)
    await client.call("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreAway, match="OOM"):
        await Wallet(client).credit(ACCOUNT, "more", 10)
    assert await Archiver(client, Archive(tmp_path / "archive")).move(ACCOUNT, days_ago(90)) == 1
    assert await Wallet(client).verify(ACCOUNT) == []
    await client.close()


async def test_a_hold_past_its_lease_is_settled_as_usual(client: Client, past: Wallet, archiver: Archiver) -> None:
    await archiver.move(ACCOUNT, days_ago(90))
    request_id, wallet = new_request_id(), Wallet(client)
    await take(wallet, request_id, 10, floor=4)
    await overdue(client, request_id)
    assert (await wallet.settle(ACCOUNT, request_id, 9)).charged == 9
    assert await wallet.verify(ACCOUNT) == []
