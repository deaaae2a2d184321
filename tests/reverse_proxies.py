"""The shipped configurations of nginx and Caddy, run by the real programs in front of a gateway of a test."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.cli.processes import free_port
from tests.patience import PATIENCE_S

DEPLOY: Final = Path(__file__).parent.parent / "deploy"
AUTHORITY: Final = trustme.CA()


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Write a certificate of `AUTHORITY` for localhost. Return the files of certificate, key and authority."""
    folder.mkdir(exist_ok=True)
    files = folder / "cert.pem", folder / "key.pem", folder / "authority.pem"
    issued = AUTHORITY.issue_cert("localhost")
    files[0].write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files[1])
    AUTHORITY.cert_pem.write_to_path(files[2])
    return files


def version_of(*command: str) -> tuple[int, ...]:
    """Return the first two numbers of a program's version."""
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(map(int, re.findall(r"\d+", run.stdout + run.stderr)[:2]))


def ends_cut_streams_as_whole(name: str) -> bool:
    """Return whether the installed proxy is a Caddy that is older than deploy/network.md demands."""
    return name == "caddy" and version_of("caddy", "version") < (2, 8)


def with_prefix(text: str) -> str:
    """Return the configuration of nginx or Caddy with the path prefix /ai, as deploy/network.md says."""
    text = text.replace(
        "location / {\n            proxy_pass http://gateway;", "location /ai/ {\n proxy_pass http://gateway/;"
    )
    return re.sub(r"\treverse_proxy (.*\n(?:\t\t.*\n)*\t\}\n)", r"handle_path /ai/* {\nreverse_proxy \1}\n", text)


def nginx(folder: Path, port: int, gateway_port: int) -> tuple[str, list[str]]:
    """Return the shipped nginx.conf for these ports, and the command that runs it."""
    cert, key, _ = certificates(folder)
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in {
        "/tmp/": f"{folder}/",
        "8443": f"127.0.0.1:{port}",
        "gateway:8080": f"127.0.0.1:{gateway_port}",
        "/etc/nginx/tls/cert.pem": str(cert),
        "/etc/nginx/tls/key.pem": str(key),
        "worker_processes auto": "worker_processes 1",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return text, ["nginx", "-p", str(folder), "-c", str(folder / "proxy.conf"), "-g", "daemon off;"]


def caddy(folder: Path, port: int, gateway_port: int) -> tuple[str, list[str]]:
    """Return the shipped Caddyfile for these ports, and the command that runs it."""
    cert, key, _ = certificates(folder)
    text = (DEPLOY / "Caddyfile").read_text()
    for old, new in {
        "\tadmin off\n": f"\tadmin off\n\tskip_install_trust\n\tauto_https off\n\tstorage file_system {folder}/caddy\n"
        "\tservers {\n\t\tprotocols h1 h2\n\t}\n",
        "{$GATEWAY_SITE} {": f"https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {cert} {key}",
        "{$GATEWAY_ADDRESS:127.0.0.1:8080}": f"127.0.0.1:{gateway_port}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return text, ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "proxy.conf")]


Shipped = Callable[[Path, int, int], tuple[str, list[str]]]
SHIPPED: Final[dict[str, Shipped]] = {"nginx": nginx, "caddy": caddy}


@asynccontextmanager
async def shipped_proxy(
    name: str, folder: Path, gateway_port: int, change: Callable[[str], str] = lambda text: text
) -> AsyncIterator[str]:
    """Run nginx or Caddy with the shipped configuration, which `change` may change. Yield `https://localhost:PORT`.

    Skips the test where the program is not installed.
    """
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    text, command = SHIPPED[name](folder, port, gateway_port)
    (folder / "proxy.conf").write_text(change(text))
    with (folder / "proxy.log").open("wb") as log:
        environment = {**os.environ, "HOME": str(folder)}
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await _listens(port):
                assert process.returncode is None, (folder / "proxy.log").read_text()
                await asyncio.sleep(0.02)
        yield f"https://localhost:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
