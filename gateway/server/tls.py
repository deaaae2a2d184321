"""TLS on the public port, with the certificate that is in its files now.

Both files are looked at every few seconds. A new pair serves whoever connects from then on; connections that stand keep
theirs. A pair that does not fit, as between the writing of two files, changes nothing, is said once, and is tried again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from gateway.config.schema import Tls
from gateway.errors import Misconfigured

LOOK_EVERY_S: Final = 5.0

log = structlog.get_logger("gateway.server.tls")


class Certificate:
    """A certificate and its key, ready to serve. Raises `Misconfigured` for files that cannot be used."""

    def __init__(self, settings: Tls) -> None:
        self._settings = settings
        self._seen = self._look()
        self.context = self._read()

    def renew(self) -> bool:
        """Take up the files if they changed since the last look; whether they were taken up."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._read()
            self._load(self.context)
        except Misconfigured as error:
            log.error("certificate_refused", reason=str(error))
            return False
        log.info("certificate_renewed", certificate=self._settings.certificate)
        return True

    def _look(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_version(Path(name)) for name in (self._settings.certificate, self._settings.key))

    def _read(self) -> ssl.SSLContext:
        """The pair in a context of its own: the one that serves never holds half a pair."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._settings.certificate, self._settings.key, password=_no_password)
        except OSError as error:  # ssl.SSLError is one
            reason = "they are not a certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise Misconfigured(
                f"tls: cannot use {self._settings.certificate} and {self._settings.key}: {reason}; "
                "both must be PEM files, the key without a password"
            ) from None


@asynccontextmanager
async def renewing(settings: Tls | None) -> AsyncIterator[ssl.SSLContext | None]:
    """A context that serves what the files hold; None where there is no TLS. Raises `Misconfigured`."""
    if settings is None:
        yield None
        return
    certificate = Certificate(settings)
    task = asyncio.get_running_loop().create_task(_keep_looking(certificate))
    try:
        yield certificate.context
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_looking(certificate: Certificate) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        certificate.renew()


def _version(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _no_password() -> str:
    """Asked for an encrypted key, instead of a person at a terminal."""
    return ""
