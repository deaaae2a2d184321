"""Origins are written as browsers write them, and each is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.schema import EVERY, load


def loaded(folder: Path, *origins: str) -> tuple[str, ...]:
    file = folder / "gateway.yaml"
    file.write_text(f"port: {{cors_origins: {list(origins)}}}\n")
    return load(file).config.port.cors_origins


def test_none_is_the_default() -> None:
    from gateway.config.schema import Port

    assert Port().cors_origins == ()


def test_origins_are_taken_as_they_are(tmp_path: Path) -> None:
    origins = ("https://app.example", "http://localhost:5173", "https://[::1]:8443", "https://a-b.c_d.example:444")
    assert loaded(tmp_path, *origins) == origins


@pytest.mark.parametrize(
    ("origin", "cure"),
    [
        ("*", EVERY),
        ("https://*.example", EVERY),
        ("https://app.example/", "browsers send `https://app.example`, not `https://app.example/`; write it like this"),
        ("https://App.example", "browsers send `https://app.example`, not `https://App.example`; write it like this"),
        ("https://app.example:443", "browsers send `https://app.example`, not"),
        ("http://app.example:80", "browsers send `http://app.example`, not"),
        ("https://app.example/page", "is no origin; write scheme and host, as in https://app.example"),
        ("app.example", "is no origin"),
        ("null", "is no origin"),
        ("", "is no origin"),
        ("https://app.example\r\nx: y", "is no origin"),
    ],
)
def test_what_no_browser_sends_is_refused_with_a_cure(tmp_path: Path, origin: str, cure: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        loaded(tmp_path, "https://good.example", origin)
    assert str(refused.value).startswith(f"{tmp_path}/gateway.yaml:1: port: cors_origins: ")
    assert cure in str(refused.value)
