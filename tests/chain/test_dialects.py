"""The dialects of a chain: each has one provider, and can be made."""

from __future__ import annotations

import pytest

from gateway.chain.dialects import dialects_of
from gateway.chain.entry import Entry
from gateway.chat.dialect import Dialect
from gateway.errors import Misconfigured
from gateway.plugin import Plugin


class Good(Dialect):
    name = "good"
    path = "/good"


class Bad(Dialect):
    name = "bad"

    def __init__(self) -> None:
        raise OSError("no such file")


class Provides(Plugin):
    dialects = (Good,)


class Breaks(Plugin):
    dialects = (Bad,)


def test_a_dialect_is_found_by_its_name() -> None:
    found = dialects_of([Entry("one", Provides()), Entry("two", Plugin())])
    assert list(found) == ["good"]
    assert isinstance(found["good"], Good)
    assert found["good"].error(500, b"x") == (500, b"x")


def test_two_providers_or_one_that_fails_stop_the_start() -> None:
    with pytest.raises(Misconfigured, match=r"^'two' provides the dialect `good`, as a plugin above does: keep one$"):
        dialects_of([Entry("one", Provides()), Entry("two", Provides())])
    with pytest.raises(Misconfigured, match=r"^'one' has a dialect that cannot be made: OSError$"):
        dialects_of([Entry("one", Breaks())])
