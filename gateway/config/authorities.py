"""Certificate authorities of a channel's `ca_file`: the TLS context that trusts them, and the extensions that a certificate lacks.

From Python 3.13 on, a certificate is refused by default where an extension is missing that RFC 5280 asks for, as in many private
authorities. Where an operator names the file, the certificates in it are meant, so this check alone is left out.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

BASIC_CONSTRAINTS, KEY_USAGE, SUBJECT_KEY, AUTHORITY_KEY = (
    b"\x06\x03\x55\x1d" + bytes([last]) for last in (19, 15, 14, 35)
)
"""Extensions as their object identifiers in DER (RFC 5280, section 4.2)."""
CRITICAL: Final = b"\x01\x01\xff"


def trusting(file: Path) -> ssl.SSLContext:
    """Return a context that trusts the authorities of a PEM file alone. Raises `OSError` (as `ssl.SSLError`, too)."""
    context = ssl.create_default_context(cafile=file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def imperfections(context: ssl.SSLContext) -> Iterator[str]:
    """Yield a sentence for each authority that is refused where certificates are checked strictly."""
    for described, encoded in zip(context.get_ca_certs(), context.get_ca_certs(binary_form=True), strict=True):
        if lacking := list(_lacking(described, encoded)):
            yield f"the certificate of {_name(described)} lacks {' and '.join(lacking)}"


def _lacking(described: dict[str, Any], encoded: bytes) -> Iterator[str]:
    if BASIC_CONSTRAINTS + CRITICAL not in encoded:
        yield "critical Basic Constraints"
    if KEY_USAGE not in encoded:
        yield "Key Usage"
    if SUBJECT_KEY not in encoded:
        yield "a Subject Key Identifier"
    if AUTHORITY_KEY not in encoded and described["subject"] != described["issuer"]:
        yield "an Authority Key Identifier"


def _name(described: dict[str, Any]) -> str:
    """Return the most specific part of the subject, which is its last."""
    return repr(described["subject"][-1][0][1]) if described["subject"] else "an authority without a name"
