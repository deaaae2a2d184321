"""Whatever is sent to the API is answered in words with the field at fault, and never with a 500."""

from __future__ import annotations

import io
import random
from typing import Any, Final

import pytest
from yarl import URL

from gateway.admin.actions.table import ACTIONS
from gateway.admin.http.api import MAX_BODY
from tests.admin.http.conftest import TOKEN, Client

HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
JSON: Final = {**HEADERS, "Content-Type": "application/json"}
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND")


async def sent(
    client: Client, body: bytes | io.BytesIO, path: str = "/accounts", **headers: str
) -> tuple[int, str, str | None, str]:
    """Return the status of an answer, and the code, the field and the message of its error."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post(f"/api/v1{path}", data=body, headers=JSON | headers) as response:
        error = (await response.json()).get("error", {})
        return response.status, error.get("code", ""), error.get("param"), error.get("message", "")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"id": "alice", "metadata": {"a": 1}}', "metadata[...]", "expected `str`"),
        (b"[]", "body", "expected `object`, got `array`"),
        (b"null", "body", "expected `object`, got `null`"),
        (b"7", "body", "expected `object`, got `int`"),
        (b'{"id":', "body", "no JSON"),
        (b'{"id": "alice"} x', "body", "no JSON"),
        (b"\xff\xfe", "body", "no JSON"),
        (b'{"id": "al\xffice"}', "body", "no JSON"),
        (b'{"id": "\\ud800"}', "body", "no JSON"),
        (b'\xef\xbb\xbf{"id": "alice"}', "body", "no JSON"),
        (b'{"id": "alice", "unknown": 1}', "unknown", "contains unknown field `unknown`"),
        (b'{"id": "alice", "limits": {"concurrrent": 1}}', "limits.concurrrent", "contains unknown field"),
        (b'{"id": 7}', "id", "expected `str`, got `int`"),
        (b'{"id": "alice", "models": ["a,b"]}', "models[0]", "matching regex"),
        (b'{"id": "A"}', "id", "is not an account id"),
        (b'{"id": "alice", "credit_line_micros": NaN}', "body", "no JSON"),
        (b'{"id": "alice", "credit_line_micros": Infinity}', "body", "no JSON"),
        (b'{"id": "alice", "credit_line_micros": -1}', "credit_line_micros", ">= 0"),
        (b'{"id": "alice", "credit_line_micros": 1.5}', "credit_line_micros", "expected `int`"),
        (b'{"id": "alice", "credit_line_micros": 1e400}', "credit_line_micros", "out of range"),
        (b'{"id": "alice", "credit_line_micros": 99999999999999999999999}', "credit_line_micros", "<="),
        (b'{"id": "alice", "credit_line_micros": ' + b"9" * 5000 + b"}", "credit_line_micros", "out of range"),
        (b'{"id": "alice", "models": [1]}', "models[0]", "expected `str`"),
        (b'{"id": "alice", "models": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "models[0]", "expected `str`"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, None, ""),
        (b'{"id": "alice", "external_id": "' + b"x" * 300 + b'"}', "external_id", "<= 200"),
    ],
)
async def test_a_body_that_is_wrong_is_refused_with_the_field(
    api: Client, body: bytes, param: str | None, words: str
) -> None:
    status, code, field, message = await sent(api, body)
    assert (status, code) == (400, "invalid_request"), message
    assert param in (field, None), (field, message)
    assert words in message
    assert message[0].isupper() or message[0] == "`"
    assert message.endswith(".")
    async with api.get("/api/v1/accounts", headers=HEADERS) as response:
        assert (await response.json())["data"] == []


async def test_only_json_as_it_is_is_taken(api: Client) -> None:
    body = b'{"id": "alice"}'
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x"):
        assert (await sent(api, body, Content_Type=content_type))[:2] == (415, "unsupported_media_type")
    assert (await sent(api, body, Content_Type="application/json; charset=utf-8"))[0] == 201


async def test_a_body_has_its_limit_also_where_its_length_is_not_said(api: Client) -> None:
    large = b'{"id": "' + b"x" * MAX_BODY + b'"}'

    async def pieces() -> Any:
        for first in range(0, len(large), 65_536):
            yield large[first : first + 65_536]

    for body in (io.BytesIO(large), pieces()):
        async with api.post("/api/v1/accounts", data=body, headers=JSON) as response:
            assert response.status == 413
            error = (await response.json())["error"]
            assert (error["code"], f"{MAX_BODY} bytes" in error["message"]) == ("body_too_large", True)
    status, _, _, message = await sent(
        api, io.BytesIO(b'{"rows": [' + b" " * 2 * 1024 * 1024 + b"]}"), "/accounts/import"
    )
    assert status == 200, message


async def test_an_operation_without_a_body_takes_an_empty_one(api: Client) -> None:
    await sent(api, b'{"id": "alice"}')
    assert (await sent(api, b'{"status": "active"}', "/accounts/alice/close"))[2] == "body"
    assert (await sent(api, b"{}", "/accounts/alice/close"))[0] == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=1&limit=2", "limit"),
        ("unknown=1", "query"),
        ("status=gone", "status"),
        ("after=" + "x" * 300, "after"),
        ("%00=%00", "query"),
        ("&=", "query"),
    ],
)
async def test_a_query_that_is_wrong_is_refused_with_the_parameter(api: Client, query: str, param: str) -> None:
    async with api.get(f"/api/v1/accounts?{query}", headers=HEADERS) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (400, "invalid_request", param)


def hostile_paths() -> list[str]:
    """Return paths of all operations, with texts in them that nobody should send, and others that there are not."""
    texts = (
        "alice",
        "..",
        "%2e%2e",
        "%00",
        "%ff",
        "a%2Fb",
        "a{b}",
        "%7B%7D",
        "*",
        "';%20DROP",
        "x" * 3000,
        "",
        "%F0%9F%92%A9",
        "?",
        "#",
    )
    draw = random.Random(7)
    paths = []
    for action in ACTIONS:
        for _ in range(2):
            paths.append("/api/v1" + action.path.format_map({name: draw.choice(texts) for name in action.in_path}))
    return [
        *paths,
        *("/", "/api", "/api/v1", "/api/v1/", "/api/v2/accounts", "//api/v1/accounts", "/api/v1//accounts"),
        *("/api/v1/../v1/accounts", "/api/v1/accounts/", "/API/V1/accounts", "/healthz/", "/metrics/../metrics"),
        *("/api/v1/accounts%3Flimit=1", "/api/v1/%61ccounts", "/.git/config", "/etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"),
    ]  # fmt: skip


async def test_no_path_and_no_method_is_answered_with_a_500(api: Client) -> None:
    paths = hostile_paths()
    assert len(paths) >= 60
    statuses = set()
    for path in paths:
        for method in METHODS:
            for body in (None, b'{"transaction": "t", "amount_micros": 1}') if method == "POST" else (None,):
                url = URL(f"{str(api.make_url('/')).rstrip('/')}{path}", encoded=True)
                async with api.session.request(method, url, data=body, headers=JSON) as response:
                    endless = response.content_type == "text/event-stream"
                    text = "" if endless else await response.text()
                    statuses.add(response.status)
                    assert response.status < 500, (method, path, text)
                    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
                    assert response.headers["X-Content-Type-Options"] == "nosniff"
                    assert response.headers["Cache-Control"] == "no-store"
                    assert response.headers["x-request-id"]
                    if response.status == 405:
                        assert response.headers["Allow"]
    assert statuses >= {200, 400, 404, 405}


async def test_no_bytes_are_answered_with_a_500(api: Client) -> None:
    draw = random.Random(11)
    valid = b'{"id": "alice", "limits": {"concurrent": 3}, "models": ["a", "b*"], "external_id": "x@y"}'
    for _ in range(300):
        body = bytearray(valid)
        for _ in range(draw.randrange(1, 6)):
            place = draw.randrange(len(body))
            body[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        assert (await sent(api, bytes(body)))[0] in (201, 400, 404, 409), bytes(body)
