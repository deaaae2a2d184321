"""The framing of an ordinary answer: its head and its chunks, read without a parser. Sans-I/O.

Most answers are streams in chunks, and most reads are whole chunks. Anything else is left to the parser, which reads the same of
what is taken here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gateway.base import search

_DIGITS: Final = bytes(["0123456789abcdef".find(chr(code)) % 17 for code in range(256)])
"""The digits of a chunk's size, as most servers write it, and 16 for all else."""
_STATUS: Final = b"HTTP/1.1 200 "
_IDS: Final = (b"x-request-id", b"request-id")
_ORDINARY: Final = {
    b"transfer-encoding": b"chunked",
    b"connection": b"keep-alive",
    b"proxy-connection": b"keep-alive",
    **dict.fromkeys((b"content-length", b"content-encoding", b"trailer", b"upgrade"), b""),
}
"""What these headers say of an ordinary stream, if they are there; most of them are not."""


@lru_cache(64)
def media_type_of(content_type: str | bytes) -> str:
    """Return the media type that the value of `Content-Type` names."""
    text = content_type.decode() if isinstance(content_type, bytes) else content_type
    return text.partition(";")[0].strip().lower()


def ordinary_head(data: bytes) -> tuple[int, str, bool] | None:
    """Return where the head of an ordinary stream ends, its media type and whether it may have an id; None for any other data.

    Ordinary is a head that comes whole, with names and values that can be read in one way, of an answer in chunks, not encoded, on
    a connection that is kept.
    """
    end, text = search.find(data, b"\r\n\r\n", 0, len(data)) + 2, data
    at, chunks, media_type, named = len(_STATUS), 0, "", False
    if end < 2 or not data.startswith(_STATUS):
        return None
    while 0x20 <= text[at] < 0x7F:
        at += 1
    if text[at] != 0x0D or text[at + 1] != 0x0A:
        return None
    at += 2
    while at < end:
        start = at
        while 0x61 <= (text[at] | 0x20) <= 0x7A or text[at] == 0x2D:
            at += 1
        size, colon = at - start, text[at] == 0x3A
        begin = at = at + 2 if text[at + 1] == 0x20 else at + 1
        while 0x20 <= text[at] < 0x7F:
            at += 1
        if not (size and colon) or at == begin or text[at - 1] == 0x20 or text[at] != 0x0D or text[at + 1] != 0x0A:
            return None
        if size in (7, 10, 12, 14, 16, 17):
            name, value = text[start : start + size].lower(), text[begin:at]
            wanted = _ORDINARY.get(name)
            if (wanted is not None and value.lower() != wanted) or (media_type and name == b"content-type"):
                return None
            chunks += size == 17 and wanted is not None
            if name == b"content-type":
                media_type = media_type_of(value)
            named = named or name in _IDS
        at += 2
    return (end + 2, media_type, named) if chunks == 1 else None


def begin_of_chunk(data: bytes) -> int:
    """Return where the data of a chunk begins, which is whole and written as we do it; 0 for other data."""
    size, at, end, digits, text = 0, 0, len(data), _DIGITS, data
    while at < end and at < 6 and (digit := digits[text[at]]) < 16:
        size = size * 16 + digit
        at += 1
    at += 2
    whole = size > 0 and at + size + 2 == end and text[0] != 0x30
    framed = whole and text[at - 2] == text[end - 2] == 0x0D and text[at - 1] == text[end - 1] == 0x0A
    return at if framed else 0


def whole_chunks(data: bytes, at: int = 0, end: int = -1) -> bytes:
    """Return what whole chunks without extensions contain from `at` to `end`, none of them the last; nothing for other data."""
    digits, text, pieces = _DIGITS, data, []
    if end < 0:
        end = len(data)
    while at < end:
        size, begin = 0, at
        while at < end and at - begin < 6 and (digit := digits[text[at]]) < 16:
            size = size * 16 + digit
            at += 1
        begin = at + 2
        at = begin + size
        if not (size and data.startswith(b"\r\n", begin - 2) and data.startswith(b"\r\n", at)):
            return b""
        pieces.append(data[begin:at])
        at += 2
    if at != end:
        return b""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
