"""Malformed and unusual requests: their bytes, and the status and code that each must get.

`TOKEN` stands for a valid token, `MARK` for the number of the case. A request that is refused for its framing is followed by
`SMUGGLED`, a valid request that must never be read as one.
"""

from __future__ import annotations

import json

import msgspec

from gateway.chat.request import MAX_MODEL_NAME_LENGTH
from tests.whole.hostile_texts import ACCEPTED_JSON, NAUGHTY, REFUSED_JSON

CHAT = b"POST /v1/chat/completions HTTP/1.1"
HOST = b"Host: gateway"
BEARER = b"Authorization: Bearer TOKEN"
JSON = b"Content-Type: application/json"
BODY = b'{"model":"words","messages":[{"role":"user","content":"MARK"}],"stream":true}'
LENGTH = b"Content-Length: " + str(len(BODY)).encode()
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


class Case(msgspec.Struct, frozen=True):
    """One request and the expected response. `code` is empty if the response is no error."""

    name: str
    sent: bytes
    status: int
    code: str = ""
    smuggles: bool = False
    """`SMUGGLED` follows, and the connection must be closed without reading it."""


UNKNOWN_PATHS = r"""
        / // /v1 /v1/ //v1/chat/completions /v1//chat/completions /v1/chat//completions /v1/chat/completions/
        /v1/chat/completions// /v1/./chat/completions /v1/../v1/chat/completions /v1/chat/../chat/completions
        /v1/%2e%2e/v1/chat/completions /v1/chat%2fcompletions /v1/chat%2Fcompletions /v1/chat/completions%00
        /v1/chat/completions;x=y /v1/chat;x/completions /V1/chat/completions /v1/Chat/Completions
        /v1/chat/completions%20 /v1/chat/completions%3fx /%76%31/chat/completions /v1\chat\completions
        /v1/chat/completions.json /v1/chat/completions/.. /v2/chat/completions /v1/images/upscale
        /v1/audio /admin /metrics /debug /.env /.git/config /../../etc/passwd /%00 /v1/chat/completions#x
        /healthz/ /healthz/.. /readyz%00 /v1/v1/chat/completions /v1/v1 /chat/completions /models
        http://gateway/v1/chat/completions http://169.254.169.254/v1/chat/completions
        https://gateway:443/v1/chat/completions HTTP://gateway/v1/chat/completions
        http://user:pass@gateway/v1/chat/completions
"""


def request(*lines: bytes, start: bytes = CHAT, body: bytes = b"", end: bytes = b"\r\n") -> bytes:
    """Return a request of these lines."""
    return end.join((start, *lines, b"", b"")) + body


def post(*lines: bytes, body: bytes = BODY, start: bytes = CHAT) -> bytes:
    """Return a valid head with more lines after it, and a body; `lines` must give the framing."""
    return request(HOST, BEARER, JSON, *lines, start=start, body=body)


SMUGGLED = post(LENGTH, body=BODY.replace(b"MARK", b"EVIL"))


def broken(name: str, sent: bytes, status: int = 400, code: str = "invalid_request") -> Case:
    return Case(name, sent, status, code, smuggles=True)


def served(name: str, sent: bytes) -> Case:
    return Case(name, sent, 200)


def refused(name: str, sent: bytes, status: int, code: str) -> Case:
    return Case(name, sent, status, code)


