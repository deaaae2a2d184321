"""TLS for the upstream, the gateway and the load: a certificate of a private authority, and non-blocking sockets."""

from __future__ import annotations

import socket
import ssl
from functools import cache
from pathlib import Path
from typing import Final

NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a non-blocking socket raises, with or without TLS, when it would have to wait."""

CERTIFICATE, KEY, AUTHORITY = "certificate.pem", "key.pem", "authority.pem"
HANDSHAKE_S: Final = 10


def write_certificate(folder: Path) -> None:
    """Write a certificate for 127.0.0.1, its key and its authority into the folder."""
    import trustme  # only where TLS is measured: the other loads run without the packages for development

    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / CERTIFICATE)
    issued.private_key_pem.write_to_path(folder / KEY)
    authority.cert_pem.write_to_path(folder / AUTHORITY)


def accepted(sock: socket.socket, folder: str) -> socket.socket:
    """Return the socket after the handshake of a server with the folder's certificate; without a folder, the same socket."""
    if not folder:
        return sock
    sock.settimeout(HANDSHAKE_S)
    return _context(folder, server=True).wrap_socket(sock, server_side=True)


def connected(sock: socket.socket, folder: str) -> socket.socket:
    """Return the socket after the handshake of a client that trusts the folder's authority; without a folder, the same socket."""
    if not folder:
        return sock
    sock.settimeout(HANDSHAKE_S)
    return _context(folder, server=False).wrap_socket(sock, server_hostname="127.0.0.1")


@cache
def _context(folder: str, *, server: bool) -> ssl.SSLContext:
    if not server:
        return ssl.create_default_context(cafile=f"{folder}/{AUTHORITY}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/{CERTIFICATE}", f"{folder}/{KEY}")
    return context
