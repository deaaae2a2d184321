"""The section `alerts`: a wrong address or amount is one clear line, which never repeats the address."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.schema import load

WEBHOOK = "webhook must be an address such as https://host/path, without a fragment"
LOW = "low_balance must be above 0 and at most 1000000000, with at most six decimals"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", "1: alerts: `webhook` is missing; add it"),
        ("{webhook: ''}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'ftp://host-canary/path'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https:///path-canary'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://host:0/canary'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://host:99999/canary'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://a..canary/'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://host/canary canary'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://host/#canary'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://[::1/canary'}", f"1: alerts: {WEBHOOK}"),
        ("{webhook: 'https://h/', low_balance: 0}", f"1: alerts: {LOW}"),
        ("{webhook: 'https://h/', low_balance: -1}", f"1: alerts: {LOW}"),
        ("{webhook: 'https://h/', low_balance: 0.0000001}", f"1: alerts: {LOW}"),
        ("{webhook: 'https://h/', low_balance: much}", "1: alerts.low_balance: must be a number, such as 0.15"),
        (
            "{webhook: 'https://h/', events: [budgets]}",
            "1: alerts.events[0]: must be budget or low_balance or channel or credential or store or account or token",
        ),
        (
            "{webhook: 'https://h/', others: {shop: {webhook: 'ftp://canary/', events: []}}}",
            f"1: alerts.others: {WEBHOOK}",
        ),
        (
            "{webhook: 'https://h/', others: {Shop: {webhook: 'https://canary/', events: []}}}",
            "1: alerts: others: the name 'Shop' must be a letter, and up to 31 more of a-z, 0-9 and _",
        ),
        (
            "{webhook: 'https://h/', secret: canary}",
            "1: alerts.secret: unknown setting; known here: events, groups, low_balance, others, webhook",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_without_the_address(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"alerts: {text}\n")
    with pytest.raises(Misconfigured) as refused:
        load(file, {})
    assert str(refused.value) == f"{file}:{error}"
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/T0/B0",
        "http://127.0.0.1:8080",
        "http://[::1]:8080/?key=1",
        "https://user:password@host/path",
    ],
)
def test_an_address_is_accepted_and_not_shown(tmp_path: Path, url: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"alerts: {{webhook: '{url}', low_balance: 5.5}}\n")
    config = load(file, {}).config
    assert config.alerts is not None
    assert (config.alerts.webhook, config.alerts.low_balance) == (url, Decimal("5.5"))
    assert url not in repr(config)
    assert "password" not in config.alerts.host


def test_without_the_section_there_are_no_alerts(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("workers: 1\n")
    assert load(file, {}).config.alerts is None