def _framing() -> list[Case]:
    cases = [
        broken("length then chunked", post(LENGTH, CHUNKED, body=CHUNKS)),
        broken("chunked then length", post(CHUNKED, LENGTH, body=CHUNKS)),
        broken("length zero and chunked", post(b"Content-Length: 0", CHUNKED, body=CHUNKS)),
        broken("two lengths that differ", post(LENGTH, b"Content-Length: 3")),
        broken("two lengths alike", post(LENGTH, LENGTH)),
        broken("two encodings", post(CHUNKED, CHUNKED, body=CHUNKS)),
        broken("a folded second length", post(LENGTH, b" Content-Length: 3")),
        refused("no length and no encoding", post(body=b""), 400, "invalid_json"),
    ]
    lengths = [
        *(b"-1", b"+76", b"0x4c", b"7_6", b"7 6", b"76,76", b"76, 76", b"76;", b"1e2", b"76.0"),
        *(b"\xd9\xa7\xd9\xa6", b"18446744073709551616", b"99999999999999999999999999", b"", b"abc", b"76\x00"),
        *(b"\x0b76", b"NaN", b'"76"'),
    ]
    cases += [broken(f"length {value!r}", post(b"Content-Length: " + value)) for value in lengths]
    cases += [
        refused("length beyond the limit", post(b"Content-Length: 9007199254740993", body=b""), 413, "body_too_large"),
        served("length with leading zeros", post(LENGTH.replace(b": ", b": 000"))),
        served("length with spaces around", post(LENGTH.replace(b": ", b":  \t") + b" \t ")),
        served("length in capitals", post(LENGTH.upper())),
        broken("length with a space before the colon", post(LENGTH.replace(b":", b" :"))),
        broken("length with a tab before the colon", post(LENGTH.replace(b":", b"\t:"))),
    ]
    encodings = [
        *(b"chunked, chunked", b"chunked,identity", b"chunked, gzip", b"gzip", b"identity", b"xchunked"),
        *(b"chunkedx", b"chunked;q=1", b"chun ked", b'"chunked"', b"chunked\x00", b"\x0bchunked", b"chunked\x0b"),
        *(b"chunked,", b"", b"cow", b"deflate", b"x", b"chunked\xa0", b"\xc3\xa7hunked", b"chunke\xc4\x91"),
        b"chunked, identity, chunked",
    ]
    cases += [broken(f"encoding {value!r}", post(b"Transfer-Encoding: " + value, body=CHUNKS)) for value in encodings]
    cases += [
        served("encoding in capitals", post(b"TRANSFER-ENCODING: CHUNKED", body=CHUNKS)),
        broken("encoding with a space before the colon", post(b"Transfer-Encoding : chunked", body=CHUNKS)),
        broken("encoding folded", post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS)),
        broken("encoding after a bare line feed", post(b"X: y\nTransfer-Encoding: chunked", LENGTH, body=CHUNKS)),
        broken("encoding after a bare return", post(b"X: y\rTransfer-Encoding: chunked", LENGTH, body=CHUNKS)),
        broken("encoding with gzip before it", post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS)),
        served("underscore for the hyphen is another header", post(b"Transfer_Encoding: chunked", LENGTH)),
    ]
    return cases


def _by_byte(data: bytes) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % byte for byte in data)


def _chunks() -> list[Case]:
    size, rest = b"%x" % len(BODY), b"\r\n" + BODY + b"\r\n0\r\n\r\n"
    sizes = {
        "a plus": b"+" + size,
        "a minus": b"-" + size,
        "an underscore": size[:1] + b"_" + size[1:],
        "0x": b"0x" + size,
        "a space before": b" " + size,
        "a space inside": size[:1] + b" " + size[1:],
        "overflow": b"ffffffffffffffff0",
        "an 'h'": size + b"h",
        "nothing": b"",
        "a semicolon only": b";",
        "a minus one": b"-1",
        "a NUL": size + b"\x00",
        "digits of another script": "\u0664d".encode(),
        "a comma": size + b",4d",
        "a dot": size + b".0",
        "a quote": b'"' + size + b'"',
        "a vertical tab": size + b"\x0b",
    }
    cases = [broken(f"chunk size with {name}", post(CHUNKED, body=value + rest)) for name, value in sizes.items()]
    cases += [
        served("chunk size with leading zeros", post(CHUNKED, body=b"00000" + size + rest)),
        served("chunk size in capitals", post(CHUNKED, body=size.upper() + rest)),
        served("chunk extension", post(CHUNKED, body=size + b";name=value" + rest)),
        served("chunk extension quoted", post(CHUNKED, body=size + b';name="value"' + rest)),
        served(
            "body in one-byte chunks",
            post(CHUNKED, body=b"4\r\nMARK\r\n".join(_by_byte(part) for part in BODY.split(b"MARK")) + b"0\r\n\r\n"),
        ),
        served("chunk extension of 40 KiB", post(CHUNKED, body=size + b";" + b"x" * 40960 + rest)),
        broken("chunk extension of 80 KiB", post(CHUNKED, body=size + b";" + b"x" * 81920 + rest)),
        broken("chunk extension of 900 KiB", post(CHUNKED, body=size + b";" + b"x" * 921600 + rest)),
        broken("body in very many one-byte chunks", post(CHUNKED, body=_by_byte(b" " * 200_000) + CHUNKS)),
        broken("chunk extension with a bare return", post(CHUNKED, body=size + b";a\rb" + rest)),
        broken("chunk extension with a bare line feed", post(CHUNKED, body=size + b";a\nb" + rest)),
        broken("chunk size ended by a bare line feed", post(CHUNKED, body=size + b"\n" + BODY + b"\r\n0\r\n\r\n")),
        broken("chunk data ended by a bare line feed", post(CHUNKED, body=size + b"\r\n" + BODY + b"\n0\r\n\r\n")),
        broken("chunk data longer than its size", post(CHUNKED, body=b"3" + rest)),
        broken("last chunk ended by a bare line feed", post(CHUNKED, body=size + b"\r\n" + BODY + b"\r\n0\n\n")),
        served("a trailer", post(CHUNKED, body=CHUNKS[:-2] + b"X-Trailer: 1\r\n\r\n")),
        served(
            "trailers that forge",
            post(CHUNKED, body=CHUNKS[:-2] + b"X-Real-IP: 1.2.3.4\r\nAuthorization: Bearer forged\r\n\r\n"),
        ),
        broken("trailers by the thousand", post(CHUNKED, body=CHUNKS[:-2] + b"X-Trailer: 1\r\n" * 5000 + b"\r\n")),
        broken(
            "a trailer of 80 KiB", post(CHUNKED, body=CHUNKS[:-2] + b"X-Trailer: " + b"x" * 81920 + b"\r\n\r\n"), 400
        ),
        broken("a trailer without a colon", post(CHUNKED, body=CHUNKS[:-2] + b"X-Trailer\r\n\r\n")),
        broken("a trailer with NUL", post(CHUNKED, body=CHUNKS[:-2] + b"X-Trailer: \x00\r\n\r\n")),
    ]
    return cases


