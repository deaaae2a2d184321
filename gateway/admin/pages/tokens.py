"""Tokens of one account, which operators and callers make, replace, refuse and delete at its page. A text is shown once."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.admin.actions import accounts, tokens
from gateway.admin.actions.action import refused
from gateway.admin.actions.local import LocalClient
from gateway.admin.actions.tokens import MadeToken, NewToken, Rotation, TokenList
from gateway.admin.pages import accounts as account_pages
from gateway.admin.pages import callers
from gateway.admin.pages.accounts import account_in, check_sure
from gateway.admin.pages.login import OWN, OWN_SCOPES
from gateway.admin.pages.view import Page, View, body, problem_of
from gateway.base.errors import GatewayError, Refused, StoreAway
from gateway.base.text import names_in
from gateway.store.accounts import AccountStatus

DAY_S: Final = 86_400
_SHORT_ID: Final = re.compile(r"[a-z0-9]{1,64}")


async def create(view: View) -> web.StreamResponse:
    """Make a token, and show its text."""
    form = view.form
    try:
        await _check_room(view)
        given: dict[str, Any] = {name: names_in(form[name]) for name in ("models", "addresses")}
        if form["days"]:
            days = min(form.number("days"), 2_700_000)  # more is no time at all; this many are refused in words
            given["expires_at"] = datetime.fromtimestamp(time.time() + days * DAY_S, UTC)
        if form["day"]:
            given["budgets"] = {"day_micros": form.micros("day")}
        made = await tokens.create(view.client, account_in(view), body=body(NewToken, name=form["name"], **given))
    except GatewayError as error:
        return await _refused(view, error, "token")
    return await _made(view, made, "")


async def rotate(view: View) -> web.StreamResponse:
    """Replace a token, and show the text of the new one."""
    token = _token_in(view)
    try:
        await _check_room(view)
        overlap = view.form.number("hours") * 3600
        made = await tokens.rotate(view.client, token, body=body(Rotation, overlap_s=overlap))
    except GatewayError as error:
        return await _refused(view, error, f"rotate {token}")
    return await _made(view, made, token)


async def disable(view: View) -> web.StreamResponse:
    """Refuse requests with a token."""
    return await _attempt(view, "tokens", tokens.disable(view.client, _token_in(view)), "token-disabled")


async def disable_own(view: View) -> web.StreamResponse:
    """Refuse requests with the token that a caller has signed in with, which ends the session."""
    if not view.user.token:
        raise _unknown()
    client, actor = view.client, msgspec.structs.replace(view.user.actor, scopes=OWN_SCOPES)

    async def work() -> None:
        check_sure(view.form)
        await tokens.disable(LocalClient(client.loaded, client.store, actor, client.key), view.user.token)

    return await _attempt(view, "disable", work(), "token-disabled")


async def enable(view: View) -> web.StreamResponse:
    """Accept a token again."""
    return await _attempt(view, "tokens", tokens.enable(view.client, _token_in(view)), "token-enabled")


async def delete(view: View) -> web.StreamResponse:
    """Delete a token for good."""
    token = _token_in(view)

    async def work() -> None:
        check_sure(view.form)
        await tokens.delete(view.client, token)

    return await _attempt(view, f"delete {token}", work(), "token-deleted")


async def _attempt(view: View, action: str, work: Awaitable[object], done: str) -> web.StreamResponse:
    try:
        await work
    except GatewayError as error:
        return await _refused(view, error, action)
    return view.go(_home(view), done)


async def _refused(view: View, error: GatewayError, action: str) -> web.StreamResponse:
    if view.user.account and refused(error).status == 404:  # its words are for operators
        raise _unknown()
    shown = problem_of(error)
    show = callers.show if view.user.account else account_pages.show
    return await show(view, shown.message, action, shown.status)


async def _check_room(view: View) -> None:
    """Raise `Refused` where a caller may have no further token."""
    if not view.user.account:
        return
    if (await accounts.read(view.client, view.user.account)).status is not AccountStatus.ACTIVE:
        raise Refused(409, "conflict", "The account is not active: its operator can say why.")
    held = await tokens.list_(view.client, view.user.account, query=TokenList(limit=callers.MOST_TOKENS))
    if len(held.data) >= callers.MOST_TOKENS:
        text = f"There are {callers.MOST_TOKENS} tokens already: delete those that are not used."
        raise Refused(409, "conflict", text)


async def _made(view: View, made: MadeToken, replaced: str) -> web.Response:
    name, example = account_in(view), ""
    with suppress(StoreAway):  # the token is there, and its text is not shown again
        if made.token and (account := await view.client.store.accounts.get(name)):
            example = callers.offer(view, account, made.token)["example"]
    return view.page("token.html", 201, made=made, replaced=replaced, account=name, home=_home(view), example=example)


def _home(view: View) -> str:
    return OWN if view.user.account else f"/accounts/{account_in(view)}"


def _token_in(view: View) -> str:
    """Return the id of the token of the address, as one of the account whatever it says. Raises `Refused` (404)."""
    short = view.path["token"]
    if not _SHORT_ID.fullmatch(short):
        raise _unknown()
    return f"{account_in(view)}-{short}"


def _unknown() -> Refused:
    return Refused(404, "not_found", "There is no such token.")


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("POST", "/accounts/{account}/tokens", create),
    ("POST", "/accounts/{account}/tokens/{token}/rotate", rotate),
    ("POST", "/accounts/{account}/tokens/{token}/disable", disable),
    ("POST", "/accounts/{account}/tokens/{token}/enable", enable),
    ("POST", "/accounts/{account}/tokens/{token}/delete", delete),
)
OWN_PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("POST", f"{OWN}/disable", disable_own),
    ("POST", f"{OWN}/tokens", create),
    ("POST", f"{OWN}/tokens/{{token}}/rotate", rotate),
    ("POST", f"{OWN}/tokens/{{token}}/delete", delete),
)
