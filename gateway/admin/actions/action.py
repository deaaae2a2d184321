"""An action: one thing that an operator can do, with its place in the HTTP API, its scope and its types.

The function of an action names everything: its path parameters are its `str` parameters, `body` is the struct of its JSON body,
`query` that of its query, and what it returns is the struct of the answer. It is called with a client, which either does it here
(`LocalClient`) or sends it to a gateway's API: commands and pages do not know the difference. Errors are translated to answers of
the API, and back, so that an error has the same words and kind here and over HTTP.

Lists that actions return are pages in the shape that the lists at the public port have, too (`Page`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Annotated, Any, Concatenate, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, get_type_hints

import msgspec

from gateway.base.errors import GatewayError, Refused, StoreAway

PREFIX: Final = "/api/v1"
IN_USE: Final = "idempotency_key_in_use"
STATUSES: Final[Mapping[str, tuple[int, str]]] = {
    "refused": (400, "invalid_request"),
    "misconfigured": (400, "invalid_request"),
    "not_found": (404, "not_found"),
    "exists": (409, "exists"),
    "conflict": (409, "conflict"),
    "store_away": (503, "service_unavailable"),
}
"""Kinds of errors with their status and code."""
AWAY: Final = "the store does not answer. Try again; a write with the same `Idempotency-Key` is done once"

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_IN_PATH: Final = re.compile(r"\{([a-z_]+)\}")

Line = TypeVar("Line")

LARGEST_PAGE = 100
LARGEST_LONG_PAGE = 1000
DEFAULT_PAGE = 20

Limit = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_PAGE, description="Lines of the answer at most.")]
LongLimit = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_LONG_PAGE, description="Lines of the answer at most.")]
After = Annotated[
    str, msgspec.Meta(max_length=256, description="`next` of the answer before; empty for the first page.")
]


class Scope(StrEnum):
    """What a management token may do. Each is for its own operations alone; `admin` is for management tokens and the audit log.

    `metrics` is for `GET /metrics`, which `read` has, too.
    """

    READ = "read"
    ACCOUNTS = "accounts"
    TOKENS = "tokens"
    MONEY = "money"
    CHANNELS = "channels"
    ADMIN = "admin"
    METRICS = "metrics"


ALL_SCOPES: Final = frozenset(Scope)


class Actor(msgspec.Struct, frozen=True):
    """Who asks: a management token, a person at a page, or a command of a user of the machine. `name` is kept in the audit log.

    `token`: the id of the management token that this follows from, or empty. `account`: of a caller at its own pages, or empty.
    """

    name: str
    scopes: AbstractSet[Scope] = ALL_SCOPES
    token: str = ""
    account: str = ""

    def need(self, scope: Scope) -> None:
        """Raise `Refused` (403) where this actor does not have the scope."""
        if scope not in self.scopes:
            own = ", ".join(sorted(self.scopes))
            raise Refused(403, "scope_missing", f"This needs the scope `{scope}`, which is not one of yours: {own}.")


class Arguments(msgspec.Struct, frozen=True):
    """What an action is called with: the texts of its path, and its query and body, or None where it has none."""

    path: Mapping[str, str]
    query: msgspec.Struct | None = None
    body: msgspec.Struct | None = None


class ActionClient(Protocol):
    """Does actions, in this process or at the API of a gateway."""

    async def perform(self, action: Action[Any, Any], arguments: Arguments) -> Any:
        """Do an action. Raises `Refused` and other errors of the gateway."""


class Action(Generic[Parameters, Result]):
    """One thing that an operator can do. Calling it with a client and the arguments of its function does it there."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Result]],
        method: str,
        path: str,
        scope: Scope,
        *,
        status: int = 200,
        shown_once: str = "",
        audited: bool = True,
        most_a_minute: int = 0,
        name: str = "",
    ) -> None:
        """`audited` is False for what changes nothing here. `name`: where the file and the function do not make it."""
        hints = get_type_hints(function)
        self.function = function
        self.method = method
        self.path = path
        """As in `/accounts/{account}`, below the API's prefix."""
        self.scope = scope
        self.status = status
        """Of the answer that says that it is done."""
        self.audited = audited and method != "GET"
        """Whether it leaves lines in the audit log."""
        self.most_a_minute = most_a_minute
        """How often one actor may do it; 0 for as often as it likes."""
        self.shown_once = shown_once
        """The field of the answer that is a secret, and null where the answer is repeated; empty where there is none."""
        self.name = name or f"{function.__module__.rpartition('.')[2]}.{function.__name__.rstrip('_')}"
        """As in `accounts.create`: in the audit log, and in OpenAPI as `operationId`."""
        self.in_path: tuple[str, ...] = tuple(_IN_PATH.findall(path))
        self.query: type[msgspec.Struct] | None = hints.get("query")
        self.body: type[msgspec.Struct] | None = hints.get("body")
        self.returns: Any = hints["return"]
        self._signature = inspect.signature(function)
        _, *given = self._signature.parameters
        if given != [*self.in_path, *(name for name in ("query", "body") if name in hints)]:
            raise TypeError(f"{self.name}: the parameters are those of {path}, then query, then body")

    @property
    def writes(self) -> bool:
        """Whether it does something that must not be done twice."""
        return self.method != "GET"

    @property
    def summary(self) -> str:
        """The first sentence of its description."""
        return self.description.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].removesuffix(".") + "."

    @property
    def description(self) -> str:
        """What it does, which errors it raises, in words."""
        return inspect.getdoc(self.function) or ""

    async def __call__(self, client: ActionClient, /, *values: Parameters.args, **named: Parameters.kwargs) -> Result:
        """Do it with `client`."""
        given = self._signature.bind(client, *values, **named)
        given.apply_defaults()
        texts = {name: given.arguments[name] for name in self.in_path}
        arguments = Arguments(texts, given.arguments.get("query"), given.arguments.get("body"))
        result: Result = await client.perform(self, arguments)
        return result

    async def run(self, client: Any, arguments: Arguments) -> Result:
        """Do it here. Only clients call this: it checks no scope and leaves no line in the audit log."""
        named = {"query": arguments.query, "body": arguments.body}
        others = {name: value for name, value in named.items() if value is not None}
        return await self.function(client, **arguments.path, **others)

    def __repr__(self) -> str:
        return f"<action {self.name}: {self.method} {self.path}>"


