"""What Anthropic adds to its events later means nothing here, and ends no answer."""

from __future__ import annotations

import pytest

from plugins.anthropic_answer import MessageReader


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x", b"{}"),
        ("x", b"no JSON"),
        ("new", b'{"type":"new","index":"abc"}'),
        ("ping", b'{"type":"ping","delta":"x"}'),
        ("new", b'{"type":"new","message":"text"}'),
        (
            "content_block_start",
            b'{"type":"content_block_start","index":0,"content_block":{"type":"new","id":null,"name":null}}',
        ),
        (
            "content_block_start",
            b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":null}}',
        ),
    ],
)
def test_an_event_that_is_not_known_adds_nothing(name: str, data: bytes) -> None:
    assert list(MessageReader().read(name, data)) == []
