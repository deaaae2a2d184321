"""`gateway pepper`: the key that tokens are checked with, and its change."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.admin.actions.times import UNITS_S
from gateway.base.errors import GatewayError
from gateway.cli.client import noted
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    YesOption,
    configuration,
    confirm,
    print_fields,
    print_json,
    refuse,
    run_with_store,
)
from gateway.runtime.data_folder import existing_folder
from gateway.store import pepper_rotation
from gateway.store.pepper import OLD_VARIABLE, VARIABLE, PepperRecord, PepperSource, checked

if TYPE_CHECKING:
    from gateway.chain.services import Store

LONGEST_S: Final = 365 * 86_400

pepper = typer.Typer(
    no_args_is_help=True, help="Show where the key is that tokens are checked with (show), or change it (rotate)."
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(pepper, name="pepper")


def _duration(text: str) -> int:
    parts = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    if text != "none" and parts is None:
        raise typer.BadParameter("write a time as in 30d, 12h, 90m or 45s, or none")
    seconds = int(parts[1]) * UNITS_S[parts[2]] if parts else 0
    if seconds > LONGEST_S:
        raise typer.BadParameter("tokens of the pepper before are accepted for at most 365d")
    return seconds


@pepper.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show where the pepper is, who recorded it in the store, and until when tokens of the one before are accepted.

    Example: `gateway pepper show`
    """
    source = PepperSource.of(configuration(config).data_path)

    async def work(store: Store) -> tuple[PepperRecord, int]:
        record = await checked(store.client, source)
        return record, await pepper_rotation.made_before(
            store.accounts, store.tokens, record.since
        ) if record.old else 0

    record, old_tokens = run_with_store(config, work)
    result: dict[str, Any] = {
        "pepper": source.name,
        "recorded_by": record.host or None,
        "recorded_at": record.since or None,
        "old_accepted_until": record.until if record.accepts_old() else None,
        "old_tokens": old_tokens,
    }
    if as_json:
        print_json(result)
        return
    times = {"recorded_at": record.since, "old_accepted_until": result["old_accepted_until"]}
    print_fields(result | {name: _date(seconds) if seconds else "-" for name, seconds in times.items()})


@pepper.command()
def rotate(
    accept_old: Annotated[
        str, typer.Option(metavar="TIME", help="Accept tokens of the pepper before for this time: 30d, 12h, or none.")
    ] = "30d",
    prepare: Annotated[
        bool, typer.Option(help="Only write the new pepper to the data folder, to be copied to other gateways first.")
    ] = False,
    lost: Annotated[bool, typer.Option(help="The pepper is lost: take another. Every token is void.")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
) -> None:
    """Change the pepper. Tokens made with the one before stay valid for a time, in which their callers need others.

    Gateways with the data folder of this command take the change up by themselves, within half a minute. For those with another
    one, see what is printed.

    Example: `gateway pepper rotate --accept-old 30d`
    """
    accept_s = _duration(accept_old)
    data = existing_folder(configuration(config))
    with pepper_rotation.changing(data):
        _rotate(config, data, accept_s, prepare=prepare, lost=lost, yes=yes)


def _rotate(config: Path | None, data: Path, accept_s: int, *, prepare: bool, lost: bool, yes: bool) -> None:
    if lost:
        if not yes:
            confirm("Every token becomes void. Go on?")
        run_with_store(config, lambda store: _replace(store, data))
        typer.echo(f"The store has the pepper of {PepperSource.of(data).name}. All tokens are void: make others.")
        return
    record = run_with_store(config, lambda store: checked(store.client, PepperSource.of(data)))
    pending = pepper_rotation.is_pending(record, PepperSource.of(data))
    if not pending:
        _check_variable()
        if record.accepts_old() and not yes:
            question = (
                f"Tokens of the pepper before are accepted until {_date(record.until)}. They become void now. Go on?"
            )
            confirm(question)
        pepper_rotation.write_next(data)
    if prepare:
        typer.echo(f"{data}/pepper is the next pepper, {data}/pepper.old the present one.\n{_elsewhere(data)}")
        typer.echo("Then run `gateway pepper rotate` once: only then tokens are made with the next one.")
        return
    until = int(time.time()) + accept_s
    run_with_store(config, lambda store: _record_next(store, data, until))
    _print_rotated(config, data, until, was_prepared=pending)


async def _replace(store: Store, data: Path) -> None:
    async with noted(store, "pepper.rotate", lost="every token is void"):
        await pepper_rotation.replace(store.client, data)


async def _record_next(store: Store, data: Path, until: int) -> None:
    async with noted(store, "pepper.rotate", old_accepted_until=_date(until)):
        if not await pepper_rotation.record_next(store.client, data, until):
            raise GatewayError("another process changed the pepper at the same time: see `gateway pepper show`")


def _print_rotated(config: Path | None, data: Path, until: int, *, was_prepared: bool) -> None:
    count = run_with_store(
        config, lambda store: pepper_rotation.made_before(store.accounts, store.tokens, int(time.time()))
    )
    end = f"until {_date(until)}" if until > time.time() else "no longer"
    typer.echo(
        f"Tokens are made with the next pepper from now on. Those of the one before ({count}) are accepted {end}:"
    )
    typer.echo("make others for their callers (`gateway token list`, `gateway token create`).")
    if not was_prepared:
        typer.echo(_elsewhere(data))
        typer.echo("Until then they refuse tokens that are made now.")


def _elsewhere(data: Path) -> str:
    if VARIABLE in os.environ:
        return (
            f"Other gateways and commands of this store need the same ${VARIABLE} and ${OLD_VARIABLE}, and a restart."
        )
    return (
        f"Other gateways of this store, with data folders of their own: copy {data}/pepper and {data}/pepper.old there."
    )


def _check_variable() -> None:
    """Exit with an error where the pepper is a variable, which no command can change."""
    if VARIABLE in os.environ:
        raise refuse(
            f"the pepper is ${VARIABLE}, which a command cannot change: give the present value as ${OLD_VARIABLE} and 32 random "
            f"bytes (openssl rand -hex 32) as ${VARIABLE} to all gateways and commands of the store, restart the gateways one by "
            "one, and run this again: nothing is refused meanwhile"
        )


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
