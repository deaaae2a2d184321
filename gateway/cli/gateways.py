"""`gateway gateways`: the gateways of a store, and the removal of one that has gone for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.base.ids import utc
from gateway.cli.client import noted
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    YesOption,
    confirm,
    print_json,
    print_table,
    refuse,
    run_with_store,
)
from gateway.usage.gaps import load
from gateway.usage.replication import PeerGateway, forget, gateways_of, unknown_to_store
from gateway.usage.stream import short

if TYPE_CHECKING:
    from gateway.chain.services import Store

gateways = typer.Typer(
    no_args_is_help=True,
    help="List the gateways of the store, which share one usage log, or forget one that has gone for good.",
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(gateways, name="gateways")


@gateways.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the gateways of the store: when each was last heard of, and what the others do not have of it yet.

    `behind`: seconds of the usage log that it has not read. `files`: files of records that it has not handed over to the others.

    Example: `gateway gateways list`
    """
    found, own = run_with_store(config, _gateways)
    if as_json:
        for each in found:
            print_json(_fields(each, own))
        return
    columns = ("name", "host", "last heard of", "state", "behind", "files", "gaps")
    rows = [_cells(each, own) for each in found]
    print_table(columns, rows, optional=("gaps", "files"), empty="No gateway of the store has run yet.")


@gateways.command("forget")
def forget_(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The gateway's name or host, as `gateway gateways list` has it.")
    ],
    config: ConfigOption = None,
    yes: YesOption = False,
) -> None:
    """Forget a gateway that has gone for good, with its disk: requests of it that never ended are then closed.

    The records that it had not handed over are lost; the other gateways go on to say so when they are asked for a request of that
    time. One that comes back all the same is a gateway of the store again.

    Example: `gateway gateways forget 3f9a1c20`
    """
    run_with_store(config, lambda store: _forget(store, name, yes))


async def _gateways(store: Store) -> tuple[list[PeerGateway], str]:
    return await _known(store), store.usage.installation


async def _known(store: Store) -> list[PeerGateway]:
    """Return the gateways of the store, and those that only the disk remembers."""
    found = await gateways_of(store.client)
    return found + unknown_to_store(found, load(store.usage.folder).away)


async def _forget(store: Store, name: str, yes: bool) -> None:
    found = [each for each in await _known(store) if not each.about.forgotten_ms]
    matching = [each for each in found if name in (each.installation, short(each.installation), each.about.host)]
    if not matching:
        raise refuse(f"there is no gateway `{name}`: see `gateway gateways list`", "not_found")
    if len(matching) > 1:
        names = ", ".join(short(each.installation) for each in matching)
        raise refuse(f"several gateways are called `{name}`: give one of {names}")
    (gateway,) = matching
    if gateway.present:
        raise refuse(f"gateway {gateway.name} runs: it was heard of at {gateway.heard}")
    if not yes:
        await asyncio.to_thread(
            confirm, f"Forget gateway {gateway.name}? Records that only its disk has are then lost."
        )
    async with noted(store, "gateways.forget", gateway=gateway.installation):
        await forget(store.client, gateway)
    typer.echo(f"forgot gateway {gateway.name}, last heard of at {gateway.heard}")


def _state(gateway: PeerGateway, own: str) -> str:
    if gateway.about.forgotten_ms:
        return f"forgotten at {utc(gateway.about.forgotten_ms)}"
    state = "present" if gateway.present else "stopped" if gateway.about.stopped else "away"
    return f"{state}, this one" if gateway.installation == own else state


def _behind_s(gateway: PeerGateway) -> int:
    """Return for how many seconds of the log it has not said that it has read them; entries that it reads at once count as none."""
    return 0 if gateway.about.forgotten_ms else gateway.behind_ms // 1000


def _fields(gateway: PeerGateway, own: str) -> dict[str, object]:
    return {
        "name": short(gateway.installation),
        "installation": gateway.installation,
        "host": gateway.about.host,
        "heard_at": gateway.heard,
        "state": _state(gateway, own),
        "behind_s": _behind_s(gateway),
        "files": gateway.about.files,
        "gaps": [str(gap) for gap in gateway.about.gaps],
    }


def _cells(gateway: PeerGateway, own: str) -> list[object]:
    values = _fields(gateway, own)
    gaps = "; ".join(str(gap) for gap in gateway.about.gaps) or "-"
    return [*(values[name] for name in ("name", "host", "heard_at", "state", "behind_s", "files")), gaps]