def _lines() -> list[Case]:
    good = (HOST, BEARER, JSON, LENGTH)
    return [
        broken("bare line feeds", request(*good, body=BODY, end=b"\n")),
        broken("bare returns", request(*good, body=BODY, end=b"\r")),
        broken("NUL in a value", post(LENGTH, b"X-A: a\x00b")),
        broken("NUL in a name", post(LENGTH, b"X-\x00A: a")),
        broken("a folded header", post(LENGTH, b"X-A: a\r\n b")),
        broken("a header folded with a tab", post(LENGTH, b"X-A: a\r\n\tb")),
        broken("a folded first header", request(b" X-A: a", *good, body=BODY)),
        broken("a missing colon", post(LENGTH, b"X-A")),
        broken("an empty name", post(LENGTH, b": value")),
        broken("a space in a name", post(LENGTH, b"X A: a")),
        broken("a space before the colon", post(LENGTH, b"X-A : a")),
        broken("brackets in a name", post(LENGTH, b"X(A): a")),
        broken("a name that is not ASCII", post(LENGTH, "X-\u00e9: a".encode())),
        broken("a return inside a value", post(LENGTH, b"X-A: a\rb")),
        broken("a line feed inside a value", post(LENGTH, b"X-A: a\nb")),
        broken("DEL in a value", post(LENGTH, b"X-A: a\x7fb")),
        broken("ESC in a value", post(LENGTH, b"X-A: a\x1b[31mb")),
        broken("a byte 1 in a value", post(LENGTH, b"X-A: \x01")),
        served("an empty value", post(LENGTH, b"X-A:")),
        served("a value that is not UTF-8", post(LENGTH, b"X-A: \xff\xfe")),
        served("empty lines before the request", b"\r\n\r\n" + post(LENGTH)),
        broken("no Host", request(BEARER, JSON, LENGTH, body=BODY)),
        broken("two Hosts", post(LENGTH, b"Host: other")),
        broken("two Hosts alike", post(LENGTH, HOST)),
        served("an empty Host", request(b"Host:", BEARER, JSON, LENGTH, body=BODY)),
        served("a Host of another place", request(b"Host: 169.254.169.254", BEARER, JSON, LENGTH, body=BODY)),
        served("a Host with odd characters", request(b"Host: a@b/c?d#e", BEARER, JSON, LENGTH, body=BODY)),
        broken("HTTP/0.9", b"GET /v1/models\r\n"),
        broken("HTTP/0.9 with a version", request(*good, start=b"POST /v1/chat/completions HTTP/0.9", body=BODY)),
        broken("HTTP/1.2", request(*good, start=b"POST /v1/chat/completions HTTP/1.2", body=BODY)),
        broken("HTTP/2.0", request(*good, start=b"POST /v1/chat/completions HTTP/2.0", body=BODY)),
        broken("HTTP/3.0", request(*good, start=b"POST /v1/chat/completions HTTP/3.0", body=BODY)),
        broken("HTTP/11", request(*good, start=b"POST /v1/chat/completions HTTP/11", body=BODY)),
        broken("HTTP/1.1 in small letters", request(*good, start=b"POST /v1/chat/completions http/1.1", body=BODY)),
        broken("HTTPS/1.1", request(*good, start=b"POST /v1/chat/completions HTTPS/1.1", body=BODY)),
        broken("a version with more after it", request(*good, start=CHAT + b"x", body=BODY)),
        broken("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        broken("a TLS hello", bytes.fromhex("16030100a5010000a10303") + bytes(64)),
        broken("SSH", b"SSH-2.0-OpenSSH_9.6\r\n"),
        broken("the RESP of a store", b"*1\r\n$8\r\nFLUSHALL\r\n"),
        broken("an answer", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        broken("the PROXY line", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + post(LENGTH)),
        served("two spaces in the request line", request(*good, start=CHAT.replace(b" H", b"  H"), body=BODY)),
        broken("a tab in the request line", request(*good, start=CHAT.replace(b" /", b"\t/"), body=BODY)),
        broken("a space in the path", request(*good, start=b"POST /v1/chat /completions HTTP/1.1", body=BODY)),
        broken("NUL in the path", request(*good, start=b"POST /v1/chat\x00/completions HTTP/1.1", body=BODY)),
        broken("a method in small letters", request(*good, start=CHAT.replace(b"POST", b"post"), body=BODY)),
        broken("a method of our own", request(*good, start=CHAT.replace(b"POST", b"SLUICE"), body=BODY)),
        broken("a method of 80 KiB", request(*good, start=b"P" * 81920 + CHAT[4:], body=BODY)),
        served("HTTP/1.0", request(*good, start=CHAT.replace(b"1.1", b"1.0"), body=BODY)),
        served("HTTP/1.0 without Host", request(BEARER, JSON, LENGTH, start=CHAT.replace(b"1.1", b"1.0"), body=BODY)),
        broken(
            "HTTP/1.0 in chunks", request(HOST, BEARER, JSON, CHUNKED, start=CHAT.replace(b"1.1", b"1.0"), body=CHUNKS)
        ),
    ]


def _sizes() -> list[Case]:
    return [
        broken("a head of 70 KiB in one header", post(LENGTH, b"X-A: " + b"x" * 71680), 431, "invalid_request"),
        broken(
            "a head of 70 KiB in many headers",
            post(LENGTH, *(b"X-%d: %b" % (i, b"x" * 700) for i in range(100))),
            431,
            "invalid_request",
        ),
        broken(
            "a head of 800 KiB in ten headers",
            post(LENGTH, *(b"X-%d: %b" % (i, b"x" * 60000) for i in range(14))),
            431,
            "invalid_request",
        ),
        served("a head of 60 KiB", post(LENGTH, b"X-A: " + b"x" * 60000)),
        served("a head of 60 KiB in many headers", post(LENGTH, *(b"X-%d: %b" % (i, b"x" * 600) for i in range(100)))),
        broken("headers by the thousand", post(LENGTH, *(b"X-%d: a" % i for i in range(5000))), 431),
        broken("a name of 80 KiB", post(LENGTH, b"X" * 81920 + b": a"), 431, "invalid_request"),
        broken("a path of 80 KiB", post(LENGTH, start=b"POST /" + b"x" * 81920 + b" HTTP/1.1"), 431, "invalid_request"),
        broken(
            "a query of 80 KiB",
            post(LENGTH, start=b"POST /v1/chat/completions?" + b"x" * 81920 + b" HTTP/1.1"),
            431,
            "invalid_request",
        ),
        refused(
            "a path of 8000 bytes", post(LENGTH, start=b"POST /" + b"x" * 8000 + b" HTTP/1.1"), 404, "unknown_path"
        ),
        refused("a declared body over the limit", post(b"Content-Length: 1048577"), 413, "body_too_large"),
        refused(
            "a body over the limit in chunks",
            post(CHUNKED, body=b"100001\r\n" + b" " * 1048577 + b"\r\n0\r\n\r\n"),
            413,
            "body_too_large",
        ),
        served("a body at the limit", post(b"Content-Length: 1048576", body=BODY + b" " * (1048576 - len(BODY)))),
        refused("an empty body", post(b"Content-Length: 0", body=b""), 400, "invalid_json"),
        refused("a body of white space", post(b"Content-Length: 4", body=b" \r\n "), 400, "invalid_json"),
    ]


def _methods() -> list[Case]:
    bodyless = (HOST, BEARER)
    cases = [
        refused(
            f"{method} on the chat path",
            request(*bodyless, start=f"{method} /v1/chat/completions HTTP/1.1".encode()),
            405,
            "method_not_allowed",
        )
        for method in (
            *("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "PURGE", "SEARCH", "LOCK"),
            *("M-SEARCH", "UNSUBSCRIBE"),
        )
    ]
    cases += [
        refused(
            "GET with a body", request(HOST, BEARER, LENGTH, start=b"GET /v1/account HTTP/1.1", body=BODY), 200, ""
        ),
        refused(
            "GET with a body in chunks",
            request(HOST, BEARER, CHUNKED, start=b"GET /v1/account HTTP/1.1", body=CHUNKS),
            200,
            "",
        ),
        refused(
            "GET with a body that is half there",
            request(HOST, BEARER, LENGTH, start=b"GET /v1/account HTTP/1.1", body=BODY[:9]),
            200,
            "",
        ),
        refused("POST to the health", post(LENGTH, start=b"POST /healthz HTTP/1.1"), 405, "method_not_allowed"),
        broken("CONNECT to the health", request(HOST, start=b"CONNECT /healthz HTTP/1.1"), 405, "method_not_allowed"),
        refused("OPTIONS *", request(*bodyless, start=b"OPTIONS * HTTP/1.1"), 404, "unknown_path"),
        broken(
            "CONNECT to an authority",
            request(*bodyless, start=b"CONNECT example.com:443 HTTP/1.1"),
            404,
            "unknown_path",
        ),
        broken(
            "CONNECT to the chat path",
            request(*bodyless, start=b"CONNECT /v1/chat/completions HTTP/1.1"),
            405,
            "method_not_allowed",
        ),
        served(
            "Upgrade to a websocket",
            post(
                LENGTH,
                b"Upgrade: websocket",
                b"Connection: Upgrade",
                b"Sec-WebSocket-Version: 13",
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            ),
        ),
        served(
            "Upgrade to HTTP/2",
            post(
                LENGTH,
                b"Upgrade: h2c",
                b"Connection: Upgrade, HTTP2-Settings",
                b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
            ),
        ),
        served("Upgrade to nonsense", post(LENGTH, b"Upgrade: x" * 3, b"Connection: Upgrade")),
        refused(
            "GET with Upgrade",
            request(HOST, BEARER, b"Upgrade: websocket", b"Connection: Upgrade", start=b"GET /v1/account HTTP/1.1"),
            200,
            "",
        ),
        broken("Sec-WebSocket-Key1", post(LENGTH, b"Sec-WebSocket-Key1: x")),
        served("Expect after which the body comes at once", post(LENGTH, b"Expect: 100-continue")),
        served("Expect in capitals", post(LENGTH, b"Expect: 100-CONTINUE")),
        served("Expect something else", post(LENGTH, b"Expect: the-unexpected")),
        broken(
            "Expect with a wrong token",
            request(HOST, b"Authorization: Bearer no", JSON, LENGTH, b"Expect: 100-continue", body=BODY),
            401,
            "token_invalid",
        ),
    ]
    return cases


def _headers() -> list[Case]:
    def with_token(value: bytes, *more: bytes) -> bytes:
        return request(HOST, JSON, LENGTH, value, *more, body=BODY)

    forged = {
        "Connection names authorization": (b"Connection: authorization",),
        "Connection names content-length": (b"Connection: content-length, host, close",),
        "Connection names everything": (b"Connection: keep-alive, x-request-id, transfer-encoding, authorization",),
        "forged X-Forwarded-For": (
            b"X-Forwarded-For: 127.0.0.1",
            b"X-Forwarded-Host: evil",
            b"X-Forwarded-Proto: https",
        ),
        "forged Forwarded": (b"Forwarded: for=127.0.0.1;host=evil",),
        "forged X-Real-IP": (b"X-Real-IP: 127.0.0.1", b"True-Client-IP: 127.0.0.1", b"CF-Connecting-IP: 127.0.0.1"),
        "forged identity": (
            *(b"X-User: admin", b"X-Account: other", b"X-Token-Id: other", b"X-Group: vip", b"Remote-User: root"),
        ),
        "names with underscores": (
            *(b"X_Forwarded_For: 127.0.0.1", b"Content_Length: 3", b"X_User: admin", b"Authorization_: Bearer x"),
        ),
        "another credential": (b"Api-Key: sk-x", b"Proxy-Authorization: Basic eDp5", b"OpenAI-Organization: org"),
        "a forged request id": (b"X-Request-Id: forged",),
        "a method override": (
            *(b"X-HTTP-Method-Override: DELETE", b"X-Method-Override: GET", b"X-Original-URL: /v1/account"),
            b"X-Rewrite-URL: /admin",
        ),
        "TE and Trailer": (b"TE: trailers, gzip", b"Trailer: Authorization"),
        "cookies": (b"Cookie: session=1; token=2", b"Cookie2: $Version=1"),
        "ranges and conditions": (b"Range: bytes=0-1", b"If-None-Match: *", b"If-Match: x", b"If-Modified-Since: x"),
        "Accept of everything": (
            b"Accept: text/html, */*;q=0.1",
            b"Accept-Encoding: gzip, br, zstd",
            b"Accept-Language: tlh",
        ),
        "an endless Accept": (b"Accept: " + b"a/b, " * 5000,),
        "a traceparent with odd bytes": (b"traceparent: \xff\xfe", b"tracestate: \xe2\x80\xa8"),
        "a traceparent that is too long": (b"traceparent: " + b"0" * 5000,),
        "two traceparents": (b"traceparent: a", b"traceparent: b"),
        "keep-alive of ten years": (b"Keep-Alive: timeout=315360000, max=1000000", b"Connection: keep-alive"),
        "Max-Forwards of zero": (b"Max-Forwards: 0", b"Via: 1.1 gateway, 1.1 gateway", b"Warning: 199 -"),
    }
    cases = [served(name, post(LENGTH, *lines)) for name, lines in forged.items()]
    wrong = {
        "a wrong scheme": b"Authorization: Basic TOKEN",
        "a scheme glued on": b"Authorization: BearerTOKEN",
        "the token alone": b"Authorization: TOKEN",
        "a token of 60,000 bytes": b"Authorization: Bearer sk-" + b"a" * 60000,
        "a token that is not ASCII": "Authorization: Bearer sk-t\u00e9ster-\u202e".encode(),
        "a token that is not UTF-8": b"Authorization: Bearer \xff\xfe\xfd",
        "two tokens in one header": b"Authorization: Bearer TOKEN, Bearer TOKEN",
        "a token with more after it": b"Authorization: Bearer TOKEN x",
        "a token cut short": b"Authorization: Bearer sk-tester",
        "a token in quotes": b'Authorization: Bearer "TOKEN"',
        "a tab after the scheme": b"Authorization: Bearer\tTOKEN",
        "a script for the store": b"Authorization: Bearer sk-*-}\\r\\nFLUSHALL",
        "a pattern": b"Authorization: Bearer sk-*-????????-*",
        "percent-encoding": b"Authorization: Bearer %73k-tester",
        "a token of dashes": b"Authorization: Bearer " + b"-" * 300,
        "Digest": b'Authorization: Digest username="x"',
    }
    cases += [refused(name, with_token(line), 401, "token_invalid") for name, line in wrong.items()]
    missing = {
        "no token": b"X-A: b",
        "an empty token": b"Authorization:",
        "Bearer alone": b"Authorization: Bearer",
        "Bearer and spaces": b"Authorization: Bearer    ",
    }
    cases += [refused(name, with_token(line), 401, "token_missing") for name, line in missing.items()]
    cases += [
        refused("two tokens, the second good", with_token(b"Authorization: Bearer x", BEARER), 401, "token_invalid"),
        refused("two tokens, the first good", with_token(BEARER, b"Authorization: Bearer x"), 401, "token_invalid"),
        refused("two tokens, both good", with_token(BEARER, BEARER), 401, "token_invalid"),
        served("the scheme in capitals", with_token(b"AUTHORIZATION: BEARER TOKEN")),
        broken("two content types", post(LENGTH, JSON)),
        refused(
            "the token in the query",
            request(HOST, JSON, LENGTH, start=CHAT.replace(b" H", b"?token=TOKEN&api_key=TOKEN H"), body=BODY),
            401,
            "token_missing",
        ),
    ]
    return cases


def _encodings() -> list[Case]:
    coded = [
        *(b"gzip", b"br", b"zstd", b"deflate", b"compress", b"x-gzip", b"identity, gzip", b"gzip, identity"),
        *(b"GZIP", b"aes128gcm", b"\xff", b"nonsense"),
    ]
    kinds = [
        *(b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x"),
        *(b"application/xml", b"application/jsonx", b"text/json", b"*/*", b"\xff", b"application/json-seq"),
    ]
    cases = [
        refused(
            f"content encoding {value!r}", post(b"Content-Encoding: " + value, LENGTH), 415, "unsupported_media_type"
        )
        for value in coded
    ]
    cases += [
        refused(
            f"media type {value!r}",
            request(HOST, BEARER, LENGTH, b"Content-Type: " + value, body=BODY),
            415,
            "unsupported_media_type",
        )
        for value in kinds
    ]
    cases += [
        refused("no media type", request(HOST, BEARER, LENGTH, body=BODY), 415, "unsupported_media_type"),
        refused(
            "two content encodings",
            post(b"Content-Encoding: identity", b"Content-Encoding: gzip", LENGTH),
            415,
            "unsupported_media_type",
        ),
        served("identity", post(b"Content-Encoding: identity", LENGTH)),
        served("identity in capitals", post(b"Content-Encoding: IDENTITY", LENGTH)),
        served(
            "a media type with a charset",
            request(HOST, BEARER, LENGTH, b"Content-Type: Application/JSON ; charset=latin-1", body=BODY),
        ),
        refused(
            "a gzip bomb",
            post(
                b"Content-Encoding: gzip", b"Content-Length: 20", body=bytes.fromhex("1f8b0800000000000003") + bytes(10)
            ),
            415,
            "unsupported_media_type",
        ),
    ]
    return cases


def _paths() -> list[Case]:
    unknown = UNKNOWN_PATHS.split()
    cases = [
        refused(f"path {path}", post(LENGTH, start=f"POST {path} HTTP/1.1".encode()), 404, "unknown_path")
        for path in unknown
    ]
    strange = [
        *("http:/v1/chat/completions", "gateway/v1/chat/completions", "gateway:80", "*x", "?"),
        *("v1/chat/completions", ":80/v1"),
    ]
    cases += [broken(f"target {target}", post(LENGTH, start=f"POST {target} HTTP/1.1".encode())) for target in strange]
    cases += [
        broken("path with a byte that is no UTF-8", post(LENGTH, start=b"POST /v1/\xff\xfe HTTP/1.1")),
        broken("path in another script", post(LENGTH, start="POST /v1/chat/\u0441ompletions HTTP/1.1".encode())),
        broken("path with DEL", post(LENGTH, start=b"POST /v1/\x7f HTTP/1.1")),
        broken("path with ESC", post(LENGTH, start=b"POST /v1/\x1b[31m HTTP/1.1")),
        served("a query", post(LENGTH, start=CHAT.replace(b" H", b"?model=other&api_base=http://evil&%00=%ff H"))),
        served("an empty query", post(LENGTH, start=CHAT.replace(b" H", b"? H"))),
        served("a query with slashes", post(LENGTH, start=CHAT.replace(b" H", b"?/../..//v1/v1?? H"))),
    ]
    ids = [
        *("%00", "..", "../../account"),
        "x" * 4000,
        *("%0d%0aSet-Cookie:%20a=b", "*", "{tester}", "words/../other", "a:b/c"),
    ]
    cases += [
        refused(
            f"model {name[:30]}",
            request(HOST, BEARER, start=f"GET /v1/models/{name} HTTP/1.1".encode()),
            404,
            "model_not_found",
        )
        for name in ids
    ]
    cases += [
        refused(
            f"record {name[:30]}",
            request(HOST, BEARER, start=f"GET /v1/requests/{name} HTTP/1.1".encode()),
            404,
            "request_not_found",
        )
        for name in ids
    ]
    return cases


def _each(name: str, *values: object) -> list[tuple[str, object]]:
    return [(name, value) for value in values]


def _fields() -> list[Case]:
    def chat(name: str, **fields: object) -> bytes:
        body = json.dumps(
            {"model": "words", "messages": [{"role": "user", "content": name}], "stream": True} | fields,
            separators=(",", ":"),
        )
        return sized(body.encode())

    def sized(body: bytes) -> bytes:
        return post(b"Content-Length: %d" % len(body), body=body)

    fields: list[tuple[str, object]] = [
        *_each("max_tokens", -1, 0, 10**18, "5", True, 1.5, [], {}, 2**64, -(2**63), 1e400),
        *_each("max_completion_tokens", -1, 0, 10**18, "5"),
        *_each("n", 0, -1, 10**6, "1", 1.5, True, 10**30),
        *_each("temperature", "1", [], {}),
        *_each("messages", None, [], {}, "x", [1], ["x"], [None], [{}], [{"role": 1}], [[]]),
        *_each("model", None, "", 1, [], {}, True, "a\nb", "a\x00b", "x" * 300, "\u202e", "words\u200d", "\x1b[31m"),
        *_each("stream_options", 1, "x", [], {"include_usage": "yes"}),
    ]
    cases = [
        refused(
            f"{name}: {value!r}"[:60],
            chat("MARK", **{name: value}),
            400,
            "invalid_json" if value == 1e400 else "invalid_request",
        )
        for name, value in fields
    ]
    cases += [
        refused(f"stream: {value!r}", chat("MARK", stream=value), 400, "stream_required")
        for _, value in _each("stream", False, None, 1, "true", [], {})
    ]
    cases += [
        refused(
            "both spellings that differ", chat("MARK", max_tokens=1, max_completion_tokens=2), 400, "invalid_request"
        )
    ]
    cases += [
        refused(f"{name} decides for the upstream", chat("MARK", **{name: {"n": 9}}), 400, "invalid_request")
        for name in ("user_config", "__proto__", "Model", "N", "max_to\u212aens", "n_predict", "models")
    ]
    cases += [
        refused(f"model {name!r}", chat("MARK", model=name), 404, "model_not_found")
        for name in ("../words", "words ", "WORDS", "hidden", "gw:{tester}:wallet", "*")
    ]
    cases += [
        served(
            f"{name} is never looked at",
            sized(
                json.dumps(
                    {
                        "model": "words",
                        "messages": [{"role": "user", "content": "MARK"}],
                        "stream": True,
                        name: "http://169.254.169.254/",
                    },
                    separators=(",", ":"),
                ).encode()
            ),
        )
        for name in ("api_base", "base_url", "api_key", "extra_headers", "organization", "proxy", "constructor")
    ]
    texts = {
        "UTF-16": '{"model":"words"}'.encode("utf-16"),
        "UTF-8 with BOM": b"\xef\xbb\xbf" + BODY,
        "a lone continuation byte": BODY.replace(b"MARK", b"\x80"),
        "an overlong slash": BODY.replace(b"MARK", b"\xc0\xaf"),
        "a surrogate in UTF-8": BODY.replace(b"MARK", b"\xed\xa0\x80"),
        "a control character in a string": BODY.replace(b"MARK", b"\n"),
        "a lone surrogate escape": BODY.replace(b"MARK", rb"\ud800"),
        "a bad escape": BODY.replace(b"MARK", rb"\x41"),
        "NaN": BODY[:-1] + b',"a":NaN}',
        "Infinity": BODY[:-1] + b',"a":-Infinity}',
        "a comment": BODY[:-1] + b"/* */}",
        "a trailing comma": BODY[:-1] + b",}",
        "single quotes": BODY.replace(b'"', b"'"),
        "two values": BODY + BODY,
        "half a body": BODY[:40],
        "an open string": BODY[:30],
        "a leading zero": BODY[:-1] + b',"a":01}',
        "hexadecimal": BODY[:-1] + b',"a":0x1}',
    }
    cases += [refused(f"JSON: {name}", sized(text), 400, "invalid_json") for name, text in texts.items()]
    others = {
        "an array": b"[1]",
        "only brackets": b"[" * 100_000,
        "only braces": b'{"a":' * 100_000,
        "a string": b'"x"',
        "null": b"null",
        "a number": b"1",
    }
    cases += [refused(f"JSON: {name}", sized(text), 400, "invalid_request") for name, text in others.items()]
    deep = BODY[:-1] + b',"a":' + b"[" * 5000 + b"]" * 5000 + b"}"
    cases += [refused("JSON: nested 5000 deep", sized(deep), 400, "invalid_request")]
    return cases


def _json() -> list[Case]:
    def beside(value: bytes) -> bytes:
        body = BODY[:-1] + b',"x":' + value + b"}"
        return post(b"Content-Length: %d" % len(body), body=body)

    cases = [served(f"JSON {value[:40]!r}", beside(value)) for value in ACCEPTED_JSON]
    return cases + [refused(f"JSON {value[:40]!r}", beside(value), 400, "invalid_json") for value in REFUSED_JSON]


def _naughty() -> list[Case]:
    cases = []
    for text in NAUGHTY:
        body = BODY.replace(b"words", json.dumps(text).encode()[1:-1])
        asked = post(b"Content-Length: %d" % len(body), body=body)
        known = text.isprintable() and 0 < len(text) <= MAX_MODEL_NAME_LENGTH
        model = (404, "model_not_found") if known else (400, "invalid_request")
        cases.append(refused(f"model {text[:40]!r}", asked, *model))
        sound = not set(text) & set(map(chr, (*range(9), *range(10, 32), 127)))
        missing = text.strip() in ("", "Bearer")
        token = (401, "token_missing" if missing else "token_invalid") if sound else (400, "invalid_request")
        wrong = request(HOST, JSON, LENGTH, b"Authorization: Bearer " + text.encode(), body=BODY)
        cases.append(refused(f"token {text[:40]!r}", wrong, *token) if sound else broken(f"token {text[:40]!r}", wrong))
        header = post(LENGTH, b"X-A: " + text.encode())
        cases.append(served(f"header {text[:40]!r}", header) if sound else broken(f"header {text[:40]!r}", header))
    return cases


GROUPS = {
    "framing": _framing(),
    "chunks": _chunks(),
    "lines": _lines(),
    "sizes": _sizes(),
    "methods": _methods(),
    "headers": _headers(),
    "encodings": _encodings(),
    "paths": _paths(),
    "fields": _fields(),
    "JSON": _json(),
    "naughty strings": _naughty(),
}
