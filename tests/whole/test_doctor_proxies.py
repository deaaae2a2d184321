"""The verdicts of doctor behind real proxies: the shipped nginx.conf and Caddyfile, as they are and with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from gateway.tools.doctor import diagnose
from tests.reverse_proxies import certificates, shipped_proxy, with_prefix
from tests.whole.conftest import Serve

Change = Callable[[str], str]
WORDS = "one two three four five six seven eight"


def in_nginx(line: str, instead_of: str = "proxy_buffering off;") -> Change:
    def change(text: str) -> str:
        assert instead_of in text
        return text.replace(instead_of, line)

    return change


def in_caddy(line: str) -> Change:
    return lambda text: text.replace("\t\ttransport http {", f"\t\t{line}\n\t\ttransport http {{")


def as_it_is(text: str) -> str:
    return text


NGINX: dict[str, tuple[Change, str, str]] = {
    "as it is shipped": (as_it_is, "/v1", ""),
    "with a prefix": (with_prefix, "/ai/v1", ""),
    "without /v1": (as_it_is, "", "path_changed"),
    "with a prefix that is passed on": (in_nginx("location /ai/ {", "location / {"), "/ai/v1", "path_changed"),
    "that cuts a long pause": (in_nginx("proxy_read_timeout 1s;", "proxy_read_timeout 700s;"), "/v1", "cut"),
    "that gives up early": (in_nginx("proxy_read_timeout 1s;", "proxy_read_timeout 700s;"), "/v1", "other_service"),
    "without Authorization": (
        in_nginx('proxy_buffering off; proxy_set_header Authorization "";'),
        "/v1",
        "authorization_removed",
    ),
    "without x-request-id": (in_nginx("proxy_buffering off; proxy_hide_header x-request-id;"), "/v1", ""),
    "with a redirect": (
        in_nginx("return 301 https://ai.example$request_uri;", "proxy_pass http://gateway;"),
        "/v1",
        "other_service",
    ),
    "with a smaller limit": (in_nginx("client_max_body_size 50;", "client_max_body_size 0;"), "/v1", "other_service"),
}
MODES = {"that cuts a long pause": "stall", "that gives up early": "silent"}
"""How the upstream behaves meanwhile."""
CADDY: dict[str, tuple[Change, str, str]] = {
    "as it is shipped": (as_it_is, "/v1", ""),
    "with a prefix": (with_prefix, "/ai/v1", ""),
    "without /v1": (as_it_is, "", "path_changed"),
    "without Authorization": (in_caddy("header_up -Authorization"), "/v1", "authorization_removed"),
}


async def verdict(base_url: str, gateway: Running, token: str, ca: Path | None) -> tuple[str, object]:
    """Return the code of what is ill, or nothing; and all that was found."""
    found = [diagnosis async for diagnosis in diagnose(base_url, token, "words", ca=ca)]
    assert token not in str(found)
    return (found[-1].code if found[-1].verdict == "ill" else ""), found


@pytest.mark.parametrize(("name", "table"), [("nginx", NGINX), ("caddy", CADDY)])
async def test_verdicts(name: str, table: dict[str, tuple[Change, str, str]], serve: Serve, tmp_path: Path) -> None:
    _, _, ca = certificates(tmp_path / "authority")
    wrong: dict[str, tuple[str, object]] = {}
    async with (
        FakeUpstream(pace_s=0.05, words=WORDS, key="channel-credential-4711") as upstream,
        serve(upstream.base_url) as gateway,
    ):
        token = await gateway.token()
        for case, (change, path, expected) in table.items():
            upstream.mode = MODES.get(case, "words")
            async with shipped_proxy(name, tmp_path / name, gateway.port, change) as base:
                code, found = await verdict(base + path, gateway, token, ca)
                if code != expected:
                    wrong[case] = code, found
                if case != "as it is shipped":
                    continue
                for address, authority, other in (
                    (base + path, None, "certificate"),
                    (base.replace("https", "http") + path, ca, "other_service"),
                ):
                    code, found = await verdict(address, gateway, token, authority)
                    if code != other:
                        wrong[address] = code, found
    async with shipped_proxy(name, tmp_path / name, 1) as base:
        code, found = await verdict(f"{base}/v1", gateway, token, ca)
    assert code == "other_service", found
    assert {case: found[0] for case, found in wrong.items()} == {}, wrong
