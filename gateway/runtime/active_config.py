"""The configuration that the parent process starts workers with. It follows the file, the files of its secrets, and SIGHUP.

A changed file is read once, by the parent, and tried in a process of its own. Then every worker starts a chain from it. Only
when all have done so is it adopted; until then, and where one of them cannot, everything stays as it is.

**The test** is in a process of its own: a plugin that hangs, exits or crashes there hurts no other process. Everything that a
start does with plugins is done: they are imported and made and, where there is a store, started and stopped. A new credential of a
channel that is served is tried at its upstream, for free: a wrong one does not replace one that works.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final, Self

import msgspec

from gateway.alerts.signature import secrets_of
from gateway.base import durable
from gateway.base.errors import GatewayError, Misconfigured
from gateway.base.forked import Forked, plain, write_line
from gateway.base.log import log
from gateway.chain import loading
from gateway.chain.chain import START_LIMIT_S, Chain, warnings
from gateway.chain.checks import Exposure, exposure_of, mistakes
from gateway.chain.entry import Entry, error_text
from gateway.chain.services import Store, services_of
from gateway.config import document
from gateway.config.channel import credential_warnings
from gateway.config.schema import Config, Loaded, load
from gateway.config.secrets import paths_in
from gateway.metrics.registry import Metrics
from gateway.runtime.handover import Handover, Offer, RefusedReload
from gateway.runtime.reload import after_reload, needs_restart
from gateway.store import probes

ANSWER_LIMIT_S: Final = START_LIMIT_S + 10
"""How long the workers may take to start a chain, one that has died and its successor included."""
MAX_DEATHS: Final = 2
"""Workers that may end while an offer is open: one may have another reason."""

KILLED_AFTER_S: Final = 3.0
"""How long after its limit the test of a configuration is killed. In that time the plugin that hangs is named."""


class ActiveConfig:
    """The last good configuration. `refresh` is called again and again, and never waits."""

    def __init__(self, loaded: Loaded, metrics: Metrics, handover: Handover, url: str) -> None:
        """Begin with `loaded`, and from now on handle SIGHUP in this process. `url`: the store's, for the tests of files."""
        self.loaded = loaded
        self.generation = 1
        self._metrics = metrics
        self._handover = handover
        self._url = url
        self._path = loaded.document.path
        self._secrets = paths_in(loaded.document.raw, self._path.parent)
        self._version = self._versions()
        self._reload_requested = False
        self._candidate = loaded
        self._test: ConfigTest | None = None
        self._offer: Offer | None = None
        self._offers = 0
        self._answer_by = 0.0
        self._deaths = 0
        signal.signal(signal.SIGHUP, self._request_reload)

    def refresh(self) -> bool:
        """Do the next step of a reload, if one is due. Return whether the workers must look at the offer.

        Log once what is wrong with a file, and keep the configuration in that case.
        """
        try:
            if self._test is not None:
                return self._follow_test(self._test)
            if self._offer is not None:
                return self._follow_answers(self._offer)
            self._look_at_file()
        except GatewayError as error:
            self._refuse(str(error))
        except Exception as error:
            self._refuse(error_text(error))
        return False

    def _look_at_file(self) -> None:
        """Begin the test of the file, if it or a secret of it changed, or SIGHUP came."""
        versions = self._versions()
        if versions[0] is None or (versions == self._version and not self._reload_requested):
            return
        self._version, self._reload_requested = versions, False
        raw = document.read(self._path)
        self._secrets = paths_in(raw, self._path.parent)
        self._version = (versions[0], *self._versions()[1:])  # what changes from here on is seen by the next look
        self._candidate = load(self._path, raw=raw)
        self._test = ConfigTest(self._candidate, self._url, before=self.loaded.config)

    def _follow_test(self, test: ConfigTest) -> bool:
        """Offer the file to the workers once its test has succeeded."""
        try:
            if test.poll() is None:
                return False
        except BaseException:
            self._test = None
            raise
        self._test = None
        self._offers += 1
        read = self._candidate.document
        self._offer = Offer(self._offers, self.generation + 1, "offered", read.raw, read.files.read)
        self._deaths = 0
        self._answer_by = time.monotonic() + ANSWER_LIMIT_S
        self._handover.write(self._offer)
        return True

    def _follow_answers(self, offer: Offer) -> bool:
        """Adopt the offer once every worker has started it; withdraw it where one cannot, or does not in time."""
        answers = self._handover.answers(offer.number)
        if why := self._why_not(answers):
            self._offer = None
            self._handover.write(Offer(offer.number, offer.generation, "withdrawn", b""))
            self._refuse(why)
            return True
        if all(answers):
            self._offer = None
            self._handover.write(Offer(offer.number, offer.generation, "adopted", offer.raw, offer.secrets))
            self._adopt()
            return True
        return False

    def _why_not(self, answers: list[bool | None]) -> str:
        """Return why the offer is withdrawn; empty where it is not."""
        if False in answers:
            return f"worker {answers.index(False) + 1} cannot start it; its reason is above"
        if self._deaths >= MAX_DEATHS:
            return "workers ended while they started it"
        if None in answers and time.monotonic() > self._answer_by:
            return f"worker {answers.index(None) + 1} did not start it within {ANSWER_LIMIT_S:g} s"
        return ""

    def worker_died(self) -> None:
        """Note that a worker ended unexpectedly."""
        self._deaths += 1

    def _adopt(self) -> None:
        if restart := needs_restart(self.loaded.config, self._candidate.config):
            log.warning("reload_needs_restart", settings=restart)
        self.loaded = Loaded(after_reload(self.loaded.config, self._candidate.config), self._candidate.document)
        self.generation += 1
        self._handover.refuse(None)
        self._metrics.reloaded(taken_up=True)

    def _refuse(self, reason: str) -> None:
        log.error("reload_refused", reason=reason, generation=self.generation)
        self._handover.refuse(RefusedReload(reason, time.time()))
        self._metrics.reloaded(taken_up=False)

    def _request_reload(self, *_: object) -> None:
        self._reload_requested = True

    def _versions(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return the version of the file and of each secret's file."""
        return tuple(map(durable.version, (self._path, *self._secrets)))


class ConfigReport(msgspec.Struct, frozen=True):
    """The report of a test: the names of the chain's plugins, warnings, and the bound of every balance."""

    plugins: list[str] = []
    warnings: list[str] = []
    exposure: Exposure | None = None


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the process: first the plugin at work, as the beginning of an error about it, and then a result."""

    at: str = ""
    error: str = ""
    misconfigured: bool = False
    report: ConfigReport | None = None


class ConfigTest:
    """The test of one configuration, which begins at once. To be used as a context manager: the process is killed at the end."""

    def __init__(
        self, loaded: Loaded, url: str | None = None, *, limit_s: float = START_LIMIT_S, before: Config | None = None
    ) -> None:
        """Try `loaded`, with the store at `url`, for `limit_s`; and where it takes the place of `before`, its new credentials."""
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s + KILLED_AFTER_S
        self._process = Forked(partial(_run, loaded, url, limit_s, before))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> ConfigReport:
        """Return the report. Raises `Misconfigured`, and `GatewayError` for what may pass."""
        while (report := self.poll()) is None:
            self._process.wait()
        return report

    def poll(self) -> ConfigReport | None:
        """Return the report, or None while the test runs. Raises what `wait` raises."""
        if self._process.has_ended():
            return self._result()
        if time.monotonic() > self._deadline:
            self.close()
            at = self._lines()[-1].at if self._lines() else ""
            raise GatewayError(f"{at}did not come to an end within {self._limit_s:g} s")
        return None

    def close(self) -> None:
        """Kill the process if it still runs."""
        self._process.close()

    def _lines(self) -> list[_Line]:
        return [msgspec.json.decode(line, type=_Line) for line in self._process.written.splitlines()]

    def _result(self) -> ConfigReport:
        self.close()
        lines = self._lines() or [_Line()]
        last = lines[-1]
        if last.report is not None:
            return last.report
        if last.error:
            raise (Misconfigured if last.misconfigured else GatewayError)(last.error)
        raise Misconfigured(f"{last.at}ended its process with {self._process.ending}")


def _run(loaded: Loaded, url: str | None, limit_s: float, before: Config | None, writing: int) -> None:
    """Do the test in the new process, and end the process. Never returns."""
    write = partial(write_line, writing)

    def note(wrong: Callable[[str], Misconfigured], name: str) -> None:
        write(_Line(at=plain(f"{wrong('')}'{name}' ")))

    def overdue(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"it takes longer than {limit_s:g} s")

    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, overdue)
        signal.setitimer(signal.ITIMER_REAL, limit_s + KILLED_AFTER_S / 3)
        report = _examine(loaded, url, limit_s, note)
        if before is not None:
            asyncio.run(_try_new_credentials(before, loaded))
        write(_Line(report=report))
    except GatewayError as error:
        write(_Line(error=plain(str(error)), misconfigured=isinstance(error, Misconfigured)))
    except BaseException as error:
        write(_Line(error=plain(f"the test of the configuration failed: {error_text(error)}")))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _examine(loaded: Loaded, url: str | None, limit_s: float, note: loading.Note) -> ConfigReport:
    chain = loading.build(loaded, note=note)
    if loaded.config.alerts is not None:
        for receiver in loaded.config.alerts.receivers:
            secrets_of(loaded.config, receiver)
    exposure = exposure_of(loaded.config, chain)
    report = ConfigReport(
        [entry.name for entry in chain.entries],
        [*warnings(chain.entries), *mistakes(loaded.config, chain), *credential_warnings(loaded.config.channels)],
        exposure,
    )
    if url is not None:
        asyncio.run(_start_and_stop(loaded, url, chain, limit_s, lambda entry: note(entry.wrong, entry.name)))
    return report


async def _try_new_credentials(before: Config, loaded: Loaded) -> None:
    """Ask the upstreams of channels that were there before with their new credentials. Raises `Misconfigured` for a 401.

    Those of another API than OpenAI's are not asked: their credentials go elsewhere.
    """
    new = [
        (name, channel, credential)
        for name, channel in loaded.config.channels.items()
        if (old := before.channels.get(name)) is not None
        and not (channel.dialect or channel.operations[0].startswith("messages"))
        for credential in channel.credentials
        if credential not in old.credentials
    ]
    statuses = await asyncio.gather(*(probes.status_of(channel, credential) for _, channel, credential in new))
    for (name, _, _), status in zip(new, statuses, strict=True):
        if status == 401:
            text = "its upstream refuses the new credential (401), so the one before is kept; correct it"
            raise loaded.document.wrong(("channels", name), text)


async def _start_and_stop(
    loaded: Loaded, url: str, chain: Chain, limit_s: float, starting: Callable[[Entry], None]
) -> None:
    async with Store.open(loaded.config, url) as store:
        await chain.start(services_of(loaded.config, store), limit_s=limit_s, starting=starting)
        await chain.stop()
