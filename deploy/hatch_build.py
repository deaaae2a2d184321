"""Builds the compiled modules, see `gateway/base/compiled.py`, where Cython and a C compiler are.

Without them, and with `GATEWAY_PURE=1`, the gateway is installed without any and runs in pure Python. They are in
`gateway/_compiled`, in an editable install and in a wheel, which is then one for this platform. `pip install --verbose` shows what
was done.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DIRECTIVES = {"annotation_typing": False, "binding": True, "language_level": 3}


class CompiledBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the modules, and include them in the wheel. Where one is not built, none is used."""
        compiled = load_compiled(Path(self.root))
        shutil.rmtree(compiled.FOLDER, ignore_errors=True)
        if os.environ.get("GATEWAY_PURE", "0") not in ("", "0"):
            print("sluicegate: pure Python, as GATEWAY_PURE is set", file=sys.stderr)
            return
        try:
            build(compiled, compiled.FOLDER)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(compiled.FOLDER, ignore_errors=True)
            print(f"sluicegate: pure Python, as the compiled modules were not built: {error}", file=sys.stderr)
            return
        build_data["artifacts"].extend(str(file.relative_to(self.root)) for file in compiled.FOLDER.iterdir())
        if version == "standard":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def load_compiled(root: Path) -> Any:
    """Return `gateway.base.compiled` without the rest of the gateway."""
    spec = spec_from_file_location("compiled", root / "gateway/base/compiled.py")
    if spec is None or spec.loader is None:
        raise ImportError("gateway/base/compiled.py is missing")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(compiled: Any, folder: Path, *flags: str) -> None:
    """Compile the modules into a folder. Raises `ImportError`, `OSError` or `CalledProcessError`."""
    from Cython.Compiler.Main import compile as to_c  # type: ignore[import-not-found]

    def words(*names: str) -> list[str]:
        return [
            word for name in names for word in shlex.split(os.environ.get(name) or sysconfig.get_config_var(name) or "")
        ]

    link = words("LDSHARED") or [*words("CC"), "-shared"]
    command = [*link, *words("CFLAGS", "CCSHARED"), "-O2", "-g0", "-w", *flags, f"-I{sysconfig.get_path('include')}"]
    command += shlex.split(os.environ.get("CFLAGS", ""))  # the last one counts
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as threads:
        runs: list[Future[Any]] = []
        for name in compiled.MODULES:
            for run in runs:
                if run.done():
                    run.result()  # a compiler that fails is found before Cython has translated all modules
            c_file = Path(temporary, f"{name}.c")
            stem = compiled.ROOT.joinpath(*name.split("."))
            source = next(path for suffix in (".py", ".pyx") if (path := stem.with_suffix(suffix)).exists())
            options = {"include_path": [str(compiled.ROOT)], "compiler_directives": DIRECTIVES}
            if to_c(str(source), output_file=str(c_file), full_module_name=name, **options).num_errors:
                raise ImportError(f"Cython did not accept {source}")
            arguments = [*command, str(c_file), "-o", str(folder / compiled.built(name).name)]
            runs.append(threads.submit(subprocess.run, arguments, check=True, capture_output=True))
        for run in runs:
            run.result()
    (folder / compiled.DIGESTS.name).write_text(compiled.digests())
