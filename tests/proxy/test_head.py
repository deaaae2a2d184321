"""A response head has no line that its headers did not name, and an invalid header is an error before the first byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway import Exchange, Outcome, Plugin, Refused, Reply
from gateway.proxy.caller import InvalidHeader, render_head, valid_headers
from gateway.testing import Running, running
from tests.place import Place
from tests.whole.aftermath import charged, last_end_record
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk
from tests.whole.test_stream import STREAM

INVALID = {
    "beyond latin-1": ("X-A", "☃"),
    "a surrogate": ("X-A", "\ud800"),
    "lines in a value": ("X-A", "a\r\nSet-Cookie: b=c"),
    "a line feed": ("X-A", "a\nb"),
    "a carriage return": ("X-A", "a\rb"),
    "a null": ("X-A", "a\0b"),
    "a control character": ("X-A", "a\x7f"),
    "lines in a name": ("X-A: b\r\nX-C", "d"),
    "a colon in a name": ("X-A:", "b"),
    "a space in a name": ("X-A ", "b"),
    "a letter in a name": ("X-Ä", "b"),
    "no name": ("", "b"),
    "a length": ("Content-Length", "5"),
    "a coding in another spelling": ("tRANSFER-eNCODING", "chunked"),
    "another id": ("x-request-id", "mine"),
    "another id in another spelling": ("X-Request-ID", "mine"),
    "another date": ("Date", "today"),
    "what becomes of the connection": ("Connection", "upgrade"),
}
JSON_ANSWER = b'{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":null}'
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(JSON_ANSWER)


class Stamps(Plugin):
    """A plugin that adds a header: to the answer of the upstream, or to a reply or a refusal of its own."""

    where: str
    header: str
    value: str

    async def on_request(self, exchange: Exchange) -> Reply | None:
        match self.where:
            case "request":
                exchange.response_headers[self.header] = self.value
            case "reply":
                return Reply(body=b"{}", headers={self.header: self.value})
            case "type":
                return Reply(body=b"{}", content_type=self.value)
            case "refusal":
                raise Refused(403, "no", "No.", headers={self.header: self.value})
        return None

    def on_response(self, exchange: Exchange) -> None:
        if self.where == "response":
            exchange.response_headers[self.header] = self.value


@pytest.mark.parametrize(("name", "value"), INVALID.values(), ids=INVALID)
def test_an_invalid_header_is_an_error_that_names_it_on_one_line(name: str, value: str) -> None:
    with pytest.raises(InvalidHeader) as caught:
        render_head(200, {"X-Good": "1", name: value}, "")
    assert repr(name) in str(caught.value) and str(caught.value).isprintable()
    assert valid_headers({"X-Good": "1", name: value}) == {"X-Good": "1"}


def test_every_other_value_is_sent_unchanged() -> None:
    values = {"X-A": "", "x!#$%&'*+-.^_`|~9": "a\tb é ÿ\x80 ~", "X-B": "a: b"}
    lines = render_head(299, values, "Content-Length: 0\r\n").decode("latin-1").split("\r\n")
    assert lines[0] == "HTTP/1.1 299 "
    assert lines[2:] == [*(f"{name}: {value}" for name, value in values.items()), "Content-Length: 0", "", ""]


@asynccontextmanager
async def stamping(where: str, header: str, value: str, folder: Path, store_url: str) -> AsyncIterator[Running]:
    """Run a gateway with a plugin that adds a header; `json` is the answer to a request that is not for a stream."""
    settings = {"where": "request" if where == "json" else where, "header": header, "value": value}
    step = f"  - use: tests.proxy.test_head:Stamps\n    with: {json.dumps(settings)}\n"
    script = [JSON_HEAD + JSON_ANSWER] if where == "json" else [CHUNKED + chunk(STREAM) + LAST]
    more = "port: {allow_non_streaming: true}"
    async with (
        Scripted(script) as upstream,
        running(configuration(upstream.base_url, chain=CHAIN + step, more=more), folder, store_url) as gateway,
    ):
        yield gateway


@pytest.mark.parametrize("value", ["☃", "a\r\nSet-Cookie: b=c"], ids=["snow", "lines"])
@pytest.mark.parametrize("where", ["response", "request", "reply", "type", "refusal", "json"])
async def test_a_plugins_invalid_header_is_an_internal_error_that_costs_nothing(
    where: str, value: str, place: Place
) -> None:
    async with stamping(where, "X-A", value, *place) as gateway:
        request = chat(await gateway.token(), {"stream": where != "json"})
        with capture_logs() as lines:
            answer = await ask(gateway.port, request)
            record = await last_end_record(gateway)
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert not {"x-a", "set-cookie"} & {name.lower() for name in answer.headers}
        assert answer.headers["x-request-id"] == answer.error["request_id"]
        assert (record.status, record.outcome, record.error_code) == (500, Outcome.INTERNAL_ERROR, "internal_error")
        assert record.charge_micros == await charged(gateway) == 0
        assert record.completion_tokens == 0
        (line,) = [line for line in lines if line["log_level"] == "error"]
        if "\n" in value and where in ("reply", "type", "refusal"):
            assert isinstance(line["exc_info"], ValueError), "these refuse it where they are made, in the plugin"
            return
        assert ("Content-Type" if where == "type" else "X-A") in line["reason"]
        assert "exc_info" not in line


@pytest.mark.parametrize("where", ["response", "request", "json", "reply", "refusal"])
@pytest.mark.parametrize("name", ["content-length", "X-Request-Id"])
async def test_a_header_of_the_gateways_own_is_an_internal_error_that_is_logged(
    where: str, name: str, place: Place
) -> None:
    async with stamping(where, name, "5", *place) as gateway:
        with capture_logs() as lines:
            answer = await ask(gateway.port, chat(await gateway.token(), {"stream": where != "json"}))
            await last_end_record(gateway)
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] == answer.error["request_id"]
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert line["reason"] == f"the response header {name!r} cannot be sent: the gateway writes its own"


async def test_the_shipped_stamp_serves_a_channel_with_any_name(place: Place) -> None:
    chain = f"{CHAIN}  - use: plugins.examples.response_stamp:ResponseStamp\n"
    async with Scripted([CHUNKED + chunk(STREAM) + LAST]) as upstream:
        text = configuration(upstream.base_url, chain=chain).replace("fake", "канал é")
        async with running(text, *place) as gateway:
            answer = await ask(gateway.port, chat(await gateway.token()))
    assert (answer.status, answer.whole) == (200, True)
    assert answer.headers["x-served-by"] == "%D0%BA%D0%B0%D0%BD%D0%B0%D0%BB %C3%A9"
