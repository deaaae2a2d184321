"""A view: one request for a page, who sends it, the client that does its actions, and the rendering of the page.

Forms are read within bounds, and only where they come from a page of this session. Plots are SVG that is made on the server:
widths are in percent and heights in pixels, so that one fits any screen unbent.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from hashlib import sha256
from importlib.resources import files
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp_jinja2
import jinja2
import msgspec
from aiohttp import web
from markupsafe import Markup

from gateway.admin.actions.action import Scope, refused
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.times import local
from gateway.admin.pages.login import User
from gateway.base.amounts import MICROS, amount, parsed, with_amounts
from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.base.text import shown
from gateway.config.schema import time_zone

USER: Final = web.RequestKey("user", User)
"""Where a request has who looks, once that is known."""

DONE: Mapping[str, str] = {
    "created": "The account is there. It can be credited now, and gets its first token below.",
    "changed": "Changed, from the next request on.",
    "credited": "Credited.",
    "credited-before": "This transaction was booked before, so that nothing was changed now.",
    "adjusted": "Adjusted.",
    "refunded": "Refunded, as far as the balance is not spent or held: see the ledger.",
    "suspended": "Suspended. Requests in progress end within two seconds.",
    "resumed": "Served again.",
    "closed": "Closed for good.",
    "token-disabled": "The token is refused from now on.",
    "token-enabled": "The token is accepted again.",
    "token-deleted": "The token is gone.",
    "channel-disabled": "The channel is called no more.",
    "channel-enabled": "The channel is called again.",
}
"""What pages say of what was done, by the words in their addresses."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
TYPES: Final[Mapping[str, str]] = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
KEPT: Final = "public, max-age=31536000, immutable"
"""What is said of a file beside the pages: its address has a digest of it."""
DECIMALS: Final = 6

LARGEST: Final = 32 * 1024
"""Bytes of a form."""
READ_S: Final = 30.0
MOST_FIELDS: Final = 100
PROOF: Final = "form"
"""The field that proves that a form was on a page of this session."""

_IN_WORDS: Final = (
    (r"Expected `int` >= 1", "it is to be more than 0"),
    (r"Expected `int` >= 0", "it is not to be below 0"),
    (r"Expected `int` <= .*", "it is too large"),
    (r"Expected `str` of length >= 1", "it is to be given"),
    (r"Expected `str` of length <= (\d+)", "it has at most {} characters"),
    (r"Expected `str` matching regex .*", "it has a character that is not allowed there, or too many of them"),
    (r"Expected `array` of length <= (\d+)", "there are at most {}"),
)

_LABELS: Final = {
    "day": "Budget a day",
    "week": "Budget a week",
    "month": "Budget a month",
    "total": "Budget in total",
    "session": "Budget a session",
    "requests": "Requests a day",
    "session_requests": "Requests a session",
    "requests_per_minute": "Requests a minute",
    "tokens_per_minute": "Tokens a minute",
    "concurrent": "Requests at once",
    "days": "Days until it expires",
    "transaction": "Transaction id",
}
"""What forms call the fields that they do not call by their names."""

Struct = TypeVar("Struct", bound=msgspec.Struct)
Line = TypeVar("Line")

HEIGHT: Final = 200
LINES: Final = 4
"""Lines of the grid above zero, about."""
LABELS: Final = 5


class Texts(dict[str, str]):
    """Texts by their names, an empty one for any other."""

    def __missing__(self, name: str) -> str:
        return ""


class PageSearch(NamedTuple):
    """What an address asks for of a list."""

    path: str
    asked: Texts

    @property
    def terms(self) -> str:
        """What is searched for, without where the page begins, as a query."""
        return urlencode({name: text for name, text in self.asked.items() if name != "after"})

    @property
    def next_page(self) -> str:
        """The address of the next page, to be followed by `after=`."""
        return f"{self.path}?{self.terms}&" if self.terms else f"{self.path}?"


