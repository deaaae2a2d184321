"""The store of compose.yaml ends when it is asked to: its server is the first process, not the child of a shell."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from gateway.store.embedded import find_server
from tests.cli.processes import children
from tests.patience import PATIENCE_S, wait_until

COMPOSE = Path(__file__).parent.parent.parent / "deploy" / "compose.yaml"


def namespaces_allowed() -> bool:
    program = shutil.which("unshare")
    return program is not None and subprocess.run([program, "-pf", "true"], capture_output=True).returncode == 0


def shell_command(folder: Path) -> list[str]:
    """Return the service's command, as compose passes it on, with its data in `folder` and no TCP port."""
    shell, option, script = yaml.safe_load(COMPOSE.read_text())["services"]["valkey"]["command"]
    assert "dir /data" in script
    script = script.replace("$$", "$").replace("dir /data", f"dir {folder}\nport 0\nunixsocket {folder}/store.sock")
    return [shell, option, script]


@pytest.mark.skipif(not namespaces_allowed(), reason="no PID namespace may be made here")
async def test_the_store_ends_at_sigterm_as_the_first_process(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "valkey-server").symlink_to(find_server())
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "VALKEY_PASSWORD": "letters123"}
    process = await asyncio.create_subprocess_exec(
        "unshare", "-pf", "--kill-child", *shell_command(tmp_path), env=environment, stdout=subprocess.DEVNULL
    )
    try:
        await wait_until((tmp_path / "store.sock").exists)
        (first,) = children(process.pid)
        assert "letters123" not in children(process.pid)[first]
        os.kill(first, signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert (tmp_path / "appendonlydir").is_dir()
    finally:
        if process.returncode is None:
            process.kill()
