"""Audio: texts that are spoken, which cost the price of their characters, and sounds that are written down, that of their seconds.

A sound passes as it comes, and so does what is written of it in another form than JSON. What is written down costs the seconds of
the file (`seconds_of`), whatever the answer tells, so that nobody chooses by a form of answer whether it is billed.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping
from contextlib import suppress
from math import ceil
from typing import ClassVar, Final

import msgspec

from gateway.base.errors import Refused
from gateway.chat.answers import Response
from gateway.chat.events import EventStream
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names
from gateway.chat.prompt import PromptBound
from gateway.chat.request import Body, BodyRules, check_model, field, invalid_field, parse_top
from gateway.config.channel import Channel
from gateway.operations.form import FORM, MultipartBody, MultipartForm
from gateway.operations.input_only import OTHER_TEXTS
from gateway.operations.unit_events import UnitEvents
from gateway.operations.wire_format import CheckedBody, JsonAnswer, WireFormat

MOST_CHARACTERS: Final = 100_000
WAV_HEAD: Final = 44
"""Bytes before the first sample, at least."""
LEAST_BYTES_A_SECOND: Final = 1000
"""Of WAV."""
MOST_CHUNKS: Final = 100
ID3V1: Final = 128
"""Bytes of the tag at the end of an MP3."""
FRAMES: Final = 2000
"""Frames of MP3 between two pauses."""

SILENCE: Final = struct.pack(
    "<4sI4s4sIHHIIHH4sI1600x", b"RIFF", 1636, b"WAVE", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16, b"data", 1600
)
"""A tenth of a second of it."""

SPEECH: Final = FieldNames(
    ("model", "input", "instructions", "voice", "stream", "stream_format"),
    ("response_format", "speed", "user", "language", "seed", "sample_rate"),
    {**REMEDIES, **dict.fromkeys((*OTHER_TEXTS, "ssml", "segments"), "send the text as 'input'")},
    UNPRICED | {"service_tier"},
)
HEARD: Final = FieldNames(
    ("model", "stream", "response_format"),
    (
        *("language", "prompt", "temperature", "chunking_strategy", "include[]", "timestamp_granularities[]", "user"),
        *("hotwords", "vad_filter"),
    ),
    {**REMEDIES, **dict.fromkeys(("url", "file_url", "audio_url", "file_id", "audio"), "send the sound as 'file'")},
    UNPRICED | {"service_tier", "diarize", "known_speaker_references[]"},
)
RATES: Final = (44100, 48000, 32000)
LAYER_3: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
LAYER_3_LOW: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)

_text = msgspec.json.Decoder(str | None)
_boolean = msgspec.json.Decoder(bool | None)


class SpeechFormat(WireFormat):
    """The wire format of `POST /v1/audio/speech`."""

    path = "/audio/speech"
    answer = "a sound"
    unit = "character"
    generates = False
    accept = "*/*"
    media: ClassVar[tuple[str, ...]] = ("audio/", "application/octet-stream")
    tried: ClassVar[Mapping[str, object]] = {"input": "Hello", "voice": "alloy"}

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        top = yield from parse_top(raw, rules.max_depth, "'model', 'input' and 'voice'")
        check_names(top, rules.allow_fields, SPEECH)
        model = check_model(top)
        spoken, added = (field(top, name, _text, "a text") or "" for name in ("input", "instructions"))
        if not spoken or len(spoken) + len(added) > MOST_CHARACTERS:
            raise invalid_field("input", f"'input' is required: a text of at most {MOST_CHARACTERS} characters.")
        field(top, "voice", _text, "the name of a voice")
        if field(top, "stream", _boolean, "true or false"):
            raise Refused(
                400, "not_served", "Leave 'stream' out: 'stream_format' is \"sse\" for events.", param="stream"
            )
        stream = field(top, "stream_format", _text, "a text") == "sse"
        units = len(spoken) + len(added)
        return CheckedBody(model, PromptBound(0), stream, size=len(raw), _top=top, unit=self.unit, units=units)

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events."""
        return UnitEvents()

    def read(self, text: bytes) -> Response | None:
        """Return the sound."""
        return JsonAnswer(text, b"") if text else None