class Sorting:
    """The order of a table's lines. `sort` of the address is a name, or with `-` before it the largest first.

    Each heading leads to its first order, then to its next one, and then back to the usual one.
    """

    def __init__(self, query: Mapping[str, str], headings: Mapping[str, Sequence[str]]) -> None:
        """`headings` that sort, with the orders that they lead to."""
        asked = query.get("sort", "")
        self.asked = asked if any(asked in orders for orders in headings.values()) else ""
        kept = [(name, text) for name, text in query.items() if name not in ("sort", "after", "done")]
        self.links: dict[str, str] = {}
        self.directions: dict[str, str] = {}
        for heading, orders in headings.items():
            place = orders.index(asked) + 1 if asked in orders else 0
            then = [("sort", order) for order in orders[place : place + 1]]
            self.links[heading] = f"?{urlencode([*kept, *then])}"
            if place:
                self.directions[heading] = "descending" if asked.startswith("-") else "ascending"

    def sorted(self, lines: Sequence[Line], keys: Mapping[str, Callable[[Line], Any]]) -> list[Line]:
        """Return lines in the order that is asked for, by the key of its name."""
        key = keys.get(self.asked.removeprefix("-"))
        return sorted(lines, key=key, reverse=self.asked.startswith("-")) if key else list(lines)


class View:
    """One request of somebody who has entered. `form` is empty where the request sends none."""

    def __init__(
        self,
        request: web.Request,
        user: User,
        client: LocalClient,
        form: Form,
        is_still_in: Callable[[], Awaitable[bool]],
    ) -> None:
        """`is_still_in` tells later on whether the session has not ended."""
        self.request = request
        self.user = user
        self.client = client
        self.form = form
        self.is_still_in = is_still_in

    @property
    def path(self) -> Mapping[str, str]:
        """The variable parts of the address."""
        return self.request.match_info

    @property
    def zone(self) -> tzinfo:
        """The zone in which the page shows times: that of the address, or else that of the file. Raises `Refused`."""
        try:
            return time_zone(self.request.query.get("zone") or self.client.config.time_zone)
        except ValueError as error:
            raise Refused(400, "invalid_request", f"`zone`: {error}.", param="zone") from None

    def may(self, scope: Scope) -> bool:
        """Return whether who looks has a scope."""
        return scope in self.user.actor.scopes

    def search(self, kind: type[msgspec.Struct]) -> PageSearch:
        """Return what the address asks for of the fields of an action's query; what is empty in it counts as left out."""
        given = ((name, self.request.query.get(name, "").strip()) for name in kind.__struct_fields__ if name != "limit")
        return PageSearch(self.request.path, Texts((name, text) for name, text in given if text))

    def page(self, template: str, status: int = 200, **context: Any) -> web.Response:
        """Return a page of a template."""
        own = {"currency": self.client.config.currency, "zone": self.zone}
        return render(self.request, template, context_of(self.request) | own | context, status)

    def go(self, path: str, done: str = "") -> web.Response:
        """Send the browser to another page, which says that something is done: `done` is one of `DONE`."""
        joint = "&" if "?" in path else "?"
        raise web.HTTPSeeOther(f"{path}{joint}done={done}" if done else path)


def context_of(request: web.Request) -> dict[str, Any]:
    """Return what every template has."""
    user = request.get(USER)
    scopes = user.actor.scopes if user else frozenset()
    return {
        "user": user,
        "may": {str(scope): scope in scopes for scope in Scope},
        "path": request.path,
        "done": DONE.get(request.query.get("done", "")),
        "problem": None,
        "currency": "",
        "zone": UTC,
    }


def render(request: web.Request, template: str, context: Mapping[str, Any], status: int = 200) -> web.Response:
    """Return a page."""
    response = aiohttp_jinja2.render_template(template, request, context, status=status)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Referrer-Policy"] = "same-origin"  # with none at all, browsers send no origin with forms
    return response


