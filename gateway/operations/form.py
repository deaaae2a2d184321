"""Forms with files (`multipart/form-data`, RFC 7578): read once, and sent on as they came but for the name of the model. Sans-I/O.

The boundary is that of the first line, whatever a header says, and what is sent names that one: so gateway and upstream find the
same parts. What two readers may take for different parts is refused: a boundary anywhere within a part or with characters that a
header has to quote, a part without a name, with another header or with a bare line end in its head, a field given twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from typing import Any, Final, Self

import msgspec

from gateway.base.errors import Refused
from gateway.chat.request import BodyPart, invalid_field
from gateway.operations.wire_format import CheckedBody

FORM: Final = "multipart/form-data"
MOST_PARTS: Final = 64
MOST_HEAD: Final = 1024
MOST_TEXT: Final = 128 * 1024
"""Bytes of a field that is no file."""

_BOUNDARY: Final = re.compile(rb"--([0-9A-Za-z'+_.-]{1,70})\r\n")
_DISPOSITION: Final = re.compile(
    r'form-data; name="([^"\\\r\n]{1,64})"(; filename="[^"\r\n]*")?(; filename\*=[\w\'%.+-]+)?', re.IGNORECASE
)
_HEADERS: Final = frozenset(("content-disposition", "content-type", "content-length"))


class MultipartForm(msgspec.Struct):
    """A form. `boundary`: what divides it. `fields`: where the value of each field begins and ends; `files`: that of each file."""

    raw: bytes | bytearray
    boundary: str
    fields: list[tuple[str, int, int]]
    files: list[tuple[str, int, int]]

    @classmethod
    def read(cls, raw: bytes | bytearray, files: Collection[str]) -> Generator[None, None, Self]:
        """Return a form, with a pause after each part. `files`: the names that files may have. Raises `Refused`."""
        if (first := _BOUNDARY.match(raw)) is None:
            raise _invalid("it does not begin with a boundary")
        border, at = b"\r\n--" + first[1], first.end()
        form = cls(raw, first[1].decode(), [], [])
        while True:
            begin = raw.find(b"\r\n\r\n", at, at + MOST_HEAD) + 4
            end = raw.find(border, begin)
            if begin < 4 or end < 0:
                raise _invalid("a part has no end, or too long a head")
            if raw.find(border[2:], at, end) >= 0:
                raise _invalid("it has its boundary within a part")
            form._add(raw[at : begin - 4].decode("utf-8", "replace"), begin, end, files)
            at = end + len(border) + 2
            if raw[at - 2 : at] == b"--" and raw[at:] in (b"", b"\r\n"):
                return form
            if raw[at - 2 : at] != b"\r\n" or len(form.fields) + len(form.files) > MOST_PARTS:
                raise _invalid("it has too many parts, or its boundary within a line")
            yield

    def _add(self, head: str, begin: int, end: int, files: Collection[str]) -> None:
        headers = dict.fromkeys(_HEADERS, "")
        for line in head.split("\r\n"):
            name, colon, value = line.partition(":")
            if not colon or "\r" in line or "\n" in line or headers.pop(name.lower(), None) is None:
                raise _invalid("a part has a header that is not read")
            headers[f"{name.lower()}:"] = value.strip()
        found = _DISPOSITION.fullmatch(headers.get("content-disposition:", ""))
        if found is None:
            raise _invalid("a part has no name")
        name, is_file = found[1], bool(found[2])
        if is_file != (name in files):
            raise invalid_field(
                name, f"'{ascii(name)[1:-1]}' is not accepted: send {', '.join(files)} as files, and no others."
            )
        known = [each for each, *_ in (*self.fields, *self.files)]
        if name in known and not name.endswith("[]"):
            raise invalid_field(name, f"Send '{ascii(name)[1:-1]}' once.")
        if not is_file and end - begin > MOST_TEXT:
            raise invalid_field(name, f"'{ascii(name)[1:-1]}' is longer than {MOST_TEXT} bytes.")
        (self.files if is_file else self.fields).append((name, begin, end))

    def top(self, numbers: Collection[str] = (), booleans: Collection[str] = ()) -> dict[str, msgspec.Raw]:
        """Return the fields as JSON has them. Raises `Refused`."""
        top: dict[str, msgspec.Raw] = {}
        for name, begin, end in self.fields:
            value = bytes(self.raw[begin:end])
            bare = (name in numbers and re.fullmatch(rb"[0-9]{1,9}", value)) or (
                name in booleans and value in (b"true", b"false")
            )
            try:
                top[name] = msgspec.Raw(value.lstrip(b"0") or b"0" if bare else msgspec.json.encode(value.decode()))
            except UnicodeDecodeError:
                raise invalid_field(name, f"'{ascii(name)[1:-1]}' must be UTF-8.") from None
        return top


class MultipartBody(CheckedBody, frozen=True):
    """A checked form. `_parts`: its bytes up to the name of the model, and those after it; none once they were freed."""

    editable = False
    _parts: list[BodyPart] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, form: MultipartForm, top: dict[str, msgspec.Raw], **fields: Any) -> Self:
        """Return the body of a form whose fields were checked. `top`: as JSON has them; `fields`: those of the body."""
        begin, end = next((begin, end) for name, begin, end in form.fields if name == "model")
        view = memoryview(form.raw)
        media = f"{FORM}; boundary={form.boundary}"
        parts: list[BodyPart] = [view[:begin], view[end:]]
        return cls(**fields, size=len(form.raw), _top=top, media=media, _parts=parts)

    def upstream(self, model: str, *_: object, **__: object) -> list[BodyPart]:
        """Return the form to send. Fields that a channel sets or drops are those of JSON alone."""
        before, after = self._parts
        return [before, model.encode(), after]

    def drop_values(self) -> None:
        """Free the bytes, in place."""
        super().drop_values()
        self._parts.clear()


def written(fields: Mapping[str, object], boundary: str = "sluicegate") -> bytes:
    """Return a form of these fields, of which bytes are files."""
    head = f"--{boundary}\r\nContent-Disposition: form-data; "
    form = b""
    for name, value in fields.items():
        if isinstance(value, bytes):
            form += f'{head}name="{name}"; filename="{name}"\r\n\r\n'.encode() + value + b"\r\n"
        else:
            form += f'{head}name="{name}"\r\n\r\n{value}\r\n'.encode()
    return form + f"--{boundary}--\r\n".encode()


def _invalid(why: str) -> Refused:
    return Refused(
        400, "invalid_request", f"The body is no form that can be read: {why}. Send it as {FORM}, as browsers do."
    )
