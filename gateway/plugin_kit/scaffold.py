"""The package of a new plugin, written from the files in `gateway/templates/plugin`."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final

from gateway.chain import loading

TEMPLATES: Final = Path(str(files("gateway"))) / "templates" / "plugin"
SUFFIX: Final = ".txt"
MAX_NAME: Final = 64
IMPORTED: Final = {"Caller", "Exchange", "Path", "Plugin", "Refused", "Services"}
"""What the templates import."""


def write(name: str, into: Path) -> Path:
    """Write the package `name` to a new folder of that name in `into`, and return the folder.

    Existing files are never overwritten. Raises `ValueError` with a cure if the name cannot be used, and `OSError`.
    """
    module = name.replace("-", "_")
    _check(name, module)
    folder = into / name
    if folder.exists():
        raise ValueError(f"{folder} already exists: choose another name, or another --into")
    words = {"name": name, "module": module, "class_name": _class_name(name), "version": version("sluicegate")}
    files = {
        folder / _target(template, module): Template(template.read_text(encoding="utf-8")).substitute(words)
        for template in sorted(TEMPLATES.rglob(f"*{SUFFIX}"))
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _target(template: Path, module: str) -> str:
    """Return the path of a template's text inside the package's folder."""
    path = template.relative_to(TEMPLATES).as_posix().removesuffix(SUFFIX)
    return ".gitignore" if path == "gitignore" else re.sub(r"plugin(?=\.py$)", module, path)


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _check(name: str, module: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > MAX_NAME:
        raise ValueError(f"`{name}` cannot be a name: use a-z, 0-9 and single hyphens, as in office-hours")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or _class_name(name) in IMPORTED:
        raise ValueError(
            f"`{name}` is taken by Python or by the gateway: choose a name of two words, as in {name}-rules"
        )
    if name in loading.installed():
        raise ValueError(f"a plugin called `{name}` is installed already: choose another name")
    if find_spec(module) is not None:
        raise ValueError(f"a module called `{module}` can be imported already: choose another name")
