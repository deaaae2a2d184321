"""The base class of the measured gateways, and this project's gateway with its whole chain."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from tests.bench.process import ROOT, family, free_port, running
from tests.bench.question import PATH, question

CHAIN: Final = ("usage-logger", "auth", "rate-limit", "quota")
GENEROUS: Final = {
    "rate-limit": "{requests_per_minute: 10000000, tokens_per_minute: 100000000, concurrent: 20000}",
    "quota": "{max_holds: 100000}",
}


class Gateway:
    """A gateway to measure: it serves the chat path on `port` and forwards requests to the port `upstream`."""

    name: ClassVar[str]
    description: ClassVar[str] = "plain proxy"
    streams: ClassVar[int] = 400
    """The number of streams of the paced load: as many as the gateway carries."""

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
        with running(self.command, cores, self.folder / "log", self.answers, self.environment) as pid:
            yield family(pid)

    def answers(self) -> bool:
        """Return whether a request gets a complete response."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
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
    """This gateway, with `noops` plugins that do nothing and the plugins `more` between quota and routing.

    A folder with data from an earlier run is used again.
    """

    name = "sluicegate"
    description = "the whole chain, a real store"

    def __init__(
        self, folder: Path, upstream: int, *, noops: int = 0, workers: int = 1, more: Iterable[str] = ()
    ) -> None:
        super().__init__(folder, upstream)
        uses = [f"{{use: {name}, with: {GENEROUS.get(name, '{}')}}}" for name in CHAIN]
        uses += [f"{{use: 'tests.bench.noop:Noop', name: noop-{number}}}" for number in range(noops)]
        uses += more
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            f"workers: {workers}",
            "admin: null",
            f"data: {folder}/data",
            f"channels: {{bench: {{base_url: 'http://127.0.0.1:{upstream}/v1'}}}}",
            "models: {bench: {input: 0.5, output: 1.5, max_output_tokens: 4096, channels: [bench]}}",
            "groups: {default: {}}",
            f"plugins: [{', '.join([*uses, '{use: model-routing}'])}]",
        ]
        self.configuration = folder / "bench.yaml"
        self.configuration.write_text("\n".join(lines) + "\n")
        if not (folder / "data").exists():
            self.run("account", "create", "bench", "--credit", "1000000")
        self.token = next(word for word in self.run("token", "create", "bench").split() if word.startswith("sk-"))

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "gateway", "serve", "-c", str(self.configuration)]

    @property
    def version(self) -> str:
        return version("sluicegate")

    def run(self, *words: str) -> str:
        """Run one of its commands and return the output. Raise `subprocess.CalledProcessError` if it fails."""
        command = [sys.executable, "-m", "gateway", *words, "-c", str(self.configuration)]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
