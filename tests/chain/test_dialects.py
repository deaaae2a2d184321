"""The dialects of a chain: each has one provider, and can be made."""

from __future__ import annotations

import pytest

from gateway.base.errors import Misconfigured
from gateway.chain.chain import dialects_of, provider_of
from gateway.chain.entry import Entry
from gateway.chain.plugin import Plugin
from gateway.chat.dialect import Dialect


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


@pytest.mark.parametrize(
    ("attributes", "wrong"),
    [
        ({"name": 7}, "`name` must be a text"),
        ({"name": ""}, "`name` must be a text"),
        ({"path": None}, "`path` must be a text that begins with /"),
        ({"path": "messages"}, "`path` must be a text that begins with /"),
        ({"path": "/a\r\nb"}, "`path` must be a text that begins with /"),
        ({"headers": ["x-version"]}, "`headers` must be a mapping"),
        ({"headers": {"x-version": 7}}, "`headers` must have texts alone"),
        ({"headers": {"x version": "7"}}, "`headers.x version` is wrong: the name of a header"),
        ({"headers": {"x-version": "7\r\nhost: x"}}, "`headers.x-version` is wrong: the value of a header"),
        ({"headers": {"Host": "x"}}, "`headers.Host` is wrong: it says how"),
        ({"auth": "header x-key", "headers": {"X-Key": "x"}}, "`headers.X-Key` is wrong: `auth` sends the credential"),
        ({"auth": None}, "`auth` is wrong: must be `bearer`"),
        ({"auth": "cookie x"}, "`auth` is wrong: must be `bearer`"),
        ({"auth": "header host"}, "`auth` is wrong: the header host cannot carry"),
    ],
)
def test_attributes_that_no_request_can_be_sent_with_stop_the_start(attributes: dict[str, object], wrong: str) -> None:
    class Wrong(Plugin):
        dialects = (type("Odd", (Good,), attributes),)

    with pytest.raises(Misconfigured) as raised:
        dialects_of([Entry("one", Wrong())])
    assert str(raised.value).startswith(f"'one' has the dialect `Odd`, whose {wrong}")


def test_a_dialect_knows_the_plugin_that_provides_it() -> None:
    assert provider_of(Good()) == "Good"
    assert provider_of(dialects_of([Entry("one", Provides())])["good"]) == "one"
