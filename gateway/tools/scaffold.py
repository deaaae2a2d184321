"""A new plugin's package, written from the templates beside this file."""

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

from gateway import loading

TEMPLATES: Final = Path(str(files("gateway"))) / "templates" / "plugin"
SUFFIX: Final = ".txt"
LONGEST_NAME: Final = 64
IMPORTED: Final = {"Caller", "Exchange", "Path", "Plugin", "Refused", "Services"}
"""What the templates import."""


def write(name: str, into: Path) -> Path:
    """Write the package `name` to a new folder of that name in `into`, and return the folder.

    Nothing that exists is written over. Raises `ValueError` with a cure for a name that cannot be used, and `OSError`.
    """
    module = name.replace("-", "_")
    _check(name, module)
    folder = into / name
    if folder.exists():
        raise ValueError(f"{folder} exists already: take another name, or another --into")
    words = {"name": name, "module": module, "class_name": _class_name(name), "version": version("sluicegate")}
    files = {
        folder / _place(template, module): Template(template.read_text(encoding="utf-8")).substitute(words)
        for template in sorted(TEMPLATES.rglob(f"*{SUFFIX}"))
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _place(template: Path, module: str) -> str:
    """Where a template's text goes, inside the package's folder."""
    place = template.relative_to(TEMPLATES).as_posix().removesuffix(SUFFIX)
    return ".gitignore" if place == "gitignore" else re.sub(r"plugin(?=\.py$)", module, place)


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _check(name: str, module: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > LONGEST_NAME:
        raise ValueError(f"`{name}` cannot be a name: use a-z, 0-9 and single hyphens, as in office-hours")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or _class_name(name) in IMPORTED:
        raise ValueError(f"`{name}` means something already: take a name of two words, as in {name}-rules")
    if name in loading.installed():
        raise ValueError(f"a plugin called `{name}` is installed already: take another name")
    if find_spec(module) is not None:
        raise ValueError(f"a module called `{module}` is there already: take another name")
