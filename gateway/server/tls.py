"""TLS on the public port, with a certificate that is reloaded when its files change.

Both files are checked every few seconds. A new pair serves new connections; open connections keep theirs. A certificate and key
that do not match, as between the writing of the two files, change nothing: this is logged once, and tried again at the next
change. The parent process follows the files, too: a worker that starts while they cannot be used begins with the last good pair.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from gateway.base import durable
from gateway.base.errors import Misconfigured
from gateway.base.log import log
from gateway.config.schema import Tls

CHECK_EVERY_S: Final = 5.0


class Certificate:
    """A certificate and its key as a TLS context. Raises `Misconfigured` for files that cannot be used."""

    def __init__(self, settings: Tls) -> None:
        self._settings = settings
        self._versions = self._stat()
        self.context = self._read()

    def renew(self, *, quiet: bool = False) -> bool:
        """Load the files if they changed since the last check, and log the result. Return whether a new pair was loaded."""
        versions = self._stat()
        if versions == self._versions:
            return False
        self._versions = versions
        try:
            self._read()
            self._load(self.context)
        except Misconfigured as error:
            if not quiet:
                log.error("certificate_refused", reason=str(error))
            return False
        if not quiet:
            log.info("certificate_renewed", certificate=self._settings.certificate)
        return True

    def _stat(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(durable.version(Path(name)) for name in (self._settings.certificate, self._settings.key))

    def _read(self) -> ssl.SSLContext:
        """Load the pair into a new context first, so that the context in use never holds half a pair."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            for name in (self._settings.certificate, self._settings.key):
                durable.read(Path(name))  # OpenSSL would wait for ever for a named pipe
            # Without a password, OpenSSL would ask for that of an encrypted key on a terminal.
            context.load_cert_chain(self._settings.certificate, self._settings.key, password="")
        except OSError as error:  # ssl.SSLError is one
            reason = "they are not a certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise Misconfigured(
                f"tls: cannot use {self._settings.certificate} and {self._settings.key}: {reason}; "
                "both must be PEM files, the key without a password"
            ) from None


@asynccontextmanager
async def renewing(certificate: Certificate | None) -> AsyncIterator[ssl.SSLContext | None]:
    """Yield a context that follows the files, or None without TLS."""
    if certificate is None:
        yield None
        return

    async def renew_forever() -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            certificate.renew()

    task = asyncio.get_running_loop().create_task(renew_forever())
    try:
        yield certificate.context
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def certificate_of(settings: Tls | None) -> Certificate | None:
    """Return the certificate of the public port, or None without TLS. Raises `Misconfigured`."""
    return None if settings is None else Certificate(settings)