class Form(Texts):
    """The fields of a form, each without spaces around it. A field that was not sent is an empty text."""

    def micros(self, name: str) -> int:
        """Return an amount such as `5.00` in micros. Raises `Refused`."""
        try:
            return parsed(self[name])
        except ValueError as error:
            raise Refused(400, "invalid_request", f"{_label(name)}: {error}.", param=name) from None

    def number(self, name: str) -> int:
        """Return a whole number. Raises `Refused`."""
        text = self[name]
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise Refused(400, "invalid_request", f"{_label(name)}: `{text[:40]}` is not a whole number.", param=name)
        return int(text)


def _label(name: str) -> str:
    """Return what people call a field."""
    name = name.rpartition(".")[2].removesuffix("_micros")
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


Page = Callable[[View], Coroutine[Any, Any, web.StreamResponse]]


def problem_of(error: GatewayError) -> Refused:
    """Return an error as it is shown above a form. Raises those that no form can mend."""
    shown = refused(error)
    if isinstance(error, StoreAway) or shown.status in (403, 404):
        raise error
    return shown


def attempt(
    refuse: Callable[[View, Refused], Awaitable[web.Response]], home: Callable[[View], str]
) -> Callable[[Callable[[View], Awaitable[str]]], Page]:
    """Make a page of what does something and returns one of `DONE`: it goes home, or shows by `refuse` what was refused."""

    def made(work: Callable[[View], Awaitable[str]]) -> Page:
        async def page(view: View) -> web.StreamResponse:
            try:
                done = await work(view)
            except GatewayError as error:
                return await refuse(view, problem_of(error))
            return view.go(home(view), done)

        return page

    return made


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
        "headline": headline,
        "plain_money": amount,
        "count": count,
        "moment": moment,
        "breakable": breakable,
        "share": share,
        "span": span,
        "with_amounts": with_amounts,
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


def headline(micros: int | None) -> Markup:
    """Return an amount as a figure of a card: one unit and more with four decimals, thousands with
    two, and with all of it where it is pointed at."""
    if micros is None:
        return money(None)
    text = amount(micros)
    if abs(micros) >= MICROS:  # cut, not rounded up: nobody has more than is said
        whole, _, decimals = text.partition(".")
        text = f"{int(whole):,}.{decimals[: 2 if abs(micros) >= 1000 * MICROS else 4].rstrip('0'):0<2}"
    return Markup('<span class="money" title="{}">{}</span>').format(amount(micros), text.replace("-", "\u2212"))


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


def breakable(code: str) -> Markup:
    """Return a code that a browser may break after an underscore, and nowhere else."""
    return Markup("_<wbr>").join(code.split("_"))


def share(part: float) -> str:
    """Return a part of one in percent."""
    return f"{100 * part:.1f} %" if part else "0 %"


@jinja2.pass_context
def moment(context: jinja2.runtime.Context, at: str | datetime | None) -> Markup:
    """Return a time as people read it in the zone of the page; pointed at, in UTC."""
    if not at:
        return Markup("")
    utc = local(at, UTC)
    text = Markup('<time datetime="{}" title="{}">{}</time>')
    return text.format(utc.replace(" ", "T"), utc, local(at, context["zone"]))


