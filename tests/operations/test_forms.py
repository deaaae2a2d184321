"""Forms with files: what is read of them, and what two readers may take for different forms. And how long a sound is."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest

from gateway.base.errors import Refused
from gateway.chat.request import Body, BodyRules, checked
from gateway.config.model import Model
from gateway.domain.prices import PER_TOKENS, price_of
from gateway.operations.audio import SILENCE, TranscriptionsFormat
from gateway.operations.form import MOST_PARTS, MOST_TEXT, MultipartBody, written
from gateway.operations.images import PIXEL, ImageEditsFormat

HEARD, EDITS = TranscriptionsFormat(), ImageEditsFormat()
FORM = written({"model": "m", "file": SILENCE, "language": "en"})


def body(raw: bytes, wire: TranscriptionsFormat | ImageEditsFormat = HEARD) -> Body:
    return checked(wire.check(raw, BodyRules()))


def sent(raw: bytes, model: str = "m") -> bytes:
    return b"".join(map(bytes, body(raw).upstream(model, "", None, ask_usage=False)))


def test_a_form_is_sent_as_it_came_but_for_the_model() -> None:
    assert sent(FORM) == FORM
    assert sent(FORM, "another") == FORM.replace(b"\r\nm\r\n", b"\r\nanother\r\n")
    late = written({"file": SILENCE, "model": "m"}, "----WebKitFormBoundaryAbC123")
    assert sent(late) == late
    found = body(late)
    assert isinstance(found, MultipartBody)
    assert found.media == "multipart/form-data; boundary=----WebKitFormBoundaryAbC123"
    assert list(found.top) == ["model"]
    found.drop_values()
    with pytest.raises(ValueError, match="not enough values"):
        found.upstream("m", "", None, ask_usage=False)


def part(name: str, value: str, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'.encode()


ENCODED = b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"
TWICE = b'\r\nContent-Disposition: form-data; name="n"\r\n\r\n'
GOOD = part("model", "m") + part("file", "?", '; filename="a"').replace(b"?", SILENCE)
BROKEN: dict[str, bytes] = {
    "no boundary": b"model=m",
    "a preamble": b"\r\n" + GOOD + b"--b--\r\n",
    "no end": GOOD,
    "an epilogue": GOOD + b"--b--\r\n" + GOOD + b"--b--\r\n",
    "a longer boundary": part("model", "m") + GOOD.replace(b"--b\r\n", b"--bb\r\n") + b"--b--\r\n",
    "a part without a head": b"--b\r\n\r\n--b--\r\n",
    "a part without a name": b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
    "a name with an escape": part('a\\"b', "x") + GOOD + b"--b--\r\n",
    "a name without quotes": b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\nx\r\n" + GOOD + b"--b--\r\n",
    "two names": part("model", "m", '; name="stream"') + GOOD + b"--b--\r\n",
    "another header": part("a", "x").replace(b"\r\n\r\n", ENCODED, 1) + GOOD + b"--b--\r\n",
    "a header twice": part("a", "x").replace(b"\r\n\r\n", TWICE, 1) + GOOD + b"--b--\r\n",
    "a folded header": part("a", "x").replace(b"form-data;", b"form-data;\r\n") + GOOD + b"--b--\r\n",
    "many parts": GOOD + part("include[]", "x") * (MOST_PARTS + 1) + b"--b--\r\n",
    "the model twice": part("model", "other") + GOOD + b"--b--\r\n",
    "two files": part("file", "x", '; filename="a"') + GOOD + b"--b--\r\n",
    "another file": part("model", "m", '; filename="a"') + GOOD + b"--b--\r\n",
    "the file as a field": part("model", "m") + part("file", "x") + b"--b--\r\n",
    "no file": part("model", "m") + b"--b--\r\n",
    "no model": part("file", "x", '; filename="a"') + b"--b--\r\n",
    "another spelling": GOOD + part("Model", "dear") + b"--b--\r\n",
    "a long field": GOOD + part("prompt", "x" * (MOST_TEXT + 1)) + b"--b--\r\n",
    "another way to name a field": GOOD + part("stream[]", "true") + b"--b--\r\n",
    "a field by its place": GOOD + part("response_format[0]", "text") + b"--b--\r\n",
    "a stream, in another way": GOOD + part("stream", "True") + b"--b--\r\n",
    "an address": GOOD + part("url", "http://h/long.mp3") + b"--b--\r\n",
    "a bare LF in a head": part("a", "x").replace(
        b"Content-Disposition", b"Content-Type: text/plain\nContent-Disposition", 1
    )
    + GOOD
    + b"--b--\r\n",
    "a bare CR in a head": part("a", "x").replace(b"form-data;", b"form-data;\r") + GOOD + b"--b--\r\n",
    "a boundary after a bare LF": GOOD + part("prompt", "x\n--b\ny") + b"--b--\r\n",
    "a boundary after a bare CR": GOOD + part("prompt", "x\r--b\ry") + b"--b--\r\n",
    "a boundary that a header has to quote": (GOOD + b"--b--\r\n").replace(b"--b", b"--b(c"),
    "not UTF-8": GOOD + part("prompt", "?").replace(b"?", b"\xff") + b"--b--\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_form_that_may_be_read_in_two_ways_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        body(BROKEN[name])
    assert refused.value.status == 400


def test_what_the_refused_ones_are_made_of_is_read() -> None:
    assert isinstance(body(GOOD + part("include[]", "x") * 2 + b"--b--\r\n"), MultipartBody)
    assert isinstance(body(GOOD + b"--b--"), MultipartBody)


def test_pictures_are_ordered_by_a_form_as_in_json() -> None:
    fields: dict[str, Any] = {"model": "m", "prompt": "x", "n": "003", "size": "64x64", "image[]": PIXEL}
    found = body(written(fields), EDITS)
    assert (found.unit, found.units, found.variant) == ("image", 3, ("", "64x64"))
    for wrong in ("11", "0", "-1", "3.0", "1e1", ""):
        with pytest.raises(Refused, match="'n' must be"):
            body(written(fields | {"n": wrong}), EDITS)


def mp3(frames: int, bits: bytes, size: int) -> bytes:
    return (bits + bytes(size - 4)) * frames


def wav(channels: int, rate: int, bits: int, size: int, coding: int = 1) -> bytes:
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 0, b"WAVE", b"fmt ", 16, coding, channels, rate, 1, 1, bits)
    return head + b"data" + bytes(4 + size)


def sized(size: int) -> bytes:
    """Return a WAV that says how long its samples are."""
    return wav(2, 44_100, 16, 0)[:-4] + struct.pack("<I", size) + (b"fmt " * size)[:size]


SOUNDS = [
    (sized(3 * 176_400), 3),
    (sized(176_400 - 8) + b"LIST" + bytes(4), 1),
    (SILENCE, 1),
    (wav(2, 44_100, 16, 3 * 176_400), 3),
    (wav(2, 44_100, 16, 3 * 176_400 + 1), 4),
    (mp3(100, b"\xff\xfb\x90\x00", 417), 3),  # 128 kbit/s, 44.1 kHz: 26 ms each
    (b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + mp3(100, b"\xff\xfb\x90\x00", 417), 3),
    (mp3(100, b"\xff\xfb\x90\x00", 417) + b"TAG" + bytes(125), 3),
    (mp3(100, b"\xff\xf3\x40\x00", 104), 3),  # MPEG 2: 32 kbit/s, 22.05 kHz
]


@pytest.mark.parametrize(("sound", "seconds"), SOUNDS)
def test_a_sound_has_no_more_seconds_than_are_held(sound: bytes, seconds: int) -> None:
    found = body(written({"model": "m", "file": sound}))
    assert (found.unit, found.units) == ("second", seconds)


FRAMES = mp3(50, b"\xff\xfb\x90\x00", 417)
UNCOUNTED = {
    "another coding": wav(1, 8_000, 8, 80_000, coding=7),
    "no channel": wav(0, 8_000, 8, 7_500),
    "two formats": sized(1_000) + b"fmt " + bytes(16),
    "a length that is not known, and perhaps two formats": wav(2, 44_100, 16, 1_000) + b"fmt " + bytes(16),
    "a chunk of odd length": sized(1_001) + bytes(9),
    "many chunks": wav(1, 8_000, 8, 0)[:36] + (b"LIST" + bytes(4)) * 101,
    "no beginning": mp3(100, b"\xff\xe3\x40\x00", 208),
    "something else among the frames": FRAMES + bytes(75_000),
    "a tag among the frames": FRAMES[:417] + b"TAG" + FRAMES,
    "a tag of no size": b"ID3\4\0\0\x80\0\0\0" + FRAMES,
    "a tag of no version": b"ID3\xff\0\0\0\0\0\0" + FRAMES,
    "FLAC": b"fLaC" + bytes(9_000),
    "Ogg": b"OggS" + bytes(9_000),
    "nothing": b"",
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_a_sound_whose_seconds_cannot_be_counted_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="as WAV") as refused:
        body(written({"model": "m", "file": UNCOUNTED[name]}))
    assert (refused.value.status, refused.value.param) == (400, "file")


@pytest.mark.parametrize(
    ("quality", "size", "price"),
    [("high", "", 2_000_000), ("HIGH", "", 2_000_000), ("low", "1024x1536", 50_000), ("high", "1536X1024", 2_000_000)],
)
def test_a_spelling_without_a_price_costs_the_dearest_that_it_may_mean(quality: str, size: str, price: int) -> None:
    prices = {"low": "0.01", "high": "1", "1024x1536": "0.05", "high 1536x1024": "2"}
    model = Model(["c"], image={name: Decimal(each) for name, each in prices.items()})
    found = body(written({"model": "m", "prompt": "x", "image": PIXEL, "quality": quality, "size": size}), EDITS)
    assert price_of(model).by(found).unit == price * PER_TOKENS
