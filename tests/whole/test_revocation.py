"""Open requests end within two seconds when their token or account is revoked, charged exactly; those of others go on.

The gateways are processes: two on one store, with two workers each. The commands that revoke are those of an operator.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.chain.services import Store
from gateway.chat.events import EventStream
from gateway.config.schema import load
from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.tokens import Created, TokenRefused
from gateway.usage.record import Record
from tests.cli.processes import free_port, gateway, kept_waiting_s
from tests.patience import PATIENCE_S, TICK_S
from tests.whole.books import Books, records_of
from tests.whole.load import serving
from tests.whole.raw import Answer, ask, chat, get, read_answer

LIMIT_S = 2.0
CREDIT = 1_000_000_000
DELETE = ("token", "delete", "TOKEN", "--yes")


class Stream:
    """An open stream: when its text began and when it ended, and what its caller had by then."""

    def __init__(self, port: int, token: str) -> None:
        self.began = asyncio.Event()
        self.ended_at = 0.0
        self.task = asyncio.create_task(self._read(port, token))

    async def _read(self, port: int, token: str) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        pieces: list[bytes] = []
        answering = asyncio.create_task(read_answer(reader, pieces))
        try:
            writer.write(chat(token))
            async with asyncio.timeout(PATIENCE_S):  # the first event has no text
                while b"".join(pieces).count(b"data: ") < 2 and not answering.done():
                    await asyncio.sleep(TICK_S)
            self.began.set()
            answer = await answering
            self.ended_at = time.monotonic()
            return answer
        finally:
            self.began.set()
            answering.cancel()
            writer.close()


class Gateways:
    """Two gateways on one store, with two workers each."""

    def __init__(self, books: Books, second: Path, ports: tuple[int, int]) -> None:
        self.books = books
        self.ports = ports
        self.pids: list[int] = []
        self._second = second

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run both."""
        async with (
            serving(self.books.file, 2, self.books.log_file) as first_pid,
            serving(self._second, 2, self.books.folder / "second.log") as second_pid,
        ):
            self.pids = [first_pid, second_pid]
            yield

    async def records(self) -> dict[str, Record]:
        """Return the records of both, which have ended."""
        async with Store.open(load(self._second).config, self.books.url) as store:
            return await records_of(store)

    async def account(self, name: str, expires_s: int | None = None) -> Created:
        """Create an account with credit, and return a token of it."""
        async with self.books.store() as store:
            await store.accounts.create(name)
            await store.wallet.credit(name, "opening", CREDIT)
            return await store.tokens.create(name, expires_at=expires_s and int(time.time()) + expires_s)

    async def sibling(self, account: str) -> Created:
        """Create another token of an account."""
        async with self.books.store() as store:
            return await store.tokens.create(account)

    def logs(self) -> list[str]:
        """Return what each of them has logged."""
        return [self.books.log(), (self.books.folder / "second.log").read_text()]

    async def streams(self, token: Created, count: int) -> list[Stream]:
        """Open streams at both gateways, and wait until all have begun."""
        streams = [Stream(self.ports[number % 2], token.token) for number in range(count)]
        await asyncio.gather(*(stream.began.wait() for stream in streams))
        assert [stream.task.result() for stream in streams if stream.task.done()] == []
        return streams

    async def revoke(self, token: Created, *command: str) -> float:
        """Run a command of the operator, and return when the store had done it."""
        done = asyncio.create_task(self._refused_at(token))
        words = (token.id if word == "TOKEN" else word for word in command)
        code, _, errors = await gateway(*words, "--config", str(self.books.file), cwd=self.books.folder)
        assert code == 0, errors
        return await asyncio.wait_for(done, PATIENCE_S)

    async def _refused_at(self, token: Created) -> float:
        """Wait until the token would be refused, and return when that was."""
        async with self.books.store() as store:
            with suppress(TokenRefused):
                while (await store.tokens.authenticate(token.token)).account.status is AccountStatus.ACTIVE:
                    await asyncio.sleep(0.005)
            return time.monotonic()

    def late_s(self) -> float:
        """Return for how long the gateways have waited for a CPU."""
        return sum(map(kept_waiting_s, self.pids))

    async def ended(self, streams: list[Stream], since: float, code: str, limit_s: float = LIMIT_S) -> list[Answer]:
        """Assert that the streams end with this error `limit_s` after `since` at the latest; return their answers."""
        before_s, late_s = self.late_s(), 0.0
        async with asyncio.timeout(PATIENCE_S):
            answering = asyncio.gather(*(stream.task for stream in streams))
            while not answering.done():
                await asyncio.wait([answering], timeout=0.1)
                late_s = max(late_s, self.late_s() - before_s)  # of one that has ended, nothing is known any more
            answers = await answering
        last = max(stream.ended_at for stream in streams) - since
        first = min(stream.ended_at for stream in streams) - since
        print(f"{code}: {len(streams)} streams ended {first:+.3f} to {last:+.3f} s after the revocation")
        assert last < limit_s + late_s
        for answer in answers:
            assert (answer.status, answer.whole) == (200, False)
            assert b'"code":"%b"' % code.encode() in answer.body.splitlines()[-2]
        return answers


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as fake:
        fake.mode, fake.pace_s = "endless", 0.2
        yield fake


