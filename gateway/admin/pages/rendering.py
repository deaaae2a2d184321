"""How pages are written: the templates, the filters that they use, and the files beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

import aiohttp_jinja2
import jinja2
import msgspec
from aiohttp import web
from markupsafe import Markup, escape

from gateway.amounts import MICROS, amount
from gateway.tools.plain_text import counted, shown

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
TYPES: Final[Mapping[str, str]] = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
KEPT: Final = "public, max-age=31536000, immutable"
"""What is said of a file beside the pages: its address has a digest of it."""
DECIMALS: Final = 6
DAY_S: Final = 86_400


class Assets:
    """The files beside the pages, by their names: style sheet, scripts, icon. They are read when the process starts."""

    def __init__(self) -> None:
        folder = files("gateway.admin.pages").joinpath("static")
        self._files = {each.name: each.read_bytes() for each in folder.iterdir()}
        self._digests = {name: sha256(content).hexdigest()[:12] for name, content in self._files.items()}

    def url(self, name: str) -> str:
        """Return the address of a file."""
        return f"/static/{name}?{self._digests[name]}"

    async def get(self, request: web.Request) -> web.Response:
        """Answer with a file. Nobody needs to have entered: there is nothing secret in them."""
        name = request.match_info["name"]
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound
        response = web.Response(body=content, content_type=TYPES[name.rpartition(".")[2]], charset="utf-8")
        response.headers["Cache-Control"] = KEPT
        return response


def set_up(application: web.Application, assets: Assets) -> None:
    """Let `application` have the templates."""
    environment = aiohttp_jinja2.setup(
        application,
        loader=jinja2.PackageLoader("gateway.admin.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = assets.url
    environment.filters |= {
        "money": money,
        "plain_money": amount,
        "count": count,
        "moment": moment,
        "span": span,
        "share": share,
        "instant": instant,
        "as_json": lambda value: shown(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()),
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
        "list_of": lambda name: (name, name),
    }


def money(micros: int | None) -> Markup:
    """Return an amount of which the decimal points of a column are below each other: zeros at the end take room unseen."""
    if micros is None:
        return Markup('<span class="none">unknown</span>')
    shown = amount(micros)
    rest = "0" * (DECIMALS - len(shown.partition(".")[2]))
    whole, _, decimals = shown.partition(".")
    text = f"{int(whole):,}" if whole.lstrip("-") != "0" else whole
    return Markup('<span class="money{}">{}.{}<i aria-hidden="true">{}</i></span>').format(
        " below" if micros < 0 else "", text.replace("-", "\u2212"), decimals, rest
    )


def count(number: int | None) -> str:
    """Return a number with commas between thousands."""
    return "" if number is None else f"{number:,}"


def span(ms: int | float | None) -> str:
    """Return a duration in the unit that people would use."""
    if ms is None:
        return ""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.1f} min"


def share(part: float) -> str:
    """Return a part of one in percent."""
    return f"{100 * part:.1f} %" if part else "0 %"


def moment(text: str | None) -> Markup:
    """Return a time in ISO 8601 as people read it, in UTC, with its seconds."""
    if not text:
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(text, text[:19].replace("T", " "))


def instant(seconds: float | None) -> Markup:
    """Return a time in seconds since 1970 as people read it, in UTC, with its minutes."""
    if seconds is None:
        return Markup("")
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), at.strftime("%Y-%m-%d %H:%M"))


def ago(seconds: float) -> str:
    """Return how long ago a time was, in words."""
    past = max(0, time.time() - seconds)
    for unit, name in ((DAY_S, "day"), (3600, "hour"), (60, "minute")):
        if past >= unit:
            return f"{counted(int(past // unit), name)} ago"
    return "just now"


def in_units(micros: int) -> float:
    """Return micros in units of the currency, for plots."""
    return micros / MICROS


def render(request: web.Request, template: str, context: Mapping[str, Any], status: int = 200) -> web.Response:
    """Return a page."""
    response = aiohttp_jinja2.render_template(template, request, context, status=status)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Referrer-Policy"] = "same-origin"  # with none at all, browsers send no origin with forms
    return response


__all__ = ["Assets", "Markup", "ago", "escape", "in_units", "render", "set_up"]
