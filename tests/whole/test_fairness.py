"""One caller at its worst, for a second, while another is served every time.

These are the rows of the table whose shared thing can refuse the second caller: a count shows it, on any machine. In the other
rows the second caller can only be served later, which a count does not show: an event loop, a store, a disk, memory, log lines,
connections that are opened and closed, the operator's port. `python -m tests.bench.fairness` measures those, and how soon the
second caller is served in these.

What one account provokes at an upstream refuses no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from gateway.store.channels import Condition, CooldownRules
from gateway.testing import Running, running
from tests.bench.fairness.measure import measure
from tests.bench.fairness.rows import ROWS, Row
from tests.bench.fairness.stage import prepare, staged
from tests.bench.process import ROOT
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole.conftest import Serve, configuration
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Hold, Scripted, Step, chunk
from tests.whole.test_channels import GOOD, conditions
from tests.whole.test_upstream_faults import full_response

PHASE_S = 1.0
QUIET_S = 0.1
REFUSING = (
    *("flagged", "error-event", "broken", "too-large", "limited", "other-model", "probe"),  # the circuit breaker
    "credentials",  # a credential that the upstream refuses is set aside
    *("body-budget", "half-bodies"),  # the memory for bodies
    *("half-heads", "idle"),  # connections
    *("wrong-tokens", "wrong-tokens-same-address"),  # the limits of an address
    "channel-slots",  # the limits of a channel
)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Make a data folder with accounts; return it and the tokens."""
    folder = tmp_path_factory.mktemp("accounts")
    return folder, prepare(folder)


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Run the upstreams of the second and of the first caller."""
    command = (FORKED, "-m", "tests.bench.fairness.upstream")
    with ExitStack() as stack:
        started = [stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, cwd=ROOT)) for _ in range(2)]
        one, other = (int(each.stdout.readline()) for each in started if each.stdout is not None)
        yield one, other
        for each in started:
            each.terminate()


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in REFUSING], ids=lambda row: row.name)
async def test_a_second_caller_is_served_every_time(
    row: Row, accounts: tuple[Path, dict[str, str]], ports: tuple[int, int], tmp_path: Path
) -> None:
    template, tokens = accounts
    async with staged(row, tmp_path / "row", template, tokens, ports, store_timeout=PATIENCE_S) as stage:
        measured = await measure(stage, rounds=1, phase_s=PHASE_S, quiet_s=QUIET_S)
    assert measured.beside.served > 0
    assert (measured.beside.refused, measured.said) == (0, {})


BAD = "provoke a failure"
ROUNDS = 20

PROVOKED: dict[str, list[Step]] = {
    "403": [full_response("403 No", b'{"error": {"message": "flagged", "code": "content_policy"}}')],
    "408": [full_response("408 Slow", b"{}")],
    "413": [full_response("413 Large", b"<html>nginx</html>", kind="text/html")],
    "429": [full_response("429 Slow", b'{"error": {"message": "request too large for the limit", "code": "tokens"}}')],
    "451": [full_response("451 No", b"{}")],
    "500": [full_response("500 No", b"{}")],
    "529": [full_response("529 Busy", b"{}", "Retry-After: 30")],
    "503": [full_response("503 No", b"{}", "Retry-After: 30")],
    "first error": [CHUNKED + chunk(b'data: {"error": {"message": "no"}}\n\n') + LAST],
    "no event": [CHUNKED + LAST],
    "page": [full_response("200 OK", b"<p>", kind="text/html")],
    "closed": [Fin],
    "garbage": [b"hello\r\n\r\n", Fin],
    "silent": [Hold],
    "truncated": [CHUNKED + chunk(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n') + LAST],
}


class Provoked(Scripted):
    """An upstream that plays `bad` for a request with the text `BAD`, and a good answer for others."""

    def __init__(self, bad: Sequence[Step]) -> None:
        super().__init__(GOOD)
        self.bad = bad
        self.bad_requests = 0

    async def _play(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if BAD.encode() not in self.requests[-1]:
            await super()._play(step, reader, writer)
            return
        self.bad_requests += 1
        for each in self.bad:
            await super()._play(each, reader, writer)


def bad(token: str) -> bytes:
    return chat(token, {"messages": [{"role": "user", "content": BAD}]})


async def served(gateway: Running, offender: str, others: Sequence[str]) -> tuple[list[Answer], list[Answer]]:
    """Return the answers to the offender, and those to the others between them."""
    wrong, right = [], []
    for number in range(ROUNDS):
        wrong.append(await ask(gateway.port, bad(offender)))
        right.append(await ask(gateway.port, chat(others[number % len(others)])))
    return wrong, right


@pytest.mark.parametrize("fault", PROVOKED)
@pytest.mark.parametrize("keys", ["api_key: one", "api_keys: [one, two, three]"])
async def test_what_one_account_provokes_refuses_no_other(place: Place, fault: str, keys: str) -> None:
    timers = ", timers: {first_byte: 0.3}" if fault == "silent" else ""
    async with Provoked(PROVOKED[fault]) as upstream:
        text = configuration(upstream.base_url, channel=timers).replace("api_key: channel-credential-4711", keys)
        async with running(text, *place) as gateway:
            gateway.store.channels.cooldown = CooldownRules(first_ms=60_000)
            offender, others = await gateway.token("offender"), [await gateway.token(f"other{n}") for n in range(2)]
            wrong, right = await served(gateway, offender, others)
            assert [answer.status for answer in right] == [200] * ROUNDS
            assert upstream.bad_requests >= 3
            condition = Condition.HEALTHY if fault == "413" else Condition.FAILING
            assert await conditions(gateway) == {"fake": condition}, "for one account alone"
            if fault == "413":
                assert {(answer.status, answer.error["code"]) for answer in wrong} == {(413, "body_too_large")}
                assert upstream.bad_requests == ROUNDS
                assert all(b"nginx" not in answer.body for answer in wrong)
            elif fault not in ("truncated",):
                assert wrong[-1].error["code"] == "model_unavailable", "the account itself is not refused"
                assert upstream.bad_requests < ROUNDS
                (shown,) = await gateway.store.channels.show(["fake"])
                assert shown.failing_accounts == 1
            if fault == "403":
                assert (wrong[0].status, wrong[0].headers["x-should-retry"]) == (502, "false")
                assert b"flagged" not in b"".join(answer.body for answer in wrong)


async def test_the_same_failures_of_two_accounts_close_the_channel(serve: Serve) -> None:
    async with Provoked(PROVOKED["500"]) as upstream, serve(upstream.base_url) as gateway:
        gateway.store.channels.cooldown = CooldownRules(first_ms=60_000)
        tokens = [await gateway.token(name) for name in ("one", "two")]
        for _ in range(2):
            for token in tokens:
                assert (await ask(gateway.port, bad(token))).status == 502
        answer = await ask(gateway.port, chat(await gateway.token("three")))
        assert (answer.status, answer.error["code"]) == (503, "model_unavailable")
        assert upstream.bad_requests == 4


async def test_a_credential_that_two_accounts_may_not_use_is_suspended(place: Place) -> None:
    forbidden = full_response("403 No", b"{}")
    async with Scripted([forbidden], GOOD, [forbidden], GOOD) as upstream:
        keys = configuration(upstream.base_url).replace("api_key: channel-credential-4711", "api_keys: [one, two]")
        async with running(keys, *place) as gateway:
            first, second = await gateway.token("first"), await gateway.token("second")
            statuses = [
                (await ask(gateway.port, chat(token))).status for token in (first, first, second, first, second)
            ]
        used = [request.split(b"Bearer ")[1].split(b"\r\n")[0].decode() for request in upstream.requests]
    assert used == ["one", "two", "one", "two", "two", "two"]
    assert statuses == [502, 200, 200, 200, 200]
