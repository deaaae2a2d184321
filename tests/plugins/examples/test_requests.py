"""Example plugins that judge a request, stamp a response, or log one that is late."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import Caller, Exchange, Outcome, Refused, Services
from gateway.testing import FakeUpstream, configuration, exchange, running, services, started
from plugins.examples.address_allow_list import AddressAllowList
from plugins.examples.first_token_alarm import FirstText, FirstTokenAlarm
from plugins.examples.prompt_patterns import PromptPatterns
from plugins.examples.prompt_size import PromptSize
from plugins.examples.response_stamp import ResponseStamp
from tests.place import Place

CARD = "4111 1111 1111 1111"


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url) as given:
        yield given


async def refusal(patterns: PromptPatterns, message: dict[str, object]) -> Refused:
    with pytest.raises(Refused) as refused:
        await patterns.on_request(exchange({"messages": [{"role": "user", **message}]}))
    return refused.value


@pytest.mark.parametrize(
    "message",
    [
        {"content": f"my card is {CARD}."},
        {"content": "my card is 4111-1111-1111-1111"},
        {"content": [{"type": "text", "text": "hello"}, {"type": "text", "text": CARD}]},
        {"content": "", "tool_calls": [{"function": {"name": "pay", "arguments": f'{{"card": "{CARD}"}}'}}]},
    ],
)
async def test_every_string_of_the_messages_is_searched(given: Services, message: dict[str, object]) -> None:
    refused = await refusal(await started(PromptPatterns(), given), message)
    assert (refused.status, refused.code, refused.param) == (400, "prompt_forbidden", "messages")
    assert "(card-number)" in refused.message
    assert "4111" not in refused.message


async def test_escaped_characters_are_searched_as_well(given: Services) -> None:
    patterns = await started(PromptPatterns(patterns={"word": "secret"}), given)
    escaped = rb'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "\u0073ecret"}]}'
    with pytest.raises(Refused, match="word"):
        await patterns.on_request(exchange(escaped))


@pytest.mark.parametrize("content", ["hello", "order 4111 1111 of 2026", "BEGIN PRIVATE KEY"])
async def test_a_prompt_without_a_match_passes(given: Services, content: str) -> None:
    patterns = await started(PromptPatterns(), given)
    await patterns.on_request(exchange({"messages": [{"role": "user", "content": content}]}))


async def test_a_request_without_a_prompt_passes(given: Services) -> None:
    patterns = await started(PromptPatterns(), given)
    await patterns.on_request(exchange(b"", method="GET", path="/v1/models"))


async def test_a_broken_pattern_stops_the_start_and_is_named(given: Services) -> None:
    with pytest.raises(ValueError, match=r"patterns\.broken is no regular expression"):
        await started(PromptPatterns(patterns={"broken": "("}), given)


NETWORKS = ["192.0.2.0/24", "198.51.100.7", "2001:db8::/32"]


@pytest.fixture
async def allow_list(given: Services) -> AddressAllowList:
    return await started(AddressAllowList(networks=NETWORKS), given)


@pytest.mark.parametrize("peer", ["192.0.2.1", "198.51.100.7", "2001:db8::1", "::ffff:192.0.2.1"])
async def test_a_caller_from_a_listed_network_passes(allow_list: AddressAllowList, peer: str) -> None:
    await allow_list.on_request(exchange(peer=peer))


@pytest.mark.parametrize("peer", ["192.0.3.1", "198.51.100.8", "2001:db9::1", "::ffff:192.0.3.1", "", "elsewhere"])
async def test_any_other_caller_is_refused_with_the_body_unread(allow_list: AddressAllowList, peer: str) -> None:
    with pytest.raises(Refused, match="not open to your address") as refused:
        await allow_list.on_request(exchange(b"no json at all", peer=peer))
    assert (refused.value.status, refused.value.code) == (403, "address_forbidden")


@pytest.mark.parametrize("network", ["192.0.2.1/24", "office"])
async def test_an_invalid_network_stops_the_start(given: Services, network: str) -> None:
    with pytest.raises(ValueError, match=network.partition("/")[0]):
        await started(AddressAllowList(networks=[network]), given)


SIZES = PromptSize(tokens=100, groups={"trial": 20, "gold": 1000})


def asked(group: str, size: int) -> Exchange:
    """Return a request with a prompt of about `size` tokens, from an account of the group."""
    made = exchange({"messages": [{"role": "user", "content": "x" * 4 * size}]})
    made[Caller] = Caller(account="alice", token_id="alice-1", group=group)
    return made


@pytest.mark.parametrize(("group", "size"), [("trial", 5), ("other", 50), ("gold", 900)])
async def test_a_prompt_within_the_limit_of_the_group_passes(group: str, size: int) -> None:
    await SIZES.on_request(asked(group, size))


@pytest.mark.parametrize(("group", "size", "most"), [("trial", 50, 20), ("other", 110, 100), ("gold", 1100, 1000)])
async def test_a_prompt_that_is_too_large_is_refused_with_the_limit(group: str, size: int, most: int) -> None:
    with pytest.raises(Refused, match=f"{most} is the most here") as refused:
        await SIZES.on_request(asked(group, size))
    assert (refused.value.status, refused.value.code, refused.value.param) == (413, "prompt_too_large", "messages")


async def test_a_request_without_a_prompt_is_not_too_large() -> None:
    await SIZES.on_request(exchange(b"", method="GET", path="/v1/models"))


def test_a_limit_below_one_token_is_refused() -> None:
    for tokens, groups in ((0, {}), (1, {"trial": 0})):
        with pytest.raises(ValueError, match="1 token or more"):
            PromptSize(tokens=tokens, groups=groups)


USE = "plugins.examples.response_stamp:ResponseStamp"
HEADERS = {"x-served-by": "{channel}/{model} after {attempts}", "x-house": "ours, {as it stands}"}


async def test_a_stream_is_stamped_and_a_refusal_is_not(place: Place) -> None:
    async with FakeUpstream(pace_s=0) as upstream:
        yaml = configuration(upstream.base_url, {"use": USE, "with": {"headers": HEADERS}})
        async with running(yaml, *place) as gateway:
            token = await gateway.token()
            answer = await gateway.ask(token)
            assert answer.status == 200
            assert answer.headers["x-served-by"] == "fake/words after 1"
            assert answer.headers["x-house"] == "ours, {as it stands}"
            assert b"[DONE]" in answer.body
            refused = await gateway.ask(token, model="unknown")
            assert refused.status == 404
            assert "x-served-by" not in refused.headers


@pytest.mark.parametrize("name", ["content-type", "x-request-id", "X-Served-By", "x-a\r\nx-b", ""])
def test_a_header_name_that_is_not_allowed_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must begin with x-"):
        ResponseStamp(headers={name: "value"})


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "größer"])
def test_a_value_that_is_not_printable_ascii_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        ResponseStamp(headers={"x-house": value})


ALARM = "plugins.examples.first_token_alarm:FirstTokenAlarm"
EMPTY = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"Hello"}}]}\n\n'
CALL = b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments": "{"}}]}}]}\n\n'


async def lines(folder: Path, store_url: str, slow_ms: float) -> list[MutableMapping[str, Any]]:
    """Return what is logged of one complete request."""
    async with FakeUpstream(pace_s=0.01) as upstream:
        yaml = configuration(upstream.base_url, {"use": ALARM, "with": {"slow_ms": slow_ms}})
        async with running(yaml, folder, store_url) as gateway:
            token = await gateway.token()
            with capture_logs() as logged:
                assert (await gateway.ask(token)).status == 200
    return [line for line in logged if line["event"] == "first_token_slow"]


async def test_a_slow_first_token_is_logged_with_its_channel(place: Place) -> None:
    (line,) = await lines(*place, slow_ms=1)
    assert (line["log_level"], line["channel"], line["model"], line["gave_up"]) == ("warning", "fake", "words", False)
    assert line["waited_ms"] >= 10


async def test_a_fast_first_token_is_not_logged(place: Place) -> None:
    assert await lines(*place, slow_ms=60_000) == []


@pytest.mark.parametrize("text", [TEXT, CALL])
async def test_the_time_is_measured_to_the_first_text(text: bytes) -> None:
    alarm, asked = FirstTokenAlarm(), exchange()
    await alarm.on_request(asked)
    alarm.on_chunk(asked, EMPTY)
    assert asked[FirstText].after_ms is None
    alarm.on_chunk(asked, text)
    first = asked[FirstText].after_ms
    assert first is not None
    alarm.on_chunk(asked, TEXT)
    assert asked[FirstText].after_ms == first


@pytest.mark.parametrize(("outcome", "lines"), [(Outcome.CALLER_GONE, 1), (Outcome.REFUSED, 0)])
async def test_a_caller_that_gave_up_has_waited_and_a_refused_one_has_not(
    place: Place, outcome: Outcome, lines: int
) -> None:
    async with services(*place) as given:
        with capture_logs() as logged:
            alarm, asked = await started(FirstTokenAlarm(slow_ms=0.000001), given), exchange()
            await alarm.on_request(asked)
            asked.outcome = outcome
            await alarm.on_end(asked)
    assert [line["gave_up"] for line in logged] == [True] * lines
