"""Builds the compiled modules, see `gateway/base/compiled.py`, where Cython and a C compiler are.

Without them, and with `GATEWAY_PURE=1`, the gateway is installed without any and runs in pure Python. An editable install gets
the modules beside their sources, a wheel gets them inside and is then one for this platform. `pip install --verbose` shows what
was done.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = tuple(
    Path("gateway", name)
    for name in ("chat/_plain.pyx", "proxy/_pass.pyx", "server/_head.pyx", "store/client/_pack.pyx")
)
SHARED = Path(__file__).parents[1] / "gateway/chat/_plain.pxd"


class PassBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the modules, and include them in the wheel. Where one is not built, none is used."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        sources = [Path(self.root, source) for source in SOURCES]
        targets = [source.with_name(f"{source.stem}{suffix}") for source in sources]
        for target in targets:
            target.unlink(missing_ok=True)
        if os.environ.get("GATEWAY_PURE", "0") not in ("", "0"):
            print("sluicegate: pure Python, as GATEWAY_PURE is set", file=sys.stderr)
            return
        try:
            for source, target in zip(sources, targets, strict=True):
                build(source, target)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            for target in targets:
                target.unlink(missing_ok=True)
            print(f"sluicegate: pure Python, as the compiled modules were not built: {error}", file=sys.stderr)
            return
        build_data["artifacts"].extend(str(target.relative_to(self.root)) for target in targets)
        if version == "standard":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def build(source: Path, target: Path, *flags: str) -> None:
    """Compile a Cython file into an extension module. Raises `ImportError`, `OSError` or `CalledProcessError`."""
    from Cython.Compiler.Main import compile as to_c  # type: ignore[import-not-found]

    def words(*names: str) -> list[str]:
        return [
            word for name in names for word in shlex.split(os.environ.get(name) or sysconfig.get_config_var(name) or "")
        ]

    digest = sha256(source.read_bytes() + SHARED.read_bytes()).hexdigest()[:16]
    with tempfile.TemporaryDirectory() as folder:
        c_file, built = Path(folder, f"{source.stem}.c"), Path(folder, target.name)
        if to_c(str(source), output_file=str(c_file), language_level=3).num_errors:
            raise ImportError("Cython did not accept the source")
        link = words("LDSHARED") or [*words("CC"), "-shared"]
        command = [*link, *words("CFLAGS", "CCSHARED"), "-O2", *flags, f'-DSOURCE_DIGEST="{digest}"']
        include = sysconfig.get_path("include")
        subprocess.run([*command, f"-I{include}", str(c_file), "-o", str(built)], check=True, capture_output=True)
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(built.read_bytes())
        partial.chmod(0o755)
        partial.replace(target)  # a gateway that runs keeps the file that it has loaded
