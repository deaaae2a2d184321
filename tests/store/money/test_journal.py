"""A settlement that cannot be delivered is kept until the store has resolved it, through kills and full disks."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.base.errors import StoreAway, StoreError
from gateway.store.client.client import Client
from gateway.store.money.journal import Journal
from gateway.store.money.scripts import Settlement
from gateway.store.money.wallet import Settle, Settled, Wallet
from tests.patience import PATIENCE_S
from tests.store.conftest import ACCOUNT, KEY, StartStore, balance_and_held, new_request_id, open_account, take


def charge(cost: int) -> Settlement:
    return Settlement(ACCOUNT, new_request_id(), cost)


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jsonl"))


async def test_a_replay_charges_what_could_not_be_delivered(own_store: StartStore, tmp_path: Path) -> None:
    store = own_store()
    client = Client.connect(store.url, timeout_s=0.5)
    await open_account(client, 100)
    journal = Journal(tmp_path / "journal")
    wallet = Wallet(client, journal=journal, retry_for_s=0.5)
    charged, released = new_request_id(), new_request_id()
    await take(wallet, charged)
    await take(wallet, released)
    os.kill(store.pid, signal.SIGSTOP)
    try:
        both = (*await asyncio.gather(wallet.settle(ACCOUNT, charged, 4), wallet.release(ACCOUNT, released)),)
        assert both == (Settled(Settle.KEPT, 4), Settled(Settle.KEPT, 0))
        with pytest.raises(StoreAway):
            await journal.replay(wallet.deliver)
    finally:
        os.kill(store.pid, signal.SIGCONT)
    assert await journal.replay(wallet.deliver) == 2
    assert await balance_and_held(client) == (96, 0)
    assert files(journal.directory) == []
    assert await journal.replay(wallet.deliver) == 0
    assert await wallet.verify(ACCOUNT) == []
    await client.close()


async def test_a_settlement_that_the_store_refuses_is_kept(client: Client, wallet: Wallet, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    keeping, request_id = Wallet(client, journal=journal), new_request_id()
    await take(keeping, request_id)
    await client.call("RENAME", KEY + "wallet", "aside")
    await client.call("SET", KEY + "wallet", "no hash")
    assert await keeping.settle(ACCOUNT, request_id, 4) == Settled(Settle.KEPT, 4)
    assert journal.waiting() == [Settlement(ACCOUNT, request_id, 4)]
    with pytest.raises(StoreError):
        await journal.replay(keeping.deliver)
    await client.call("RENAME", "aside", KEY + "wallet")
    assert await journal.replay(keeping.deliver) == 1
    assert await balance_and_held(client) == (96, 0)
    assert journal.waiting() == []


async def test_a_settlement_stays_in_memory_without_store_and_disk(
    client: Client, wallet: Wallet, tmp_path: Path
) -> None:
    (tmp_path / "journal").touch()
    journal = Journal(tmp_path / "journal")
    away = Wallet(Client.connect("unix:///nowhere", timeout_s=0.1), journal=journal, retry_for_s=0.1)
    request_id = new_request_id()
    assert await away.settle(ACCOUNT, request_id, 4) == Settled(Settle.KEPT, 4)
    assert journal.waiting() == [Settlement(ACCOUNT, request_id, 4)]
    with pytest.raises(StoreAway):
        await journal.replay(away.deliver)
    assert await journal.replay(wallet.deliver) == 1
    assert await journal.replay(wallet.deliver) == 0
    assert await balance_and_held(client) == (96, 0)


async def test_a_file_with_a_refused_line_does_not_stop_another_file(
    client: Client, wallet: Wallet, tmp_path: Path
) -> None:
    for settlement in (Settlement(ACCOUNT, "not-a-uuid", 5), charge(3)):
        journal = Journal(tmp_path)
        journal.append(settlement)
        journal.close()
    with pytest.raises(StoreError):
        await Journal(tmp_path).replay(wallet.deliver)
    assert await balance_and_held(client) == (97, 0)
    assert len(files(tmp_path)) == 1


async def test_a_cancelled_settlement_is_kept(own_store: StartStore, tmp_path: Path) -> None:
    store = own_store()
    client = Client.connect(store.url, timeout_s=0.5)
    await open_account(client, 100)
    journal = Journal(tmp_path / "journal")
    wallet = Wallet(client, journal=journal)
    os.kill(store.pid, signal.SIGSTOP)
    try:
        settling = asyncio.create_task(wallet.settle(ACCOUNT, new_request_id(), 4))
        await asyncio.sleep(0)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        await client.close()
    finally:
        os.kill(store.pid, signal.SIGCONT)
    fresh = Client.connect(store.url, timeout_s=PATIENCE_S)
    assert await journal.replay(Wallet(fresh).deliver) == 1
    assert await balance_and_held(fresh) == (96, 0)
    await fresh.close()


async def test_the_file_of_a_running_process_is_not_replayed(client: Client, wallet: Wallet, tmp_path: Path) -> None:
    mine, other = Journal(tmp_path), Journal(tmp_path)
    mine.append(charge(5))
    assert await other.replay(wallet.deliver) == 0
    mine.close()
    assert await other.replay(wallet.deliver) == 1
    assert await balance_and_held(client) == (95, 0)


async def test_the_file_of_a_killed_process_is_replayed(client: Client, wallet: Wallet, tmp_path: Path) -> None:
    program = (
        "import sys, os, pathlib; from gateway.store.money.journal import Journal, Settlement;"
        "Journal(pathlib.Path(sys.argv[1])).append(Settlement('acme', sys.argv[2], 5)); os.kill(os.getpid(), 9)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(tmp_path), new_request_id())
    assert await process.wait() == -signal.SIGKILL
    assert await Journal(tmp_path).replay(wallet.deliver) == 1
    assert await balance_and_held(client) == (95, 0)


async def test_an_incomplete_last_line_is_ignored(client: Client, wallet: Wallet, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(charge(5))
    journal.close()
    with files(tmp_path)[0].open("ab") as file:
        file.write(b'{"account":"acme","rid":"0')
    assert journal.damage() == [], "a process may be writing it"
    assert await journal.replay(wallet.deliver) == 1
    assert await balance_and_held(client) == (95, 0)


@pytest.mark.parametrize(
    "garbage", [b"{", b"\xff\xfe", b"\0" * 40, b'{"account":"acme"}', b"[]", b'{"account":1,"rid":2}']
)
async def test_a_line_that_cannot_be_read_is_set_aside_and_all_others_are_charged(
    client: Client, wallet: Wallet, tmp_path: Path, garbage: bytes
) -> None:
    for cost in (1, 2):
        journal = Journal(tmp_path)
        journal.append(charge(cost))
        journal.append(charge(cost))
        journal.close()
    first = files(tmp_path)[0]
    first.write_bytes(first.read_bytes().replace(b"\n", b"\n" + garbage + b"\n", 1))
    assert len(journal.waiting()) == 4
    assert [text.startswith(f"{first} has 1 lines that cannot be read") for text in journal.damage()] == [True]
    with capture_logs() as logs:
        assert await journal.replay(wallet.deliver) == 4
    assert await balance_and_held(client) == (94, 0)
    assert files(tmp_path) == []
    aside = tmp_path / "unreadable" / first.name
    assert aside.read_bytes() == garbage + b"\n"
    assert (logs[0]["event"], logs[0]["set_aside"]) == ("journal_lines_unreadable", str(aside))
    assert [text.startswith(f"{aside} has lines of the journal that cannot be read") for text in journal.damage()] == [
        True
    ]


async def test_a_file_that_cannot_be_read_stops_no_other(client: Client, wallet: Wallet, tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").mkdir()
    (tmp_path / "1.jsonl").symlink_to(tmp_path / "nowhere")
    journal = Journal(tmp_path)
    journal.append(charge(5))
    with capture_logs() as logs:
        assert await journal.replay(wallet.deliver) == 1
        assert await journal.replay(wallet.deliver) == 0
    assert await balance_and_held(client) == (95, 0)
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("journal_file_unusable", "Is a directory")]
    assert journal.damage() == [f"{tmp_path}/0.jsonl cannot be read: Is a directory"]


async def test_settlements_in_memory_are_written_once_the_disk_accepts_them(wallet: Wallet, tmp_path: Path) -> None:
    (tmp_path / "journal").touch()
    journal = Journal(tmp_path / "journal")
    kept = [charge(1) for _ in range(3)]
    with capture_logs() as logs:
        for settlement in kept:
            journal.keep(settlement)
    assert [entry["event"] for entry in logs] == ["journal_not_written"], "one line, not one for each"
    (tmp_path / "journal").unlink()
    journal.close()
    assert Journal(tmp_path / "journal").waiting() == kept
    assert await journal.replay(wallet.deliver) == 3


async def test_a_line_that_the_store_refuses_does_not_stop_the_others(
    client: Client, wallet: Wallet, tmp_path: Path
) -> None:
    journal = Journal(tmp_path)
    wrong = Settlement(ACCOUNT, "not-a-uuid", 5)
    for settlement in (wrong, *(charge(1) for _ in range(250))):
        journal.append(settlement)
    with pytest.raises(StoreError):
        await journal.replay(wallet.deliver)
    assert await balance_and_held(client) == (-150, 0)
    assert b"not-a-uuid" in files(tmp_path)[0].read_bytes()
    assert files(tmp_path)[0].read_bytes().count(b"\n") == 1


async def test_a_file_that_cannot_be_created_raises_and_the_next_append_creates_another(
    client: Client, wallet: Wallet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            journal.append(charge(5))
    journal.append(charge(3))
    assert await journal.replay(wallet.deliver) == 1
    assert await balance_and_held(client) == (97, 0)
    assert files(tmp_path) == []


def test_a_full_disk_raises_and_leaves_whole_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(charge(1))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, before[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            journal.append(charge(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert file.read_bytes() == whole
    journal.append(charge(3))
    assert file.read_bytes().count(b"\n") == 2
    journal.close()
