"""Base addresses that are wrong before anything is sent, and what to write instead."""

from __future__ import annotations

import pytest

from gateway.tools.doctor.doctor import parsed

WRONG = {
    "": ("address_invalid", ""),
    "localhost": ("address_invalid", "http://localhost"),
    "api.example.com/v1": ("address_invalid", "https://api.example.com/v1"),
    "localhost:8080/v1": ("address_invalid", "http://localhost:8080/v1"),
    "http:/host/v1": ("address_invalid", ": http://host/v1"),
    "https:host/v1": ("address_invalid", ": https://host/v1"),
    "https:///v1": ("address_invalid", ""),
    "ftp://host/v1": ("address_invalid", ""),
    "wss://host/v1": ("address_invalid", ""),
    "https://host:99999/v1": ("address_invalid", "from 1 to 65535"),
    "https://host:http/v1": ("address_invalid", ""),
    "https://host:0/v1": ("address_invalid", ""),
    "https://[::1/v1": ("address_invalid", ""),
    "https://a..b/v1": ("address_invalid", ""),
    f"https://{'a' * 64}.example/v1": ("address_invalid", ""),
    "https://xn--/v1": ("address_invalid", ""),
    "https://h\u200b/v1": ("address_invalid", ""),
    "https://ho st/v1": ("address_invalid", ""),
    "https://user:pass-word@host/v1": ("address_has_more", "https://host/v1"),
    "https://user:pass-word@ho st:x/v1": ("address_invalid", ""),
    "https://host/v1?key=1": ("address_has_more", "https://host/v1"),
    "https://host/v1#top": ("address_has_more", "https://host/v1"),
    "https://host/v1/v1": ("address_has_more", "https://host/v1"),
    "https://host/ai/v1/v1/": ("address_has_more", "https://host/ai/v1"),
    "https://host/v1/chat/completions": ("address_has_more", "https://host/v1"),
    "https://host/ai/v1/chat/completions/": ("address_has_more", "https://host/ai/v1"),
    "https://host/v1/models": ("address_has_more", "https://host/v1"),
    "https://host/v1/responses": ("address_has_more", "https://host/v1"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_address(text: str) -> None:
    _, diagnosis = parsed(text)
    code, remedy = WRONG[text]
    assert (diagnosis.subject, diagnosis.verdict, diagnosis.code) == ("address", "ill", code)
    assert remedy in diagnosis.remedy
    assert diagnosis.remedy
    assert "pass-word" not in str(diagnosis)
    assert str(diagnosis).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8080/v1",
        "https://host/ai/v1",
        " https://host/v1/\n",
        "HTTPS://[::1]:8443/v1",
        "https://b\u00fccher.example/v1",
    ],
)
def test_a_right_address(text: str) -> None:
    url, diagnosis = parsed(text)
    assert diagnosis.verdict == "well"
    assert str(url / "models").endswith("/v1/models")


@pytest.mark.parametrize("text", ["https://host", "https://host/", "https://host/ai", "https://host/V1"])
def test_an_address_that_is_right_only_behind_a_proxy_that_adds_v1(text: str) -> None:
    _, diagnosis = parsed(text)
    assert (diagnosis.verdict, diagnosis.code) == ("note", "address_without_v1")
