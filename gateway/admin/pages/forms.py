"""Forms: read within bounds, and only where they come from a page of this session."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
from aiohttp import web

from gateway.amounts import parsed
from gateway.errors import Refused

LARGEST: Final = 32 * 1024
"""Bytes of a form."""
READ_S: Final = 30.0
MOST_FIELDS: Final = 100
PROOF: Final = "form"
"""The field that proves that a form was on a page of this session."""

_IN_WORDS: Final = (
    (r"Expected `int` >= 1", "it is to be more than 0"),
    (r"Expected `int` >= 0", "it is not to be below 0"),
    (r"Expected `int` <= .*", "it is too large"),
    (r"Expected `str` of length >= 1", "it is to be given"),
    (r"Expected `str` of length <= (\d+)", "it has at most {} characters"),
    (r"Expected `str` matching regex .*", "it has a character that is not allowed there, or too many of them"),
    (r"Expected `array` of length <= (\d+)", "there are at most {}"),
)

Struct = TypeVar("Struct", bound=msgspec.Struct)


class Form(Mapping[str, str]):
    """The fields of a form, each a text without spaces around it. A field that was not sent is an empty text."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return self._fields.get(name, "")

    def __iter__(self) -> Any:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def micros(self, name: str) -> int:
        """Return an amount such as `5.00` in micros. Raises `Refused`."""
        try:
            return parsed(self[name])
        except ValueError as error:
            raise Refused(400, "invalid_request", f"{_label(name)}: {error}.", param=name) from None

    def number(self, name: str) -> int:
        """Return a whole number. Raises `Refused`."""
        text = self[name]
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise Refused(400, "invalid_request", f"`{text[:40]}` is not a whole number.", param=name)
        return int(text)


def body(kind: type[Struct], **fields: object) -> Struct:
    """Return what an operation is given. Raises `Refused` with what is wrong, in words."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        raise Refused(
            400, "invalid_request", f"{_label(name) or 'The form'}: {_words(text)}.", param=name or "form"
        ) from None


async def read(request: web.Request) -> Form:
    """Read the form of a request from a page of this origin. Raises `Refused`."""
    check_origin(request)
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refused(415, "invalid_request", "Send a form: application/x-www-form-urlencoded.")
    raw = b""
    try:
        async with asyncio.timeout(READ_S):
            while len(raw) <= LARGEST and (part := await request.content.read(LARGEST + 1 - len(raw))):
                raw += part
    except TimeoutError:
        raise Refused(408, "body_timeout", f"The form did not arrive within {READ_S:g} s.") from None
    if len(raw) > LARGEST:
        raise Refused(413, "request_too_large", f"A form is at most {LARGEST} bytes.")
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refused(400, "invalid_request", "This is not a form that a page here has sent.") from None
    fields = {name: value.strip() for name, value in pairs}
    if len(fields) != len(pairs):
        raise Refused(400, "invalid_request", "A field of the form was sent twice.")
    return Form(fields)


def _label(name: str) -> str:
    """Return what people call a field."""
    return name.rpartition(".")[2].removesuffix("_micros").replace("_", " ").capitalize()


def _words(text: str) -> str:
    """Return what msgspec says of a value, as people would."""
    for pattern, words in _IN_WORDS:
        if found := re.fullmatch(pattern, text):
            return words.format(*found.groups())
    return f"{text[:1].lower()}{text[1:]}"


def check_origin(request: web.Request) -> None:
    """Raise `Refused` (403) for a request that a page of another origin may have sent."""
    origin = request.headers.getall("Origin", [])
    if len(origin) != 1 or urlsplit(origin[0]).netloc.lower() != request.host.lower():
        raise Refused(403, "form_refused", "This was not sent by a page of this address.")


def check_proof(form: Form, wanted: str) -> None:
    """Raise `Refused` (403) for a form that was not on a page of this session."""
    if not hmac.compare_digest(form[PROOF].encode("utf-8", "surrogateescape"), wanted.encode()):
        raise Refused(403, "form_refused", "This form is not of your present session: open the page again.")
