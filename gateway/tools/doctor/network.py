"""Network failures: names, ports, TLS and timeouts, each from the error that the client got, as reasons why nothing answers."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from pathlib import Path
from typing import Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from gateway.base.errors import Misconfigured
from gateway.config.authorities import trusting
from gateway.tools.channel_test import Diagnosis, ill, shown

CONNECT_S: Final = 10
ANSWER_S: Final = 30
"""How long to wait for the answer to a request that costs nothing."""
PROBE_S: Final = 5

NOT_NOW: Final = (9, 10)
OTHER_NAME: Final = (62, 64)
"""OpenSSL's numbers of what is wrong with a certificate: X509_V_ERR_*."""


def trust_of(ca: Path) -> ssl.SSLContext:
    """Return what trusts the authorities in a file, and not the system's. Raises `Misconfigured` for a file without any."""
    try:
        return trusting(ca)
    except OSError as error:  # also what ssl raises
        reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise Misconfigured(f"--ca {ca}: {reason}; give the certificates of the authority, as PEM") from None


async def unreached(url: URL, error: Exception) -> Diagnosis:
    """Return why a request got no answer."""
    if isinstance(error, aiohttp.ClientHttpProxyError | aiohttp.ClientProxyConnectionError):
        text = "the proxy of the environment refuses the connection, or cannot be reached"
        remedy = f"Correct HTTP_PROXY or HTTPS_PROXY, with user and password where it asks for them, or add {url.host} to NO_PROXY."
        return ill("proxy", "proxy_of_environment", text, remedy)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return _ill(
            url, "name_unknown", "has a name that does not resolve", "Check the spelling of the host, and the DNS."
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _certificate(url, error.certificate_error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        remedy = "Check the address. A firewall drops connections like this."
        return _ill(url, "connect_timeout", f"does not accept a connection within {CONNECT_S} s", remedy)
    if (found := await other_scheme(url)) is not None:
        return found
    if isinstance(error, aiohttp.ClientSSLError):
        remedy = "Something between may break TLS; the gateway and the shipped proxies speak TLS 1.2 and 1.3."
        return _ill(url, "tls_failed", f"fails in the TLS handshake ({shown(str(error.os_error))})", remedy)
    if isinstance(error, aiohttp.ClientConnectorError):
        remedy = "Check host and port, the network and the VPN, and that the gateway or its proxy runs."
        return _ill(
            url, "unreachable", f"cannot be reached: {os.strerror(error.os_error.errno or errno.ECONNREFUSED)}", remedy
        )
    remedy = "Check the port, and that no proxy or firewall closes the connection; ask the operator for the log at this time."
    end = "does not respond in time" if isinstance(error, TimeoutError) else "gives no whole answer over HTTP"
    return _ill(url, "no_answer", f"accepts connections, and {end}", remedy)


def _certificate(url: URL, error: Exception) -> Diagnosis:
    code = getattr(error, "verify_code", 0)
    reason = shown(str(getattr(error, "verify_message", error)))
    if code in NOT_NOW:
        remedy = "Check the clock of this machine; else the operator must renew it."
        return _ill(url, "certificate_expired", "has a certificate that has expired, or is not valid yet", remedy)
    if code in OTHER_NAME:
        remedy = f"Use the name that the certificate has, or let the operator add {url.host}. A captive portal does this, too."
        return _ill(url, "certificate_of_another_name", f"has a certificate that is not for {url.host}", remedy)
    remedy = (
        "If a private authority issued it, pass its certificate: --ca FILE; clients take it from SSL_CERT_FILE, "
        "REQUESTS_CA_BUNDLE or NODE_EXTRA_CA_CERTS. Else the server lacks its intermediate certificates, or something "
        "on the way opens TLS."
    )
    return _ill(url, "certificate_untrusted", f"has a certificate that is not trusted ({reason})", remedy)


async def other_scheme(url: URL) -> Diagnosis | None:
    """Return the verdict where the port speaks TLS and the address says http, or the reverse."""
    if url.scheme in getproxies() and not proxy_bypass(url.host or ""):
        return None
    if url.scheme == "http" and await _speaks_tls(url):
        remedy = f"Begin the base address with https: {shown(str(url.with_scheme('https').with_port(url.port)))}"
        return _ill(url, "needs_https", "speaks TLS, and the address begins with http", remedy)
    if url.scheme == "https" and not await _speaks_tls(url) and await _speaks_plain_http(url):
        remedy = (
            "Ask the operator for the address with TLS, since http shows the token to all on the way; or begin the base address "
            f"with http: {shown(str(url.with_scheme('http').with_port(url.port)))}"
        )
        return _ill(url, "needs_http", "does not speak TLS, and the address begins with https", remedy)
    return None


async def _speaks_tls(url: URL) -> bool:
    """Return whether a TLS handshake succeeds there. Nothing is sent, so no certificate is checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(url.host, url.port, ssl=context, server_hostname=url.host)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _speaks_plain_http(url: URL) -> bool:
    """Return whether a request without TLS is answered with HTTP. It names no path and has no token."""
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            try:
                writer.write(f"OPTIONS * HTTP/1.1\r\nHost: {url.raw_authority}\r\nConnection: close\r\n\r\n".encode())
                return await reader.readexactly(5) == b"HTTP/"
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False


def _ill(url: URL, code: str, text: str, remedy: str) -> Diagnosis:
    return ill("network", code, f"{at(url)} {text}", f"Nothing reached the gateway. {remedy}")


def at(url: URL) -> str:
    """Return host and port."""
    return shown(f"{url.host}:{url.port}")