@pytest.fixture
async def gateways(
    tmp_path: Path, upstream: FakeUpstream, database_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[Gateways]:
    books = Books(tmp_path, upstream.base_url)
    text = books.file.read_text().replace("idle: 3, total: 3", "idle: 60, total: 600").replace("first_byte: 0.5", "")
    text = text.replace("max_output_tokens: 100", "max_output_tokens: 100000").replace("0.25, ,", "2,")
    text = text.replace(
        "timers:", "on_caller_gone: cancel, timers:"
    )  # else what `stop` leaves is read until a gateway has drained
    text += f"store: {{timeout: {getattr(request, 'param', 20)}}}\nusage: {{database: '{database_url}'}}\n"
    books.file.write_text(text)
    second = tmp_path / "second.yaml"
    port = free_port()
    folder = tmp_path / "second-data"
    folder.mkdir()
    second.write_text(text.replace(f":{books.port}", f":{port}").replace(f"{tmp_path}/data", str(folder)))
    try:
        await books.open()
        (folder / "pepper").write_bytes((tmp_path / "data/pepper").read_bytes())
        yield Gateways(books, second, (books.port, port))
    finally:
        books.embedded.stop()


async def assert_charged(gateways: Gateways, answers: list[Answer], account: str, code: str) -> None:
    """Assert that each request was charged once, for what its caller had, and that the books balance."""
    records = await gateways.records()
    async with gateways.books.store() as store:
        lines: dict[str, list[int]] = {}
        for _, fields in await store.client.call("XRANGE", f"gw:{{{account}}}:ledger", "-", "+"):
            lines.setdefault(fields[b"id"].decode(), []).append(-int(fields[b"amount"]))
    for answer in answers:
        record = records[answer.headers["x-request-id"]]
        assert (record.outcome, record.error_code, record.status) == (Outcome.STOPPED, code, 200)
        assert record.completion_tokens == tokens_in(answer) > 0
        assert record.charge_micros == cost(record)
        assert lines[record.id] == [record.charge_micros]


def tokens_in(answer: Answer) -> int:
    """Return the tokens in what the caller had, as the gateway estimates them."""
    events = EventStream(drop_usage=True)
    events.feed(answer.body[: answer.body.rindex(b'data: {"error"')])
    return events.output.tokens()


def cost(record: Record) -> int:
    return record.prompt_tokens + 2 * record.completion_tokens


async def stop(streams: list[Stream]) -> None:
    for stream in streams:
        stream.task.cancel()
    await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)


async def revoked(gateways: Gateways, count: int, name: str, code: str, *command: str) -> list[Answer]:
    """Open streams with a new account's token, run the command that revokes it, and return the answers, ended in time."""
    token = await gateways.account(name)
    streams = await gateways.streams(token, count)
    since = await gateways.revoke(token, *command)
    answers = await gateways.ended(streams, since, code)
    refused = await ask(gateways.ports[0], chat(token.token))
    assert (refused.status, refused.error["code"]) == (403 if code == "account_inactive" else 401, code)
    return answers


