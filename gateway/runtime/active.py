"""The configuration that the parent process starts workers with. It follows the file, the files of its
secrets, and SIGHUP.

A changed file is read once, by the parent, and tried in a process of its own. Then every worker starts a chain from it. Only
when all have done so is it adopted; until then, and where one of them cannot, everything stays as it is.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

from gateway.chain.failures import error_text
from gateway.chain.starting import START_LIMIT_S
from gateway.config import document
from gateway.config.schema import Loaded, load
from gateway.config.secret_files import paths_in
from gateway.errors import GatewayError
from gateway.log import Logger
from gateway.management.desk import RefusedReload
from gateway.metrics.registry import Metrics
from gateway.runtime.handover import Handover, Offer
from gateway.runtime.reload import after_reload, needs_restart
from gateway.runtime.trial import Trial

ANSWER_LIMIT_S: Final = START_LIMIT_S + 10
"""How long the workers may take to start a chain, one that has died and its successor included."""
MAX_DEATHS: Final = 2
"""Workers that may end while an offer is open: one may have another reason."""

log = Logger("gateway.runtime.active")

Version = tuple[int, ...]


class ActiveConfig:
    """The last good configuration. `refresh` is called again and again, and never waits."""

    def __init__(self, loaded: Loaded, metrics: Metrics, handover: Handover, url: str) -> None:
        """Begin with `loaded`, and from now on handle SIGHUP in this process. `url`: the store's, for trials."""
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
        self._trial: Trial | None = None
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
            if self._trial is not None:
                return self._follow_trial(self._trial)
            if self._offer is not None:
                return self._follow_answers(self._offer)
            self._look_at_file()
        except GatewayError as error:
            self._refuse(str(error))
        except Exception as error:
            self._refuse(error_text(error))
        return False

    def _look_at_file(self) -> None:
        """Begin the trial of the file, if it or a secret of it changed, or SIGHUP came."""
        versions = self._versions()
        if versions[0] is None or (versions == self._version and not self._reload_requested):
            return
        self._version, self._reload_requested = versions, False
        raw = document.read(self._path)
        self._secrets = paths_in(raw, self._path.parent)
        self._version = (versions[0], *self._versions()[1:])  # what changes from here on is seen by the next look
        self._candidate = load(self._path, raw=raw)
        self._trial = Trial(self._candidate, self._url)

    def _follow_trial(self, trial: Trial) -> bool:
        """Offer the file to the workers once its trial has succeeded."""
        try:
            if trial.poll() is None:
                return False
        except BaseException:
            self._trial = None
            raise
        self._trial = None
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

    def _versions(self) -> tuple[Version | None, ...]:
        """Return the version of the file and of each secret's file."""
        return tuple(map(_version, (self._path, *self._secrets)))


def _version(path: Path) -> Version | None:
    """Return what differs between versions of a file, also when a symbolic link was replaced; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