def body(kind: type[Struct], /, **fields: object) -> Struct:
    """Return what an action is given. Raises `Refused` with what is wrong, in words."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        raise Refused(
            400, "invalid_request", f"{_label(name) or 'The form'}: {_words(text)}.", param=name or "form"
        ) from None


async def read(request: web.Request) -> Form:
    """Read the form of a request from a page of this origin. Raises `Refused`."""
    check_origin(request)
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refused(415, "invalid_request", "Send a form: application/x-www-form-urlencoded.")
    raw = b""
    try:
        async with asyncio.timeout(READ_S):
            while len(raw) <= LARGEST and (part := await request.content.read(LARGEST + 1 - len(raw))):
                raw += part
    except TimeoutError:
        raise Refused(408, "body_timeout", f"The form did not arrive within {READ_S:g} s.") from None
    if len(raw) > LARGEST:
        raise Refused(413, "request_too_large", f"A form is at most {LARGEST} bytes.")
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Refused(400, "invalid_request", "This is not a form that a page here has sent.") from None
    fields = {name: value.strip() for name, value in pairs}
    if len(fields) != len(pairs):
        raise Refused(400, "invalid_request", "A field of the form was sent twice.")
    return Form(fields)


def _words(text: str) -> str:
    """Return what msgspec says of a value, as people would."""
    for pattern, words in _IN_WORDS:
        if found := re.fullmatch(pattern, text):
            return words.format(*found.groups())
    return f"{text[:1].lower()}{text[1:]}"


def check_origin(request: web.Request) -> None:
    """Raise `Refused` (403) for a request that a page of another origin may have sent."""
    origin = request.headers.getall("Origin", [])
    sender = urlsplit(origin[0]).netloc.lower() if len(origin) == 1 else ""
    if sender != request.host.lower():
        here = ascii(request.host[:100])
        text = f"This was sent by a page of {sender[:100]!a}, not of {here}: a proxy in front has to pass `Host` on."
        raise Refused(403, "form_refused", text)


def check_proof(form: Form, wanted: str) -> None:
    """Raise `Refused` (403) for a form that was not on a page of this session."""
    if not hmac.compare_digest(form[PROOF].encode("utf-8", "surrogateescape"), wanted.encode()):
        raise Refused(403, "form_refused", "This form is not of your present session: open the page again.")


class Bar(msgspec.Struct, frozen=True):
    """A bar: where it is, in percent of the width and in pixels from above."""

    x: float
    width: float
    y: float
    height: float


class Column(msgspec.Struct, frozen=True):
    """What a plot has of one day, or of a shorter time: its values in words, a bar for each, and an address, or nothing."""

    title: str
    bars: list[Bar]
    link: str


class Plot(msgspec.Struct, frozen=True):
    """A plot of columns with one or two values, which are called `labels`.

    `scale`: the labels of the lines of the grid, the highest first. `marks`: columns that are named below.
    """

    labels: Sequence[str]
    height: int
    columns: list[Column]
    scale: list[str]
    lines: list[float]
    marks: list[str]


def plot_of(
    days: Sequence[tuple[str, *tuple[int, ...]]],
    labels: Sequence[str] = ("charge", "cost"),
    shown: Callable[[int], str] | None = None,
    links: Sequence[str] = (),
) -> Plot | None:
    """Return the plot of values with a name each, or None where there is nothing to see. By default, the values are micros."""
    top = max((max(values) for _, *values in days), default=0)
    if top <= 0:
        return None
    step = _step(top)
    lines = ceil(top / step)
    whole = step * lines

    def bar(index: int, part: int, value: int) -> Bar:
        room = 100 / len(days)
        height = round(max(0.0, HEIGHT * value / whole), 2)
        return Bar(
            round(room * (index + 0.15 + 0.36 * part), 2), round(room * 0.34, 2), round(HEIGHT - height, 2), height
        )

    def column(index: int, name: str, *values: int) -> Column:
        words = ", ".join(f"{label} {(shown or amount)(value)}" for label, value in zip(labels, values, strict=True))
        bars = [bar(index, part, value) for part, value in enumerate(values)]
        return Column(f"{name}: {words}", bars, links[index] if links else "")

    decimals = len(amount(step).partition(".")[2])
    scale = [shown(step * line) if shown else f"{step * line / MICROS:,.{decimals}f}" for line in range(lines, -1, -1)]
    marks = sorted({round(index * (len(days) - 1) / (LABELS - 1)) for index in range(LABELS)}) if len(days) > 1 else [0]
    return Plot(
        labels,
        HEIGHT,
        [column(index, *day) for index, day in enumerate(days)],
        scale,
        [round(HEIGHT * line / lines, 2) for line in range(lines + 1)],
        [days[index][0] for index in marks],
    )


def _step(top: int) -> int:
    """Return a round distance between lines of the grid."""
    least = top / LINES
    power = 10 ** floor(log10(least))
    return max(1, int(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)))
