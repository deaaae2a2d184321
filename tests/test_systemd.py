"""The commands of deploy/install.md, "systemd", work word for word: tried in another root folder, without what needs systemd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.config import schema

ROOT = Path(__file__).parent.parent
NOT_HERE = ("useradd", "python3 -m venv", "/opt/sluicegate/bin/pip", "systemctl")


def commands() -> list[str]:
    section = (ROOT / "deploy" / "install.md").read_text().partition("## systemd")[2]
    block = re.search(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def moved(text: str, folder: Path) -> str:
    """Return a text with its absolute paths below `folder`."""
    return re.sub(r"(?<![\w.])/(etc|usr|var|opt)(?=/)", rf"{folder}/\1", text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a root folder in which the commands have been run that make files."""
    for name in ("etc/systemd/system", "usr/local/sbin", "var/lib/sluicegate", "opt/sluicegate/bin"):
        (tmp_path / name).mkdir(parents=True)
    here = [line for line in commands() if not line.startswith(NOT_HERE)]
    assert len(here) == len(commands()) - 5
    script = moved("\n".join(here), tmp_path).replace(" -g sluicegate", "")
    done = subprocess.run(["sh", "-ec", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path


def test_the_commands_leave_a_configuration_that_loads_with_the_environment_file(machine: Path) -> None:
    environment = machine / "etc/sluicegate/environment"
    assert environment.stat().st_mode & 0o777 == 0o600
    given = dict(line.split("=", 1) for line in environment.read_text().splitlines())
    config = schema.load(machine / "etc/sluicegate/gateway.yaml", given).config
    assert str(config.data_path) == str(machine / "var/lib/sluicegate/data")
    unit = (machine / "etc/systemd/system/sluicegate.service").read_text()
    for path in ("/etc/sluicegate/environment", "/etc/sluicegate/gateway.yaml", "/opt/sluicegate/bin/gateway"):
        assert path in unit


def test_the_script_runs_commands_as_the_service_does(machine: Path) -> None:
    script = machine / "usr/local/sbin/sluicegate"
    script.write_text(moved(script.read_text().replace("#!/bin/sh", "#!//bin/sh"), machine))
    runuser = machine / "opt/runuser"
    runuser.write_text('#!/bin/sh\necho "$@"\necho "$OPENAI_API_KEY $GATEWAY_CONFIG"\npwd\n')
    runuser.chmod(0o755)
    search = {"PATH": f"{runuser.parent}:{os.environ['PATH']}"}
    done = subprocess.run([script, "account", "list"], env=search, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"-u sluicegate -- {machine}/opt/sluicegate/bin/gateway account list",
        f"KEY {machine}/etc/sluicegate/gateway.yaml",
        f"{machine}/var/lib/sluicegate",
    ]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_accepts_the_units(machine: Path) -> None:
    folder = machine / "etc/systemd/system"
    unit = folder / "sluicegate.service"
    unit.write_text(unit.read_text().replace("/opt/sluicegate/bin/gateway", "/bin/true"))
    files = [str(unit), str(folder / "sluicegate.socket")]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
