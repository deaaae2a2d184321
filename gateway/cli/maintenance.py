"""Care of a running installation: alerts that wait, gateways of a store, the pepper, the check of all books (`verify`)."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from gateway.admin.actions.times import local
from gateway.base.errors import GatewayError, StoreError
from gateway.base.ids import utc
from gateway.base.text import counted, printable
from gateway.cli.client import At, command, noted
from gateway.cli.common import amount, print_fields, print_json, progress, refuse
from gateway.cli.token import LONGEST_OVERLAP_S, duration
from gateway.runtime.data_folder import existing_folder
from gateway.store import pepper as store_pepper
from gateway.store.accounts import account_key, unknown
from gateway.store.money.archive import Archive, ArchiveError
from gateway.store.pepper import OLD_VARIABLE, VARIABLE, PepperRecord, PepperSource, checked
from gateway.store.tokens import made_before
from gateway.tools.verify import Coverage, charged_in_log, compare, damage, logged
from gateway.usage.completeness import KnownGateway
from gateway.usage.gateways import forget, gateways_of
from gateway.usage.stream import short

if TYPE_CHECKING:
    from gateway.chain.services import Store

alerts = typer.Typer()


@command(alerts, options=("config", "as_json"), needs="nothing")
async def test(
    at: At,
    receiver: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One of `alerts.others`; without a name, `alerts.webhook`.")
    ] = "",
) -> None:
    """Send an event of the type `test` to a webhook, and print what it answers. The exit code is 0 for a 2xx alone.

    Example: `gateway alerts test`, or `gateway alerts test shop`
    """
    from gateway.admin.actions.alerts import MISSING
    from gateway.alerts import event
    from gateway.alerts.sender import Webhook
    from gateway.alerts.signature import secrets_of

    if at.config.alerts is None:
        raise refuse(MISSING)
    settings = at.config.alerts.receivers.get(receiver)
    if settings is None:
        raise refuse(f"`alerts.others` has no `{receiver}`; it has: {', '.join(at.config.alerts.others) or 'none yet'}")
    began = time.monotonic()
    webhook = Webhook(settings.webhook, secrets_of(at.config, receiver, create=False))
    gateway = socket.gethostname()
    entry = event.entry_of(event.event("test", f"a test of alerts from gateway {gateway}", gateway=gateway))
    answer = await webhook.post(entry.id, entry.body.encode())
    result: dict[str, Any] = {
        "host": settings.host,
        "id": entry.id,
        "status": answer.status or None,
        "error": answer.error,
        "took_ms": round((time.monotonic() - began) * 1000),
        "answer": answer.body,
    }
    if at.as_json:
        print_json(result)
    elif answer.status:
        print_fields({name: value for name, value in result.items() if value})
    if answer.error:
        raise refuse(f"the webhook at {settings.host} did not accept the alert: {answer.error}; {answer.cure}")


@command(alerts, "list")
async def list_alerts(
    at: At, limit: Annotated[int, typer.Option(min=1, max=1000, help="How many are shown at most.")] = 100
) -> None:
    """Show the alerts that wait for a webhook, and the last hundred that each was sent, or that were given up after a day.

    Example: `gateway alerts list --json | jq 'select(.state != "sent") | .error'`
    """
    await at.print(
        (await at.do("alerts.list_", limit=limit)).data,
        ("state", "type", "what", "receiver", "at", "attempts", "next attempt", "error", "id"),
        lambda each, zone: (
            each.state.replace("_", " "),
            each.type,
            printable(each.message),
            each.receiver or "-",
            local(each.at, zone),
            each.attempts,
            local(each.due_at, zone) if each.due_at else "-",
            each.error,
            each.id,
        ),
        optional=("id", "attempts", "receiver"),
        empty="No alert waits, and none was sent.",
    )


gateways = typer.Typer()


@command(gateways, "list", options=("config", "as_json"))
async def list_gateways(at: At) -> None:
    """List the gateways of the store: when each was last heard of, and what it has not written to the log yet.

    `differs`: the settings that it serves otherwise than this gateway, such as `models`. `files`: files of records in its spool,
    from a time when the store was away.

    Example: `gateway gateways list`
    """
    found, own = await gateways_of(at.local.store.client), at.local.store.usage.installation
    columns = ("name", "host", "listens", "last heard of", "state", "differs", "files")
    here = next((each for each in found if each.installation == own), None)
    rows, empty = [_fields(each, here, own) for each in found], "No gateway of the store has run yet."
    await at.print(rows, columns, _cells, optional=("files", "differs", "listens"), empty=empty)


async def _absent(at: At, name: str) -> KnownGateway:
    """Return the gateway of a name, or exit with an error where there is none, or it runs."""
    found = [each for each in await gateways_of(at.local.store.client) if not each.about.forgotten_ms]
    matching = [each for each in found if name in (each.installation, short(each.installation), each.about.host)]
    if not matching:
        raise refuse(f"there is no gateway `{name}`: see `gateway gateways list`", "not_found")
    if len(matching) > 1:
        names = ", ".join(short(each.installation) for each in matching)
        raise refuse(f"several gateways are called `{name}`: give one of {names}")
    (gateway,) = matching
    if gateway.present:
        raise refuse(f"gateway {gateway.name} runs: it was heard of at {gateway.heard}")
    return gateway


async def _forget(at: At, name: str) -> str:
    return f"Forget gateway {(await _absent(at, name)).name}? Records that only its disk has are then lost."


@command(gateways, "forget", options=("config",), sure=_forget)
async def forget_gateway(
    at: At,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The gateway's name or host, as `gateway gateways list` has it.")
    ],
) -> None:
    """Forget a gateway that has gone for good, with its disk: requests of it that never ended are then closed.

    The records of its spool are lost, and the whole log where it was in files of its own; the other gateways go on to say so when
    they are asked for a request of that time. One that comes back is a gateway of the store again, if it logs where they do.

    Example: `gateway gateways forget 3f9a1c20`
    """
    gateway, store = await _absent(at, name), at.local.store
    async with noted(store, "gateways.forget", gateway=gateway.installation):
        await forget(store.client, gateway)
    typer.echo(f"forgot gateway {gateway.name}, last heard of at {gateway.heard}")


def _state(gateway: KnownGateway, own: str) -> str:
    if gateway.about.forgotten_ms:
        return f"forgotten at {utc(gateway.about.forgotten_ms)}"
    state = "present" if gateway.present else "stopped" if gateway.about.stopped else "away"
    return f"{state}, this one" if gateway.installation == own else state


def _fields(gateway: KnownGateway, here: KnownGateway | None, own: str) -> dict[str, object]:
    return {
        "name": short(gateway.installation),
        "installation": gateway.installation,
        "host": gateway.about.host,
        "listen": gateway.about.listen,
        "heard_at": gateway.heard,
        "state": _state(gateway, own),
        "differs": gateway.differs(here),
        "files": gateway.about.files,
    }


def _cells(values: dict[str, Any], zone: tzinfo) -> list[object]:
    shown = values | {"heard_at": local(values["heard_at"], zone), "differs": ", ".join(values["differs"]) or "-"}
    return [shown[name] for name in ("name", "host", "listen", "heard_at", "state", "differs", "files")]


pepper = typer.Typer()


def _accepted(text: str) -> int:
    seconds = 0 if text == "none" else duration(text)
    if seconds > LONGEST_OVERLAP_S:
        raise typer.BadParameter("tokens of the pepper before are accepted for at most 365d")
    return seconds


@command(pepper, "show", options=("config", "as_json"))
async def show_pepper(at: At) -> None:
    """Show where the pepper is, who recorded it in the store, and until when tokens of the one before are accepted.

    Example: `gateway pepper show`
    """
    source, store = PepperSource(at.config.data_path), at.local.store
    record = await checked(store.client, source)
    old_tokens = await made_before(store.tokens, record.since) if record.old else 0
    result: dict[str, Any] = {
        "pepper": source.name,
        "recorded_by": record.host or None,
        "recorded_at": record.since or None,
        "old_accepted_until": record.until if record.accepts_old() else None,
        "old_tokens": old_tokens,
    }
    if at.as_json:
        print_json(result)
        return
    times = {"recorded_at": record.since, "old_accepted_until": result["old_accepted_until"]}
    print_fields(result | {name: local(seconds, UTC) if seconds else "-" for name, seconds in times.items()})


async def _rotate(at: At, lost: bool, **_: Any) -> str:
    if lost:
        return "Every token becomes void. Go on?"
    record, pending = await _recorded(at)
    if pending or not record.accepts_old():
        return ""
    return f"Tokens of the pepper before are accepted until {local(record.until, UTC)}. They become void now. Go on?"


async def _recorded(at: At) -> tuple[PepperRecord, bool]:
    """Return what the store says of the pepper, and whether a next one was written and is not recorded yet."""
    source = PepperSource(existing_folder(at.config))
    record = await checked(at.local.store.client, source)
    return record, store_pepper.is_pending(record, source)


@command(pepper, options=("config",), sure=_rotate)
async def rotate(
    at: At,
    accept_old: Annotated[
        str, typer.Option(metavar="TIME", help="Accept tokens of the pepper before for this time: 30d, 12h, or none.")
    ] = "30d",
    prepare: Annotated[
        bool, typer.Option(help="Only write the new pepper to the data folder, to be copied to other gateways first.")
    ] = False,
    lost: Annotated[bool, typer.Option(help="The pepper is lost: take another. Every token is void.")] = False,
) -> None:
    """Change the pepper. Tokens made with the one before stay valid for a time, in which their callers need others.

    Gateways with the data folder of this command take the change up by themselves, within half a minute. For those with another
    one, see what is printed.

    Example: `gateway pepper rotate --accept-old 30d`
    """
    accept_s, data, store = _accepted(accept_old), existing_folder(at.config), at.local.store
    with store_pepper.changing(data):
        if lost:
            async with noted(store, "pepper.rotate", lost="every token is void"):
                await store_pepper.replace(store.client, data)
            typer.echo(f"The store has the pepper of {PepperSource(data).name}. All tokens are void: make others.")
            return
        _, was_prepared = await _recorded(at)
        if not was_prepared:
            _check_variable()
            store_pepper.write_next(data)
        if prepare:
            typer.echo(f"{data}/pepper is the next pepper, {data}/pepper.old the present one.\n{_elsewhere(data)}")
            typer.echo("Then run `gateway pepper rotate` once: only then tokens are made with the next one.")
            return
        until = int(time.time()) + accept_s
        async with noted(store, "pepper.rotate", old_accepted_until=local(until, UTC)):
            if not await store_pepper.record_next(store.client, data, until):
                raise GatewayError("another process changed the pepper at the same time: see `gateway pepper show`")
    count = await made_before(store.tokens, int(time.time()))
    end = f"until {local(until, UTC)}" if until > time.time() else "no longer"
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


class Problem(msgspec.Struct, frozen=True):
    """Something about one account, in a sentence that names the request."""

    account: str
    what: str


class VerifyReport(msgspec.Struct):
    """The result of the check.

    `accounts` and `lines` (of ledgers) were checked; `unread` archived lines were taken as their sums. `agreed` requests agree
    with the usage log, `unknown` ones could not be compared, and `notes` say why. `expired`: holds that were ended because
    their lease is over. `stale`: costs that came too late to be charged. `wrong`: what does not agree. `damaged`: files and lines
    that cannot be read.
    """

    accounts: int = 0
    lines: int = 0
    unread: int = 0
    agreed: int = 0
    unknown: int = 0
    expired: list[Problem] = []
    stale: list[Problem] = []
    wrong: list[Problem] = []
    damaged: list[str] | msgspec.UnsetType = msgspec.UNSET
    notes: list[str] = []

    def unreadable(self, account: str, error: Exception) -> None:
        """Note an account that cannot be checked."""
        self.wrong.append(Problem(account, f"it cannot be checked: {error}"))


@command(options=("config", "as_json"))
async def verify(
    at: At,
    account: Annotated[str | None, typer.Argument(metavar="ID", help="Check only this account. Default: all.")] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also check the archived ledger lines in this folder.")
    ] = None,
) -> None:
    """Check every balance against its ledger, its holds and the usage log.

    The exit code is 1 if something does not agree or cannot be read. The gateway may be running. Holds whose lease is over
    are ended, as the gateway itself would do, and external ids whose setting was interrupted are free again. Nothing else is
    repaired: to correct a balance, use `gateway account adjust`.

    Example: `gateway verify --json`
    """
    report = await _verify_all(at.local.store, account and await at.account(account), archive)
    if at.as_json:
        print_json(report)
    else:
        _print(report)
    if report.wrong or report.damaged:
        raise typer.Exit(1)


async def _verify_all(store: Store, only: str | None, folder: Path | None) -> VerifyReport:
    if only is not None and not await store.client.call("EXISTS", account_key(only)):
        raise unknown(only)
    coverage = await Coverage.of(store)
    archive = Archive(folder) if folder is not None else None
    report = VerifyReport(notes=_notes(coverage), damaged=await asyncio.to_thread(damage, store) or msgspec.UNSET)

    def unreadable(account: str, error: StoreError) -> None:
        if only in (None, account):
            report.unreadable(account, error)

    with progress() as show:
        async for account in store.accounts.all(unreadable):
            if only in (None, account.id):
                await _verify(store, account.id, archive, coverage, report)
                if text := await store.external_ids.check(account):
                    report.wrong.append(Problem(account.id, text))
                show(f"{counted(report.accounts, 'account')}, {counted(report.lines, 'ledger line')}")
    if only is None:
        report.wrong += await _without_account(store)
        if swept := await store.external_ids.sweep():
            report.notes.append(
                f"{swept} external ids were free again: they were claimed by commands that were interrupted"
            )
    return report


async def _verify(
    store: Store, account: str, archive: Archive | None, coverage: Coverage, report: VerifyReport
) -> None:
    records = await asyncio.to_thread(logged, coverage.home, account)
    in_journal = frozenset(settlement.request_id for settlement in store.journal.waiting())
    try:
        audit = await store.wallet.audit(account, archive)
    except (StoreError, ArchiveError) as error:
        report.unreadable(account, error)
        return
    compared = await asyncio.to_thread(compare, records, audit, in_journal, coverage)
    report.accounts += 1
    report.lines += audit.lines
    report.unread += audit.unread.lines
    report.agreed += compared.agreed
    report.unknown += compared.unknown
    report.wrong += [Problem(account, text) for text in audit.wrong + compared.wrong]
    report.expired += [
        Problem(account, f"request {request_id} was charged {amount(charged)}") for request_id, charged in audit.expired
    ]
    report.stale += [
        Problem(account, f"request {request_id} cost {amount(cost)}") for request_id, cost in audit.stale.items()
    ]


async def _without_account(store: Store) -> list[Problem]:
    """Return the accounts that the usage log has charges of and the store does not have."""
    charged = await asyncio.to_thread(charged_in_log, store.usage.home)
    return [
        Problem(
            account,
            f"{requests} requests were charged {micros} micros in the usage log, and the store has no such account",
        )
        for account, (requests, micros) in charged.items()
        if not await store.client.call("EXISTS", account_key(account))
    ]


def _notes(coverage: Coverage) -> list[str]:
    notes = []
    if coverage.waiting:
        notes.append(
            f"{coverage.waiting} entries of the usage log are not written yet; "
            "missing records were not reported as wrong: run this again while the gateway is running"
        )
    if coverage.dropped:
        notes.append(
            f"{coverage.dropped} was deleted from the usage log within the last day: it was older than `usage.retention_months`"
        )
    return [*notes, *coverage.known.notes()]


def _print(report: VerifyReport) -> None:
    for note in report.notes:
        typer.echo(f"note: {note}")
    if report.unread:
        typer.echo(
            f"note: {report.unread} archived ledger lines were taken as their sums; to check them, give `--archive DIR`"
        )
    for problem in report.expired:
        typer.echo(f"hold ended, its lease was over: account {problem.account}: {problem.what}")
    for problem in report.stale:
        typer.echo(f"too late to be charged: account {problem.account}: {problem.what}; see `gateway account adjust`")
    for problem in report.wrong:
        typer.echo(f"WRONG: account {problem.account}: {problem.what}")
    damaged = report.damaged or []
    for text in damaged:
        typer.echo(f"DAMAGED: {text}")
    problems = len(report.wrong) + len(damaged)
    verdict = f"{problems} thing{' is' if problems == 1 else 's are'} wrong" if problems else "all is right"
    agree = f"{counted(report.agreed, 'request')} agree{'s' if report.agreed == 1 else ''} with the usage log"
    typer.echo(
        f"{verdict}: {counted(report.accounts, 'account')}, {counted(report.lines, 'ledger line')}, {agree}, "
        f"{report.unknown} could not be compared"
    )
