"""What is measured: this gateway with its whole chain, and nginx as a plain proxy. Each has core 0 for itself."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

ROOT: Final = Path(__file__).parents[2]
CHAIN: Final = ("usage-logger", "auth", "rate-limit", "quota")
GENEROUS: Final = {
    "rate-limit": "{requests_per_minute: 10000000, tokens_per_minute: 100000000, concurrent: 20000}",
    "quota": "{max_holds: 100000}",
}
NOOP: Final = '''from gateway import Exchange, Plugin


class Noop(Plugin):
    """Is asked at both ends and does nothing."""

    async def on_request(self, exchange: Exchange) -> None:
        pass

    async def on_end(self, exchange: Exchange) -> None:
        pass
'''
NGINX: Final = """worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  upstream up {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://up;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def pinned(core: int) -> list[str]:
    """Words that keep a command on one core, where there are two."""
    return ["taskset", "-c", str(core)] if shutil.which("taskset") and (os.cpu_count() or 1) > 1 else []


@contextmanager
def running(command: list[str], port: int, core: int, **settings: object) -> Iterator[int]:
    """A process that listens on `port`; SIGTERM at the end."""
    process = subprocess.Popen([*pinned(core), *command], stdout=subprocess.DEVNULL, **settings)  # type: ignore[call-overload]
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        time.sleep(0.5)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def family(pid: int) -> list[int]:
    """A process and those it started, but for the store: it is not what is compared."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    found = [pid]
    for parent in found:
        found += [
            int(p) for p, above, name in rows if int(above) == parent and not name.startswith(("valkey", "redis"))
        ]
    return found


class Ours:
    """This gateway; so many plugins that do nothing stand between the quota and the routing."""

    def __init__(self, folder: Path, upstream: int, *, noops: int = 0) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir(parents=True)
        (folder / "noop.py").write_text(NOOP)
        uses = [f"{{use: {name}, with: {GENEROUS.get(name, '{}')}}}" for name in CHAIN]
        uses += [f"{{use: 'noop:Noop', name: noop-{number}}}" for number in range(noops)]
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            "admin: null",
            f"data: {folder}/data",
            f"channels: {{bench: {{base_url: 'http://127.0.0.1:{upstream}/v1'}}}}",
            "models: {bench: {input: 0.5, output: 1.5, max_output_tokens: 4096, channels: [bench]}}",
            "groups: {default: {}}",
            f"plugins: [{', '.join([*uses, '{use: model-routing}'])}]",
        ]
        (folder / "bench.yaml").write_text("\n".join(lines) + "\n")
        self.command = [sys.executable, "-m", "gateway", "serve", "-c", str(folder / "bench.yaml")]
        self._run("account", "create", "bench", "--credit", "1000000")
        self.token = next(word for word in self._run("token", "create", "bench").split() if word.startswith("sk-"))

    @contextmanager
    def serving(self) -> Iterator[list[int]]:
        with running(self.command, self.port, 0, cwd=ROOT) as pid:
            urlopen(
                f"http://127.0.0.1:{self.port}/readyz", timeout=20
            ).close()  # its worker runs, not only its supervisor
            yield family(pid)

    def _run(self, *words: str) -> str:
        command = [sys.executable, "-m", "gateway", *words, "-c", str(self.folder / "bench.yaml")]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


class Nginx:
    """The yardstick."""

    token = "none"

    def __init__(self, folder: Path, upstream: int) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir(parents=True)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, upstream=upstream, port=self.port))

    @contextmanager
    def serving(self) -> Iterator[list[int]]:
        with running(["nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")], self.port, 0) as pid:
            yield family(pid)
