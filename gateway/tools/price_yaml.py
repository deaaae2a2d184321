"""Models of the configuration as YAML, to be pasted in place of what the file has: whole entries, with exact decimals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
import yaml

from gateway.config.model import Model, Serving, Tier
from gateway.config.section import Section
from gateway.tools.price_entry import plain

FIRST: Final = (
    "use",
    "model",
    "weight",
    "priority",
    "above",
    "input",
    "cached_input",
    "cache_write",
    "output",
    "request",
    "tiers",
)
LAST: Final = ("channels", "cost")
SAFE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
WIDTH: Final = 10_000


class _Flow(dict[str, Any]):
    """A mapping on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes decimals as they are, quotes every name that may be read as something else, and indents lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _decimal(dumper: yaml.SafeDumper, value: Decimal) -> yaml.Node:
    text = plain(value)
    return dumper.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if SAFE.fullmatch(value) else '"')


def _flow(dumper: yaml.SafeDumper, value: _Flow) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=True)


_Dumper.add_representer(Decimal, _decimal)
_Dumper.add_representer(str, _text)
_Dumper.add_representer(_Flow, _flow)


def models_yaml(models: Mapping[str, Model]) -> str:
    """Return the section `models:` with these entries. What has its default is left out."""
    data = {"models": {name: _plain(model) for name, model in models.items()}}
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH))


def _plain(section: Section) -> dict[str, Any]:
    values = {
        field.encode_name: getattr(section, field.name)
        for field in msgspec.structs.fields(section)
        if field.required or getattr(section, field.name) != field.default
    }
    names = sorted(values, key=lambda name: FIRST.index(name) if name in FIRST else 50 + (name in LAST))
    return {name: _value(values[name]) for name in names}


def _value(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, Serving) and value == Serving(value.use):
        return value.use
    if isinstance(value, Tier) or (isinstance(value, Serving) and value.cost is None):
        return _Flow(_plain(value))
    return _plain(value) if isinstance(value, Section) else value
