"""A time zone is one that the machine has, and UTC needs no files."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from gateway.config.schema import time_zone


@pytest.fixture
def no_files() -> Iterator[None]:
    """A machine without files of time zones."""
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(to=before)


def test_a_time_zone_of_the_machine_has_summer_time() -> None:
    berlin = time_zone("Europe/Berlin")
    assert datetime(2026, 1, 1, tzinfo=berlin).utcoffset() == timedelta(hours=1)
    assert datetime(2026, 7, 1, tzinfo=berlin).utcoffset() == timedelta(hours=2)


@pytest.mark.usefixtures("no_files")
def test_utc_needs_no_files_and_others_say_what_to_install() -> None:
    assert time_zone("UTC") is UTC
    with pytest.raises(ValueError, match="install the package tzdata"):
        time_zone("Europe/Berlin")


@pytest.mark.parametrize(
    "name", ["", "utc ", "Mars/Olympus", "../zoneinfo/UTC", "/etc/passwd", "Europe", "a\0b", "x" * 9999]
)
def test_any_other_text_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no such time zone"):
        time_zone(name)
