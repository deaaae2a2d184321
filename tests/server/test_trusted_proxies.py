"""The caller's address behind trusted proxies: what they say is believed, and nothing that a caller can send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.base.addresses import address_of
from gateway.fake_upstream import FakeUpstream
from gateway.server.trusted_proxies import MOST_PROXIES, TrustedProxies
from gateway.testing import Running, configuration, running
from tests.place import Place
from tests.runtime.test_reload import FileReloader
from tests.whole.raw import Answer, get, read_answer

PROXIES = ("10.0.0.2", "10.0.1.0/24", "2001:db8:1::/64", "fe80::/10", "::ffff:172.16.0.0/108")


def caller(peer: str, *lines: str, trusted: Sequence[str] = PROXIES) -> str:
    headers = CIMultiDict([("Host", "h"), *(("X-forwarded-FOR", line) for line in lines)])
    return TrustedProxies(trusted).caller_of(peer, CIMultiDictProxy(headers))


@pytest.mark.parametrize(
    ("peer", "lines", "expected"),
    [
        # Whoever is not trusted is the caller, whatever it sends.
        ("192.0.2.7", ["198.51.100.1"], "192.0.2.7"),
        ("10.0.0.3", ["198.51.100.1, 10.0.0.2"], "10.0.0.3"),
        ("", ["198.51.100.1"], ""),
        # A trusted proxy: the last address that is not trusted.
        ("10.0.0.2", [], "10.0.0.2"),
        ("10.0.0.2", ["198.51.100.1"], "198.51.100.1"),
        ("::ffff:10.0.0.2", ["198.51.100.1"], "198.51.100.1"),
        ("::ffff:172.16.0.9", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("fe80::2%eth0", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.2", ["198.51.100.66, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.2", ["198.51.100.66, 198.51.100.1, 10.0.1.77,2001:db8:1::5\t"], "198.51.100.1"),
        ("10.0.0.2", ["10.0.1.1, 10.0.1.2"], "10.0.1.1"),
        # Several lines are one list.
        ("10.0.0.2", ["198.51.100.66", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.2", ["198.51.100.66, 198.51.100.1", "10.0.1.1", "10.0.1.2"], "198.51.100.1"),
        # Ports, brackets, zones, other spellings of an address.
        *(("10.0.0.2", ["198.51.100.1:4711"], "198.51.100.1"), ("10.0.0.2", ["[2001:DB8:0::7]"], "2001:db8::7")),
        *(("10.0.0.2", ["[2001:db8::7]:4711"], "2001:db8::7"), ("10.0.0.2", ["2001:db8::7%eth0"], "2001:db8::7")),
        ("10.0.0.2", ["[fec0::7%25]:1, fe80::7%eth0"], "fec0::7"),
        # What is no address ends the reading at the last trusted one.
        ("10.0.0.2", ["198.51.100.1, unknown"], "10.0.0.2"),
        ("10.0.0.2", ["198.51.100.1, unknown, 10.0.1.9"], "10.0.1.9"),
        *(("10.0.0.2", ["198.51.100.1,"], "10.0.0.2"), ("10.0.0.2", [""], "10.0.0.2")),
        *(("10.0.0.2", ["198.51.100.1", ""], "10.0.0.2"), ("10.0.0.2", ["198.51.100.1, , 10.0.1.9"], "10.0.1.9")),
        ("10.0.0.2", ["198.51.100.1 198.51.100.2"], "10.0.0.2"),
        *(("10.0.0.2", ["198.51.100.1;proto=https"], "10.0.0.2"), ("10.0.0.2", ["for=198.51.100.1"], "10.0.0.2")),
        *(("10.0.0.2", ['"[2001:db8::7]"'], "10.0.0.2"), ("10.0.0.2", ["[2001:db8::7]x"], "10.0.0.2")),
        *(("10.0.0.2", ["[198.51.100.1]"], "198.51.100.1"), ("10.0.0.2", ["198.51.100.1:"], "10.0.0.2")),
        *(("10.0.0.2", ["198.51.100.1:123456"], "10.0.0.2"), ("10.0.0.2", ["198.051.100.1"], "10.0.0.2")),
        *(("10.0.0.2", ["198.51.100.1/32"], "10.0.0.2"), ("10.0.0.2", ["3232235777"], "10.0.0.2")),
        *(("10.0.0.2", ["unix:"], "10.0.0.2"), ("10.0.0.2", ["١٩٨.51.100.1"], "10.0.0.2")),
        ("10.0.0.2", ["2001:db8::7%" + "a" * 40], "10.0.0.2"),
    ],
)
def test_the_address_of_the_caller(peer: str, lines: list[str], expected: str) -> None:
    assert caller(peer, *lines) == expected


def test_only_so_many_parts_are_read() -> None:
    hops = [f"10.0.1.{number}" for number in range(MOST_PROXIES)]
    assert caller("10.0.0.2", ", ".join(["198.51.100.1", *hops[1:]])) == "198.51.100.1"
    assert caller("10.0.0.2", ", ".join(["198.51.100.1", *hops])) == "10.0.1.0"
    assert caller("10.0.0.2", "198.51.100.1", *hops) == "10.0.1.0"


@pytest.mark.parametrize("part", ["9" * 64_000, "," * 64_000, "10.0.1.1," * 7000, " " * 64_000, "[" + ":" * 64_000])
def test_a_very_long_header_takes_no_time(part: str) -> None:
    began = time.thread_time()
    for _ in range(50):
        assert caller("10.0.0.2", part).startswith("10.0.")
    assert (time.thread_time() - began) / 50 < 0.01


ADDRESSES = st.one_of(st.ip_addresses().map(str), st.sampled_from(["10.0.0.2", "10.0.1.7", "2001:db8:1::1"]))
PARTS = st.one_of(ADDRESSES, st.text(max_size=30), ADDRESSES.map("[{}]:80".format), st.just(""))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(PARTS, max_size=6).map(",".join), max_size=4), st.sampled_from(["192.0.2.7", "2001:db8::66"]))
def test_whatever_a_caller_sends_behind_a_proxy_that_appends_its_address(lines: list[str], address: str) -> None:
    assert caller("10.0.0.2", *lines, address) == address
    assert caller("10.0.0.2", *lines[:-1], ",".join([*lines[-1:], address])) == address
    assert caller(address, *lines) == address
    assert address_of(caller("10.0.0.2", *lines)) is not None


# In a gateway.


async def models(gateway: Running, token: str, *lines: str, source: str = "127.0.0.1") -> Answer:
    """Ask with these lines of the header, from an address of this machine."""
    header = "".join(f"X-Forwarded-For: {line}\r\n" for line in lines)
    request = get("/v1/models", token).replace(b"\r\n\r\n", f"\r\n{header}Forwarded: for=192.0.2.7\r\n\r\n".encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, local_addr=(source, 0))
    writer.write(request)
    try:
        return await read_answer(reader)
    finally:
        writer.close()


async def restricted(gateway: Running) -> str:
    """Return a token for the addresses 192.0.2.0/28 and 2001:db8::/64 alone."""
    await gateway.token()
    return (await gateway.store.tokens.create("tester", addresses=("192.0.2.0/28", "2001:db8::/64"))).token


async def test_the_addresses_of_a_token_are_those_of_callers_once_their_proxy_is_trusted(
    store_url: str, tmp_path: Path
) -> None:
    async with FakeUpstream() as upstream:
        plain = configuration(upstream.base_url)
        behind = plain.replace("{", '{"port": {"trusted_proxies": ["127.0.0.1"]},', 1)
        async with running(plain, tmp_path, store_url) as gateway:
            token = await restricted(gateway)
            refused = await models(gateway, token, "192.0.2.7")
            assert (refused.status, refused.error["code"]) == (403, "token_restricted")
            async with FileReloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader:
                (tmp_path / "gateway.yaml").write_text(behind)
                assert await reloader.run_once()
                assert (await models(gateway, token, "192.0.2.7")).status == 200
                assert (await models(gateway, token, "203.0.113.5", "[2001:db8::5]:443")).status == 200
                assert (await models(gateway, token, "192.0.2.7, 203.0.113.5")).status == 403
                assert (await models(gateway, token)).status == 403
                assert (await models(gateway, token, "192.0.2.7", source="127.0.0.2")).status == 403
                (tmp_path / "gateway.yaml").write_text(plain)
                assert await reloader.run_once()
                assert (await models(gateway, token, "192.0.2.7")).status == 403


async def test_refusals_are_counted_for_the_address_of_the_caller(place: Place) -> None:
    text = configuration("http://127.0.0.1:1/v1")
    text = text.replace("{", '{"port": {"trusted_proxies": ["127.0.0.0/8", "::1"]},', 1)
    text = text.replace('{"use":"auth"}', '{"use":"auth","with":{"wrong_tokens_per_minute":2}}')
    async with running(text, *place) as gateway:
        await gateway.token()
        wrong = (await gateway.store.tokens.create("tester")).token[:-4] + "aaaa"
        statuses = [(await models(gateway, wrong, f"198.51.100.{last}")).status for last in (1, 1, 1, 2, 2, 1)]
        assert statuses == [401, 401, 429, 401, 401, 429]