REVOKED = {
    "deleted": (50, "token_invalid", DELETE),
    "disabled": (10, "token_disabled", ("token", "disable", "TOKEN")),
    "rotated": (10, "token_expired", ("token", "rotate", "TOKEN", "--overlap", "0")),
    "suspended": (50, "account_inactive", ("account", "suspend", "suspended")),
    "closed": (10, "account_inactive", ("account", "close", "closed", "--yes")),
}


async def test_what_is_revoked_ends_within_two_seconds_charged_exactly(gateways: Gateways) -> None:
    ended = {}
    async with gateways.serving():
        others = await gateways.streams(await gateways.account("other"), 4)
        for name, (count, code, command) in REVOKED.items():
            ended[name, code] = await revoked(gateways, count, name, code, *command)
        others += await gateways.streams(await gateways.sibling("deleted"), 4)
        deleted = await gateways.sibling("deleted")
        streams = await gateways.streams(deleted, 4)
        since = await gateways.revoke(deleted, *DELETE)
        ended["deleted", "token_invalid"] += await gateways.ended(streams, since, "token_invalid")
        assert not any(stream.task.done() for stream in others)
        await stop(others)
    assert all(log.count('"requests_revoked"') > len(REVOKED) for log in gateways.logs())
    for (name, code), answers in ended.items():
        await assert_charged(gateways, answers, name, code)
    await gateways.books.verify()


async def test_a_token_that_expires_ends_its_streams(gateways: Gateways) -> None:
    async with gateways.serving():
        expiring = await gateways.account("expiring", 15)
        streams = await gateways.streams(expiring, 50)
        others = await gateways.streams(await gateways.sibling("expiring"), 4)
        expires = time.monotonic() + (expiring.expires_at or 0) - time.time()
        answers = await gateways.ended(streams, expires, "token_expired")
        assert not any(stream.task.done() for stream in others)
        await stop(others)
    assert min(stream.ended_at for stream in streams) >= expires
    await assert_charged(gateways, answers, "expiring", "token_expired")
    await gateways.books.verify()


@pytest.mark.parametrize("gateways", [2], indirect=True, ids=["a store timeout of 2 s"])
async def test_a_store_that_is_away_ends_nothing_and_revocations_are_found_when_it_is_back(gateways: Gateways) -> None:
    books = gateways.books
    async with gateways.serving():
        first, second, untouched = [await gateways.account(name) for name in ("first", "second", "untouched")]
        streams = await gateways.streams(first, 8)
        late = await gateways.streams(second, 8)
        others = await gateways.streams(untouched, 4)
        os.kill(books.embedded.pid, signal.SIGSTOP)
        await asyncio.sleep(4)
        os.kill(books.embedded.pid, signal.SIGCONT)
        assert not any(stream.task.done() for stream in streams + late + others)
        since = await gateways.revoke(first, *DELETE)
        answers = await gateways.ended(streams, since, "token_invalid")
        await asyncio.to_thread(books.kill_store)
        since = await gateways.revoke(second, *DELETE)
        after = await gateways.ended(late, since, "token_invalid")
        assert not any(stream.task.done() for stream in others)
        await stop(others)
        await books.wait_delivered()
    await assert_charged(gateways, answers, "first", "token_invalid")
    await assert_charged(gateways, after, "second", "token_invalid")
    await books.verify()


async def test_what_is_revoked_ends_while_the_gateways_drain(gateways: Gateways) -> None:
    async with gateways.serving():
        token = await gateways.account("draining")
        streams = await gateways.streams(token, 10)
        for pid in gateways.pids:
            os.kill(pid, signal.SIGTERM)
        for port in gateways.ports:
            with pytest.raises(ConnectionRefusedError):
                async with asyncio.timeout(PATIENCE_S):
                    while await ask(port, get("/readyz")):
                        await asyncio.sleep(0.01)
        assert not any(stream.task.done() for stream in streams)
        since = await gateways.revoke(token, *DELETE)
        answers = await gateways.ended(streams, since, "token_invalid")
    await assert_charged(gateways, answers, "draining", "token_invalid")
