"""The base address that a client is given, before anything is sent there."""

from __future__ import annotations

import re
from typing import Final

from yarl import URL

from gateway.tools.diagnosis import Diagnosis, ill, note, shown, well

OPERATIONS: Final = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/embeddings",
    "/messages",
    "/models",
    "/account",
)


def parsed(base_url: str) -> tuple[URL, Diagnosis]:
    """Return the address, and what is wrong with it. Of one that is no address, an empty URL is returned."""
    text = base_url.strip()
    try:
        url = URL(text)
        host, port = url.host or "", url.port
        host.encode("idna")
    except ValueError:  # also what cannot be a name in the DNS
        return URL(), _no_address(text, "Check host and port: https://HOST:PORT/v1, the port from 1 to 65535.")
    if not text.isprintable() or " " in text:
        return URL(), _no_address(text, "Remove what is no part of an address, such as spaces.")
    if "://" not in text:
        return URL(), _no_address(text, _with_scheme(text))
    if url.scheme not in ("http", "https") or not host or not port:
        return URL(), _no_address(text, "Give the whole base address, as in https://host/v1.")
    return url, _check(url)


def _check(url: URL) -> Diagnosis:
    path = url.path.rstrip("/")
    if url.user is not None or url.password is not None:
        text = "the address has a user or a password before the host, which takes the place of the token"
        remedy = f"Remove it: {_without(url, url.path)}"
        return ill("address", "address_has_password", text, remedy)
    if url.query_string or url.fragment:
        return ill("address", "address_has_query", "the address has a query", f"Remove it: {_without(url, url.path)}")
    if path.endswith("/v1/v1"):
        remedy = f"Remove one /v1: {_without(url, path.removesuffix('/v1'))}"
        return ill("address", "address_repeats_v1", "the path repeats /v1", remedy)
    for operation in OPERATIONS:
        if path.endswith(operation):
            base = path.removesuffix(operation)
            remedy = f"Remove {operation}, which clients add themselves: {_without(url, base)}"
            return ill("address", "address_names_operation", "the path names an operation", remedy)
    if "//" in path:
        remedy = "Write each slash once."
        return ill("address", "address_has_empty_part", "the path has two slashes in a row", remedy)
    if not path.endswith("/v1"):
        text = "the path does not end in /v1"
        return note("address", "address_without_v1", text, "This is right only if a proxy adds /v1.")
    return well("address", f"{shown(str(url))} ends in /v1")


def _with_scheme(text: str) -> str:
    """Return what to do with an address that has no `://`."""
    rest = re.sub(r"^https?:/?", "", text)
    if not rest:
        return "Give the whole base address, as in https://host/v1."
    is_here = rest.startswith(("localhost", "127.", "[::1]"))
    return f"Write the scheme, too: {'http' if is_here or text.startswith('http:') else 'https'}://{shown(rest)}"


def _no_address(text: str, remedy: str) -> Diagnosis:
    part = shown(text.rpartition("@")[2], 80)  # without a password
    return ill("address", "address_invalid", f"`{part}` is not an http address", remedy)


def _without(url: URL, path: str) -> str:
    """Return the address with another path, and without user, query and fragment."""
    return shown(str(url.with_user(None).with_query(None).with_fragment(None).with_path(path)))
