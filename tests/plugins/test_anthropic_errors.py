"""Errors of Anthropic as responses: whatever their shape, each status leads to its answer, and nothing is charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from plugins.anthropic_errors import MAX_MESSAGE, error_delta, error_of
from tests.plugins.anthropic_upstream import MESSAGES, client_of, whole
from tests.whole.aftermath import end_records, last_end_record
from tests.whole.raw import ask, chat
from tests.whole.scripted import Step

NO = {"type": "invalid_request_error", "message": "No."}
BODIES: Final[dict[str, tuple[bytes, bool]]] = {
    "documented": (json.dumps({"type": "error", "error": NO, "request_id": "req_1"}).encode(), True),
    "without a type": (json.dumps({"error": {"message": "No."}}).encode(), True),
    "a text": (b'{"type": "error", "error": "No."}', True),
    "a message": (b'{"message": "No."}', True),
    "a detail": (b'{"detail": "No."}', True),
    "nested": (json.dumps({"type": "error", "error": {"type": "error", "error": NO}}).encode(), True),
    "a list": (json.dumps([{"error": NO}]).encode(), True),
    "nulls": (b'{"type": null, "error": {"type": null, "message": null}}', False),
    "numbers": (b'{"type": 5, "error": {"type": 7, "message": [7]}}', False),
    "an error of null": (b'{"error": null}', False),
    "empty": (b"", False),
    "no object": (b"7", False),
    "a page": (b"<html>No.</html>", False),
    "half of it": (b'{"type": "error", "error": {"mess', False),
    "not UTF-8": (b'{"error": {"message": "\xff"}}', False),
    "deep": (b'{"error":' * 20_000, False),
    "huge": (json.dumps({"later": "x" * 100_000, "error": NO}).encode(), False),
}
"""Bodies of errors, and whether they say why."""
STATUSES: Final = {
    400: (400, "upstream_refused"),
    401: (502, "upstream_auth_failed"),
    403: (502, "upstream_auth_failed"),
    404: (404, "upstream_refused"),
    413: (413, "upstream_refused"),
    429: (429, "upstream_rate_limited"),
    500: (502, "upstream_error"),
    529: (502, "upstream_error"),
}
PASSED_ON: Final = (400, 404, 413)


def failing(status: int, body: bytes) -> list[Step]:
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nretry-after: 7\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


async def test_each_status_leads_to_its_answer_whatever_the_body(store_url: str, tmp_path: Path) -> None:
    cases = [(status, name, stream) for status in STATUSES for name in BODIES for stream in (True, False)]
    scripts = [failing(status, BODIES[name][0]) for status, name, _ in cases]
    async with whole(tmp_path, store_url, *scripts, spare=len(cases)) as (gateway, token, _, _):
        for number, (status, name, stream) in enumerate(cases):
            answer = await ask(gateway.port, chat(token, {"model": f"alone-{number}", "stream": stream}))
            expected, code = STATUSES[status]
            told = BODIES[name][1] and status in PASSED_ON
            if status == 413 and not told:
                code = "body_too_large"
            assert (answer.status, answer.error["code"]) == (expected, code), (status, name)
            assert (answer.error["message"] == "No.") == told, (status, name)
            assert answer.error["message"]
            assert ("retry-after" in answer.headers) == (status in (429, 500, 529)), (status, name)
        records = await end_records(gateway)
        assert len(records) == len(cases)
        assert {(record.charge_micros, record.outcome) for record in records} == {(0, "upstream_failed")}
        account = await gateway.store.accounts.get("tester")
        assert (account.held_micros, account.balance_micros) == (0, 50_000_000)


async def test_an_account_without_credit_is_no_fault_of_the_request(store_url: str, tmp_path: Path) -> None:
    text = "Your credit balance is too low to access the Anthropic API."
    shapes = [{"error": {"message": text}}, {"error": text}, {"message": text}]
    scripts = [failing(400, json.dumps(shape).encode()) for shape in shapes]
    async with (
        whole(tmp_path, store_url, *scripts, spare=len(shapes)) as (gateway, token, _, _),
        client_of(gateway, token) as client,
    ):
        for number in range(len(shapes)):
            await client.chat.completions.create(model=f"both-{number}", messages=MESSAGES, stream=True)
            record = await last_end_record(gateway)
            assert [each.error for each in record.attempts] == ["upstream_auth_failed", ""]


@pytest.mark.parametrize("body", [body for body, _ in BODIES.values()])
def test_a_message_is_bounded_and_text(body: bytes) -> None:
    kind, message = error_of(body.replace(b"No.", b"No." * MAX_MESSAGE))
    assert kind
    assert len(message) <= MAX_MESSAGE
    assert len(error_delta(body * 9).error["message"]) <= MAX_MESSAGE
