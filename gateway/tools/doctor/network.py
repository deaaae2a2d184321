"""Network failures: names, ports, TLS and timeouts, each from the error that the client got, as reasons why nothing answers."""

from __future__ import annotations

import asyncio
import errno
import ssl
from pathlib import Path
from typing import Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from gateway.base.errors import Misconfigured
from gateway.config.authorities import trusting
from gateway.tools.channel_test import Diagnosis, ill, note, shown

CONNECT_S: Final = 10
ANSWER_S: Final = 30
"""How long to wait for the answer to a request that costs nothing."""
PROBE_S: Final = 5

EXPIRED: Final = 10
NOT_YET: Final = 9
OTHER_NAME: Final = (62, 64)
UNTRUSTED: Final = (2, 18, 19, 20, 21)
"""OpenSSL's numbers of what is wrong with a certificate: X509_V_ERR_*."""

BY_ERRNO: Final = {
    errno.ECONNREFUSED: (
        "port_closed",
        "nothing listens there",
        "Check host and port, and that the gateway or its proxy runs.",
    ),
    errno.EHOSTUNREACH: ("unreachable", "there is no way to this host", "Check the address, the network and the VPN."),
    errno.ENETUNREACH: (
        "unreachable",
        "there is no way to this network",
        "Check the address, the network and the VPN.",
    ),
}


def trust_of(ca: Path) -> ssl.SSLContext:
    """Return what trusts the authorities in a file, and not the system's. Raises `Misconfigured` for a file without any."""
    try:
        return trusting(ca)
    except OSError as error:  # also what ssl raises
        reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise Misconfigured(f"--ca {ca}: {reason}; give the certificates of the authority, as PEM") from None


def proxy_of_environment(url: URL) -> Diagnosis | None:
    """Return a note if the environment sends requests to this address through a proxy."""
    if not _is_proxied(url):
        return None
    text = f"the environment sends {url.scheme} requests through a proxy"
    return note("proxy", "proxy_of_environment", text, f"If nothing arrives, add {url.host} to NO_PROXY.")


def _is_proxied(url: URL) -> bool:
    return url.scheme in getproxies() and not proxy_bypass(url.host or "")


async def unreached(url: URL, error: Exception) -> Diagnosis:
    """Return why a request got no answer."""
    if (found := _before_the_port(url, error)) is not None:
        return found
    agreed_on_nothing = "PROTOCOL" in _reason(error) or "ALERT" in _reason(error)
    if not agreed_on_nothing and (found := await other_scheme(url)) is not None:
        return found
    if isinstance(error, TimeoutError):
        remedy = "A proxy or the gateway takes the request and says nothing: ask the operator whether the gateway runs."
        return _connected(url, "answer_timeout", "it takes the request and does not respond in time", remedy)
    if isinstance(error, aiohttp.ClientSSLError):
        remedy = "Something between may break TLS; the gateway and the shipped proxies speak TLS 1.2 and 1.3."
        return _ill(url, "tls_failed", f"fails in the TLS handshake: {_in_words(_reason(error))}", remedy)
    if isinstance(error, aiohttp.ClientResponseError):
        return _ill(
            url,
            "not_http",
            "is answered by something that does not speak HTTP",
            "Check the port: another service listens there.",
        )
    remedy = "Check that no proxy or firewall closes the connection, and ask the operator for its log at this time."
    return _connected(url, "connection_cut", "it closes them without a whole answer", remedy)


def _before_the_port(url: URL, error: Exception) -> Diagnosis | None:
    """Return the verdict where no connection was made, or the certificate was refused."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        text = f"the proxy of the environment refuses the connection with {error.status}"
        remedy = "Give it a user and password in HTTPS_PROXY where it asks for them (407)"
        return ill("proxy", "proxy_refuses", text, f"{remedy}, or add {url.host} to NO_PROXY.")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        text = "the proxy of the environment cannot be reached"
        remedy = f"Correct HTTP_PROXY or HTTPS_PROXY, or add {url.host} to NO_PROXY."
        return ill("proxy", "proxy_unreachable", text, remedy)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return _ill(
            url, "name_unknown", "has a name that does not resolve", "Check the spelling of the host, and the DNS."
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _certificate(url, error.certificate_error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        remedy = "Check the address. A firewall drops connections like this."
        return _ill(url, "connect_timeout", f"does not accept a connection within {CONNECT_S} s", remedy)
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in BY_ERRNO:
        code, text, remedy = BY_ERRNO[error.os_error.errno]
        return _ill(url, code, f"cannot be reached: {text}", remedy)
    return None


def _certificate(url: URL, error: Exception) -> Diagnosis:
    code = getattr(error, "verify_code", 0)
    reason = shown(str(getattr(error, "verify_message", error)))
    if code == EXPIRED:
        return _connected(
            url,
            "certificate_expired",
            "its certificate has expired",
            "The operator must renew it. Check this clock, too.",
        )
    if code == NOT_YET:
        return _connected(
            url, "certificate_not_yet_valid", "its certificate is not valid yet", "Check the clock of this machine."
        )
    if code in OTHER_NAME:
        remedy = f"Use the name that the certificate has, or let the operator add {url.host}. A captive portal does this, too."
        return _connected(url, "certificate_of_another_name", f"its certificate is not for {url.host}", remedy)
    if code in UNTRUSTED:
        remedy = (
            "If a private authority issued it, pass its certificate: --ca FILE; clients take it from SSL_CERT_FILE, "
            "REQUESTS_CA_BUNDLE or NODE_EXTRA_CA_CERTS. Else the server lacks its intermediate certificates, or something "
            "on the way opens TLS."
        )
        return _connected(url, "certificate_untrusted", f"its certificate is not trusted ({reason})", remedy)
    return _connected(
        url, "certificate_refused", f"its certificate is refused ({reason})", "Show this to the operator."
    )


def _reason(error: Exception) -> str:
    """Return OpenSSL's word for what is wrong with a handshake."""
    return str(getattr(getattr(error, "os_error", None), "reason", None) or "no reason given")


def _in_words(reason: str) -> str:
    meaning = "what answers does not speak TLS" if reason == "WRONG_VERSION_NUMBER" else ""
    return f"{meaning} ({shown(reason)})" if meaning else shown(reason)


async def other_scheme(url: URL) -> Diagnosis | None:
    """Return the verdict where the port speaks TLS and the address says http, or the reverse."""
    if _is_proxied(url):
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


def _connected(url: URL, code: str, text: str, remedy: str) -> Diagnosis:
    return ill("network", code, f"{at(url)} accepts connections, but {text}", remedy)


def _ill(url: URL, code: str, text: str, remedy: str) -> Diagnosis:
    return ill("network", code, f"{at(url)} {text}", f"Nothing reached the gateway. {remedy}")


def at(url: URL) -> str:
    """Return host and port."""
    return shown(f"{url.host}:{url.port}")
