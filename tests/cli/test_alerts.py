"""`gateway alerts`: a test that says what came back and what to do, and the list of what waits; no secret in either."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from functools import reduce
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from gateway.alerts import event
from gateway.alerts.event import EventClaim, Outbox
from gateway.alerts.signature import VARIABLE, sign
from gateway.cli.commands import program
from gateway.store.client.client import Client
from tests.alerts.receiver import OK, SECRET, Receiver, answer, closed_port, receiving

OTHER_SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(OK) as running:
        yield running


def file_in(folder: Path, url: str = "http://127.0.0.1:9/path-credential", redis: str = "embedded") -> Path:
    file = folder / "gateway.yaml"
    (folder / "data").mkdir(exist_ok=True)
    file.write_text(f"data: {folder}/data\nredis: {redis}\nalerts: {{webhook: '{url}'}}\n")
    return file


async def run(*arguments: str) -> tuple[int, str, str]:
    result = await asyncio.to_thread(CliRunner().invoke, program(), list(arguments))
    said = ("credential.refused", "credential in the address", "refuses credential")
    assert "credential" not in reduce(lambda text, known: text.replace(known, ""), said, result.output)
    assert SECRET not in result.output
    return result.exit_code, result.stdout, result.stderr


async def test_a_test_is_sent_and_its_answer_printed(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [answer(202, b"accepted, thanks")]
    code, printed, errors = await run("alerts", "test", "--config", str(file_in(tmp_path, receiver.url)))
    (got,) = receiver.got
    assert (code, errors, got.event["type"]) == (0, "", "test")
    for word in ("127.0.0.1", "202", "accepted, thanks", got.id):
        assert word in printed


async def test_a_test_as_json(receiver: Receiver, tmp_path: Path) -> None:
    code, printed, _ = await run("alerts", "test", "--json", "--config", str(file_in(tmp_path, receiver.url)))
    result = json.loads(printed)
    assert code == 0
    assert {name: result[name] for name in ("host", "id", "status", "error", "answer")} == {
        "host": "127.0.0.1",
        "id": receiver.got[0].id,
        "status": 204,
        "error": "",
        "answer": "",
    }


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (
            401,
            "it answered 401; look at the credential in the address, and at the secret that the receiver verifies with",
        ),
        (404, "it answered 404; look at the path of the address"),
        (500, "it answered 500; look at the receiver's log"),
        (302, "it answered 302, and redirects are not followed; write the final address"),
    ],
)
async def test_any_other_answer_is_one_line_that_says_what_to_do(
    receiver: Receiver, tmp_path: Path, status: int, error: str
) -> None:
    receiver.answers = [answer(status, f"for {receiver.url}".encode())]
    code, _, errors = await run("alerts", "test", "--config", str(file_in(tmp_path, receiver.url)))
    assert (code, errors) == (1, f"gateway: the webhook at 127.0.0.1 did not accept the alert: {error}\n")


async def test_nothing_listens(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}/path-credential"
    code, printed, errors = await run("alerts", "test", "--config", str(file_in(tmp_path, url)))
    assert (code, printed) == (1, "")
    assert errors.endswith("it cannot be reached (Connection refused); start the receiver, or correct the address\n")


async def test_a_test_is_sent_to_a_receiver_by_its_name(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_in(tmp_path)
    other = f"others: {{shop: {{webhook: '{receiver.url}', events: [token]}}}}"
    file.write_text(file.read_text().replace("alerts: {", f"alerts: {{{other}, "))
    monkeypatch.setenv(f"{VARIABLE}_SHOP", OTHER_SECRET)
    code, _, errors = await run("alerts", "test", "shop", "--config", str(file))
    (got,) = receiver.got
    assert (code, errors, got.event["type"]) == (0, "", "test")
    keys = (base64.b64decode(OTHER_SECRET.removeprefix("whsec_")),)
    assert got.headers["webhook-signature"] == sign(keys, got.id, int(got.headers["webhook-timestamp"]), got.body)
    code, _, errors = await run("alerts", "test", "shob", "--config", str(file))
    assert (code, errors) == (1, "gateway: `alerts.others` has no `shob`; it has: shop\n")


async def test_without_the_section_it_says_what_to_add(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("workers: 1\n")
    code, _, errors = await run("alerts", "test", "--config", str(file))
    assert (code, errors) == (
        1,
        "gateway: the configuration has no `alerts:`; add it, as in `alerts: {webhook: https://host/path}`\n",
    )


async def test_a_wrong_secret_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a-credential-of-another-kind")
    code, _, errors = await run("alerts", "test", "--config", str(file_in(tmp_path)))
    assert code == 2
    assert errors.startswith(f"gateway: ${VARIABLE}: a secret is whsec_ and 24 to 64 bytes in base64; make one with: ")


async def test_what_waits_was_sent_and_was_given_up_is_listed(client: Client, store_url: str, tmp_path: Path) -> None:
    file = file_in(tmp_path, redis=store_url)
    code, printed, _ = await run("alerts", "list", "--config", str(file))
    assert (code, printed) == (0, "No alert waits, and none was sent.\n")
    outbox = Outbox(client)
    for number in range(3):
        made = event.event("credential.refused", f"{number}", channel="a")
        await outbox.claim(EventClaim(f"credential:a:{number}", made, 1000))
    _, due = await outbox.take(8, 1000)
    first, second, third = sorted(due, key=lambda each: each.entry.id)
    await outbox.report(first, msgspec.structs.replace(first.entry, attempts=9, error="it answered 500"))
    await outbox.report(second, msgspec.structs.replace(second.entry, attempts=1, error="it answered 503"), 5)
    await outbox.report(third, msgspec.structs.replace(third.entry, attempts=1))
    _, printed, _ = await run("alerts", "list", "--config", str(file))
    assert "given up" in printed
    assert "it answered 503" in printed
    _, printed, _ = await run("alerts", "list", "--json", "--config", str(file))
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [(row["state"], row["attempts"], row["error"], row["id"]) for row in rows] == [
        ("sent", 1, "", third.entry.id),
        ("pending", 1, "it answered 503", second.entry.id),
        ("given_up", 9, "it answered 500", first.entry.id),
    ]