class TranscriptionsFormat(SpeechFormat):
    """The wire format of `POST /v1/audio/transcriptions`: a form with a sound."""

    path = "/audio/transcriptions"
    answer = "a text"
    unit = "second"
    accepts = FORM
    media = ("application/json", "text/", "application/x-subrip")
    tried: ClassVar[Mapping[str, object]] = {"file": SILENCE}

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked form. Raises `Refused`."""
        form = yield from MultipartForm.read(raw, ("file",))
        if not form.files:
            raise invalid_field("file", "'file' is required: a sound.")
        top = form.top(booleans=("stream",))
        check_names(top, rules.allow_fields, HEARD)
        model = check_model(top)
        stream = bool(field(top, "stream", _boolean, "true or false"))
        ((_, begin, end),) = form.files
        seconds = yield from seconds_of(memoryview(form.raw)[begin:end])
        billed = {"prompt_bound": PromptBound(0), "unit": self.unit, "units": seconds}
        return MultipartBody.of(form, top, model=model, stream=stream, **billed)

    def read(self, text: bytes) -> Response | None:
        """Return what was written down, in JSON or not."""
        with suppress(ValueError):
            return JsonAnswer.of(text, "text", b'"')
        return JsonAnswer(text, b"")


class TranslationsFormat(TranscriptionsFormat):
    """The wire format of `POST /v1/audio/translations`: the same, in English."""

    path = "/audio/translations"


def seconds_of(sound: memoryview) -> Generator[None, None, int]:
    """Return the whole seconds that a sound has, counted as decoders play it, with pauses. Raises `Refused` for other forms.

    What a file of another form says of its length may be wrong, and a byte of it may be any number of seconds of silence.
    """
    exact: float | None = None
    if bytes(sound[:4]) == b"RIFF" and bytes(sound[8:16]) == b"WAVEfmt ":
        exact = _of_wav(sound)
    elif bytes(sound[:3]) == b"ID3" or bytes(sound[:2]) in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xfa"):
        exact = yield from _of_mp3(sound)
    if exact is None:
        raise invalid_field(
            "file", "Send 'file' as WAV (PCM) or MP3: how long other sounds last cannot be counted before."
        )
    return max(1, ceil(exact))


def _of_wav(sound: memoryview) -> float | None:
    """Return the seconds of all bytes after the head of PCM; None for another coding, and where decoders may find another format.

    That is a second chunk of this name, or a chunk with an odd length, after which some skip a byte and some do not.
    """
    at, formats = 12, 0
    for _ in range(MOST_CHUNKS):
        name, size = bytes(sound[at : at + 4]), int.from_bytes(sound[at + 4 : at + 8], "little")
        formats += name == b"fmt "
        at += 8 + size
        if at >= len(sound):
            break
        if size % 2:
            return None
        if name == b"data" and not size:  # it was written before the length was known: some read on, and some do not
            formats += bytes(sound[at:]).count(b"fmt ")
            break
    else:
        return None
    if len(sound) < WAV_HEAD or formats != 1:
        return None
    coding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", sound, 20)
    a_second = channels * rate * bits / 8
    return max(0, len(sound) - WAV_HEAD) / a_second if coding in (1, 3) and a_second >= LEAST_BYTES_A_SECOND else None


def _of_mp3(sound: memoryview) -> Generator[None, None, float | None]:
    """Return the seconds of the frames of MP3; None where what follows a tag is none, or something else is among them."""
    at, seconds, frames = 0, 0.0, 0
    if bytes(sound[:3]) == b"ID3" and len(sound) > 10:
        if sound[3] == 0xFF or max(sound[6:10]) > 0x7F:
            return None
        at = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(sound[6:10], (21, 14, 7, 0), strict=True))
    end = len(sound) - (ID3V1 if bytes(sound[-ID3V1:][:3]) == b"TAG" else 0)
    while at + 4 <= end:
        sync, flags, rates = sound[at], sound[at + 1], sound[at + 2]
        version, layer = flags >> 3 & 3, flags >> 1 & 3
        if sync != 0xFF or flags < 0xE0 or version == 1 or layer != 1 or rates >> 2 & 3 == 3 or not 0 < rates >> 4 < 15:
            return None
        rate = RATES[rates >> 2 & 3] >> {3: 0, 2: 1, 0: 2}[version]
        samples, kbits = (1152, LAYER_3) if version == 3 else (576, LAYER_3_LOW)
        at += samples // 8 * kbits[rates >> 4] * 1000 // rate + (rates >> 1 & 1)
        seconds, frames = seconds + samples / rate, frames + 1
        if frames % FRAMES == 0:
            yield
    return seconds if frames else None
