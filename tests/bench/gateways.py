"""The base class of the measured gateways, and this project's gateway with its whole chain."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from tests.bench.distant_store import distant_store
from tests.bench.encryption import AUTHORITY, CERTIFICATE, KEY, write_certificate
from tests.bench.machine import commit
from tests.bench.process import ROOT, family, running
from tests.bench.question import PATH, question
from tests.cli.processes import free_port
from tests.forked import FORKED

OURS: Final = "sluicegate"
API_KEY: Final = "sk-bench-channel-0123456789"
CHAIN: Final = ("usage-logger", "auth", "rate-limit", "quota")
GENEROUS: Final = {
    "rate-limit": "{requests_per_minute: 10000000, tokens_per_minute: 100000000, concurrent: 20000}",
    "quota": "{max_holds: 100000}",
}


def python_of(checkout: Path) -> str:
    """Return the Python of a checkout: of its own `.venv`, and for this checkout the one that runs."""
    return sys.executable if checkout == ROOT else str(checkout / ".venv/bin/python")


class Gateway:
    """A gateway to measure: it serves the chat path on `port` and forwards requests to the port `upstream`."""

    name: str
    description: ClassVar[str] = "plain proxy"
    streams: ClassVar[int] = 400
    """The number of streams of the paced load: as many as the gateway carries."""
    rounds: ClassVar[int] = 100
    """At most so many rounds of the paced load."""

    starts_s: ClassVar[float] = 0.5
    """About how long it takes to start and to stop, from which the length of a benchmark is estimated."""

    answered_s = 0.0
    """How long the last start took until the first answer."""
    checkout = ROOT
    tls = False
    token = "none"
    headers: Mapping[str, str] = MappingProxyType({})
    environment: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(self, folder: Path, upstream: int) -> None:
        self.folder, self.upstream, self.port = folder, upstream, free_port()
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def command(self) -> list[str]:
        """The command that serves until SIGTERM."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        raise NotImplementedError

    @contextmanager
    def serving(self, cores: str = "0") -> Iterator[list[int]]:
        """Run the gateway and yield the ids of its processes, without the store's."""
        log, began = self.folder / "log", time.perf_counter()
        with running(self.command, cores, log, self.answers, self.environment, self.checkout) as pid:
            self.answered_s = round(time.perf_counter() - began, 3)
            yield family(pid)

    def answers(self) -> bool:
        """Return whether a request gets a complete response."""
        context = ssl.create_default_context(cafile=self.folder / AUTHORITY) if self.tls else None
        kind = partial(HTTPSConnection, context=context) if self.tls else HTTPConnection
        connection = kind("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", PATH, *question(self.token, "1 0 150", self.headers))
            answer = connection.getresponse()
            return b"[DONE]" in answer.read() and answer.status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class Upstream(Gateway):
    """The upstream without a gateway. The difference to it is what a gateway adds."""

    name = "upstream"
    description = "nothing"

    def __init__(self, folder: Path, upstream: int) -> None:
        super().__init__(folder, upstream)
        self.port = upstream

    @contextmanager
    def serving(self, cores: str = "0") -> Iterator[list[int]]:
        yield []


class Ours(Gateway):
    """This gateway, as it is in a checkout, with its whole chain and a channel that has an API key.

    `noops` plugins that do nothing and the plugins `more` are between quota and routing. `tls`: callers and the upstream use
    TLS. `distant`: the store is one millisecond away. A folder with data from an earlier run is used again.
    """

    description = "the whole chain, a real store"
    starts_s = 1.2

    def __init__(
        self,
        folder: Path,
        upstream: int,
        *,
        name: str = OURS,
        checkout: Path = ROOT,
        noops: int = 0,
        workers: int = 1,
        more: Iterable[str] = (),
        tls: bool = False,
        distant: bool = False,
    ) -> None:
        super().__init__(folder, upstream)
        self.name, self.checkout, self.workers, self.tls, self.distant = name, checkout, workers, tls, distant
        uses = [f"{{use: {name}, with: {GENEROUS.get(name, '{}')}}}" for name in CHAIN]
        uses += [f"{{use: 'noop:Noop', name: noop-{number}}}" for number in range(noops)]
        self.plugins = [*uses, *more, "{use: model-routing}"]
        self.configuration = folder / "bench.yaml"
        shutil.copy(Path(__file__).with_name("noop.py"), folder)
        if tls:
            write_certificate(folder)
        self.program = [python_of(checkout), "-m", "gateway"]

    @property
    def command(self) -> list[str]:
        return [*self.program, "serve", "-c", str(self.configuration)]

    @property
    def version(self) -> str:
        project = tomllib.loads((self.checkout / "pyproject.toml").read_text())["project"]
        return f"{project['version']} at {commit(self.checkout)}"

    @contextmanager
    def serving(self, cores: str = "0") -> Iterator[list[int]]:
        with ExitStack() as stack:
            self._prepare(stack.enter_context(distant_store(self.folder, cores)) if self.distant else "embedded")
            yield stack.enter_context(super().serving(cores))

    def run(self, *words: str) -> str:
        """Run one of its commands and return the output. Raise `subprocess.CalledProcessError` if it fails."""
        program = [FORKED, "-m", "gateway"] if self.checkout == ROOT else self.program
        command = [*program, *words, "-c", str(self.configuration)]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=self.checkout).stdout

    def _prepare(self, redis: str) -> None:
        """Write the configuration and, the first time, create the account and the token."""
        upstream = f"base_url: '{'https' if self.tls else 'http'}://127.0.0.1:{self.upstream}/v1', api_key: {API_KEY}"
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            f"workers: {self.workers}",
            "admin: null",
            f"redis: {redis}",
            f"data: {self.folder}/data",
            f"channels: {{bench: {{{upstream}{f', ca_file: {self.folder / AUTHORITY}' if self.tls else ''}}}}}",
            "models: {bench: {input: 0.5, output: 1.5, max_output_tokens: 4096, channels: [bench]}}",
            "groups: {default: {}}",
            f"plugins: [{', '.join(self.plugins)}]",
        ]
        if self.tls:
            lines.append(f"tls: {{certificate: {self.folder / CERTIFICATE}, key: {self.folder / KEY}}}")
        self.configuration.write_text("\n".join(lines) + "\n")
        if self.token == Gateway.token:
            if not (self.folder / "data").exists():
                self.run("init")
                self.run("account", "create", "bench", "--credit", "1000000")
            self.token = next(word for word in self.run("token", "create", "bench").split() if word.startswith("sk-"))