def action(
    method: str, path: str, scope: Scope, **options: Any
) -> Callable[[Callable[Concatenate[Any, Parameters], Awaitable[Result]]], Action[Parameters, Result]]:
    """Make an action of a function, whose first parameter is the client. `options`: see `Action`."""

    def made(function: Callable[Concatenate[Any, Parameters], Awaitable[Result]]) -> Action[Parameters, Result]:
        return Action(function, method, path, scope, **options)

    return made


class Page(msgspec.Struct, Generic[Line], frozen=True):
    """Some lines of a list. `next` is the `after` of the next page. `notes` say what the list may lack, in words."""

    data: list[Line]
    has_more: bool = False
    next: str | None = None
    notes: list[str] = []
    object: Literal["list"] = "list"


def refused(error: GatewayError) -> Refused:
    """Return an error of the gateway as the answer that says so."""
    if isinstance(error, Refused):
        return error
    status, code = STATUSES[error.kind]
    words = AWAY if error.kind == "store_away" else str(error)
    return Refused(status, code, f"{words[:1].upper()}{words[1:].removesuffix('.')}.")


def in_own_words(answer: Refused) -> GatewayError:
    """Return the error that an answer was made of: with its kind, and with its words as a command prints them."""
    kind = next((kind for kind, (_, code) in STATUSES.items() if code == answer.code), "refused")
    words = answer.message
    if not words[1:2].isupper():
        words = words[:1].lower() + words[1:]
    if not words.endswith(".."):
        words = words.removesuffix(".")
    error = StoreAway(words) if kind == "store_away" else GatewayError(words)
    error.kind = kind
    return error
