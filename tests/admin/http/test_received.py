"""The API: what the table of operations says, for who may do it; everything else is refused in words."""

from __future__ import annotations

import asyncio
import io
import random
import re
from typing import Any, Final

import msgspec
import pytest
from yarl import URL

from gateway.admin.actions.action import PREFIX, Action
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.table import ACTIONS
from gateway.admin.http import openapi
from gateway.admin.http.api import MAX_BODY
from gateway.domain.exchange import Outcome
from gateway.usage.record import decode
from tests.admin.http.conftest import TOKEN, Client, call
from tests.admin.http.test_app import assert_private
from tests.patience import PATIENCE_S
from tests.records import arrival, end, usage_database

# Whatever is sent to the API is answered in words with the field at fault, and never with a 500.
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
        *((b"[]", "body", "expected `object`, got `array`"), (b"null", "body", "expected `object`, got `null`")),
        *((b"7", "body", "expected `object`, got `int`"), (b'{"id":', "body", "no JSON")),
        *((b'{"id": "alice"} x', "body", "no JSON"), (b"\xff\xfe", "body", "no JSON")),
        *((b'{"id": "al\xffice"}', "body", "no JSON"), (b'{"id": "\\ud800"}', "body", "no JSON")),
        (b'\xef\xbb\xbf{"id": "alice"}', "body", "no JSON"),
        (b'{"id": "alice", "unknown": 1}', "unknown", "contains unknown field `unknown`; there are: id, group,"),
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
        *(("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("limit=", "limit")),
        *(("limit=1&limit=2", "limit"), ("unknown=1", "query"), ("status=gone", "status")),
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
                    assert_private(response)
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


# The API does what the table of operations says, for who may do it, and refuses everything else in words.
async def test_a_management_token_does_what_its_scopes_say_and_nothing_after_it_is_revoked(api: Client) -> None:
    status, made = await call(api, "POST", "/management-tokens", {"name": "the shop", "scopes": ["accounts"]})
    text = made["token"]
    assert (status, made["scopes"]) == (201, ["accounts"])
    assert (await call(api, "POST", "/accounts", {"id": "bob"}, text))[0] == 201
    for method, path in (
        ("GET", "/accounts"),
        ("GET", "/management-tokens"),
        ("DELETE", f"/management-tokens/{made['id']}"),
        ("POST", "/accounts/bob/credits"),
    ):
        status, refused = await call(api, method, path, {"no": "body of it"} if method == "POST" else None, text)
        assert (status, refused["error"]["code"]) == (403, "scope_missing")
    assert (await call(api, "DELETE", f"/management-tokens/{made['id']}"))[0] == 204
    assert (await call(api, "POST", "/accounts", {"id": "carol"}, text))[0] == 401


# What the API sends that is no JSON: CSV of any length, and requests as they end.
READS_HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def test_requests_are_followed_by_model_and_outcome(api: Client, local_client: LocalClient) -> None:
    rows = usage_database(local_client.store.usage.folder)
    async with api.get("/api/v1/usage/live?model=large&outcome=completed", headers=READS_HEADERS) as response:
        assert await response.content.readuntil(b"\n\n") == b": from here on\n\n"
        mine = end(arrival(), model="large")
        rows.write([end(arrival()), end(arrival(), model="large", outcome=Outcome.REFUSED), mine])
        async with asyncio.timeout(PATIENCE_S):
            event = (await response.content.readuntil(b"\n\n")).decode()
        assert decode(event.splitlines()[1].removeprefix("data: ")) == mine
    rows.close()


async def test_an_external_id_names_its_account_in_paths_and_filters(api: Client) -> None:
    body = {"id": "alice", "external_id": "cus_Q1"}
    assert (await api.post("/api/v1/accounts", json=body, headers=READS_HEADERS)).status == 201
    for path in ("accounts/ext:cus_Q1", "accounts/ext:cus_Q1/tokens", "requests?account=ext:cus_Q1"):
        assert (await api.get(f"/api/v1/{path}", headers=READS_HEADERS)).status == 200, path
    token = await api.post("/api/v1/accounts/ext:cus_Q1/tokens", json={}, headers=READS_HEADERS)
    assert (await token.json())["id"].startswith("alice-")
    for path in ("accounts/{}", "requests?account={}", "usage/summary?account={}"):
        for name, words in (("ext:cus_Q2", "the external id 'cus_Q2'"), ("nobody", "There is no account `nobody`")):
            answer = await api.get(f"/api/v1/{path.format(name)}", headers=READS_HEADERS)
            assert answer.status == 404, path
            assert words in (text := await answer.text()), path
            assert "`gateway" not in text


async def test_a_list_may_be_given_in_parts(api: Client) -> None:
    one, other = [
        await (await api.get(f"/api/v1/usage/summary?{terms}", headers=READS_HEADERS)).json()
        for terms in ("by=day,model", "by=day&by=model")
    ]
    assert one == other
    assert (await api.get("/api/v1/usage/summary?limit=1&limit=2", headers=READS_HEADERS)).status == 400


# The description of the API is that of the routes: none more, none less, with schemas.
@pytest.fixture(scope="module")
def described() -> Any:
    return msgspec.json.decode(openapi.encoded())


async def test_it_has_the_routes_that_are_served_and_no_other(api: Client, described: Any) -> None:
    served = set()
    for route in api.server.app.router.routes():  # type: ignore[attr-defined]
        assert route.resource is not None
        path = re.sub(r"\{(\w+)[^}]*\}", r"{\1}", route.resource.canonical)
        if path.startswith(PREFIX):
            served.add((route.method.lower(), path))
    told = {(method, path) for path, methods in described["paths"].items() for method in methods}
    assert told == served


async def test_it_is_served_to_anybody(api: Client, described: Any) -> None:
    for path in (f"{PREFIX}{openapi.PATH}", openapi.PATH):
        async with api.get(path, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            assert (response.status, await response.json()) == (200, described)
        async with api.get(path) as response:
            assert (response.status, await response.json()) == (200, described)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda each: each.name)
def test_each_operation_is_told_with_its_parameters_scope_and_errors(action: Action[Any, Any], described: Any) -> None:
    told = described["paths"][PREFIX + action.path][action.method.lower()]
    assert told["operationId"] == action.name
    assert action.description
    assert told["summary"][0].isupper()
    assert f"Scope: `{action.scope}`" in told["description"]
    parameters = {(each["in"], each["name"]): each for each in told["parameters"]}
    assert [name for place, name in parameters if place == "path"] == list(action.in_path)
    fields = () if action.query is None else msgspec.structs.fields(action.query)
    assert [name for place, name in parameters if place == "query"] == [field.encode_name for field in fields]
    assert (("header", "Idempotency-Key") in parameters) == action.writes
    assert {"400", "401", "403", "503", str(action.status)} <= set(told["responses"])
    assert ("requestBody" in told) == (action.body is not None)


def test_every_reference_is_there_and_every_struct_is_described(described: Any) -> None:
    schemas = described["components"]["schemas"]
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', msgspec.json.encode(described).decode()))
    assert referred == set(schemas)
    assert [
        name for name, schema in schemas.items() if schema.get("type") == "object" and not schema.get("description")
    ] == []


def test_generated_clients_compile(described: Any) -> None:
    """A field with a default counts as required in TypeScript; a model with a field of its own name shadows it in Python."""
    schemas = described["components"]["schemas"]
    found = re.findall(r'"requestBody".*?"#/components/schemas/(\w+)"', msgspec.json.encode(described).decode())
    assert len(found) > 8
    sent = list(found)
    for name in sent:
        sent += set(re.findall(r"schemas/(\w+)", str(schemas[name]))) - set(sent)
        fields = schemas[name].get("properties", {})
        assert [field for field, schema in fields.items() if "default" in schema] == [], name
    snake = {name: re.sub(r"(?<=.)(?=[A-Z])", "_", name).lower() for name in schemas}
    assert [name for name, schema in schemas.items() if snake[name] in schema.get("properties", {})] == []


def test_operations_have_names_of_their_own() -> None:
    names = [action.name for action in ACTIONS]
    assert len(set(names)) == len(names)
