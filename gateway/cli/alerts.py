"""`gateway alerts`: a test of the webhook, and what waits for it."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any

import typer

from gateway.alerts import event
from gateway.alerts.event import Outbox
from gateway.alerts.sender import Delivery, Webhook
from gateway.alerts.signature import secrets_of
from gateway.base.ids import utc
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    configuration,
    print_fields,
    print_json,
    print_table,
    refuse,
    run_with_store,
)

if TYPE_CHECKING:
    from gateway.chain.services import Store
    from gateway.config.schema import AlertSettings, Config

SHOWN = 100

alerts = typer.Typer(no_args_is_help=True, help="Send a test to the webhook (test), and show what waits for it (list).")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(alerts, name="alerts")


@alerts.command()
def test(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Send an event of the type `test` to the webhook, and print what it answers. The exit code is 0 for a 2xx alone.

    Example: `gateway alerts test`
    """
    read = configuration(config)
    settings = _settings(read)
    began = time.monotonic()
    id, answer = asyncio.run(_send(read, settings))  # noqa: A001
    result: dict[str, Any] = {
        "host": settings.host,
        "id": id,
        "status": answer.status or None,
        "error": answer.error,
        "took_ms": round((time.monotonic() - began) * 1000),
        "answer": answer.body,
    }
    if as_json:
        print_json(result)
    elif answer.status:
        print_fields({name: value for name, value in result.items() if value})
    if answer.error:
        raise refuse(f"the webhook at {settings.host} did not accept the alert: {answer.error}; {answer.cure}")


@alerts.command(name="list")
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the alerts that the webhook has not accepted yet, and the last that were given up after a day.

    Example: `gateway alerts list --json | jq .error`
    """
    _settings(configuration(config))
    rows = run_with_store(config, _rows)
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = ("state", "type", "since", "attempts", "next attempt", "error", "id")
    print_table(columns, (tuple(row.values()) for row in rows), empty="No alert waits, and none was given up.")


async def _send(read: Config, settings: AlertSettings) -> tuple[str, Delivery]:
    webhook = Webhook(settings.webhook, secrets_of(read, create=False))
    entry = event.entry_of(event.test(socket.gethostname()))
    try:
        return entry.id, await webhook.post(entry.id, entry.body.encode())
    finally:
        await webhook.close()


async def _rows(store: Store) -> list[dict[str, Any]]:
    outbox = Outbox(store.client)
    waiting = [("pending", entry, utc(at)) for entry, at in await outbox.pending(SHOWN)]
    given_up = [("given up", entry, "") for entry in await outbox.given_up()]
    return [
        {
            "state": state,
            "type": entry.type,
            "since": utc(entry.created_ms),
            "attempts": entry.attempts,
            "next_attempt": following,
            "error": entry.error,
            "id": entry.id,
        }
        for state, entry, following in waiting + given_up
    ]


def _settings(read: Config) -> AlertSettings:
    """Return the section `alerts`, or exit with an error where there is none."""
    if read.alerts is None:
        raise refuse("the configuration has no `alerts:`; add it, as in `alerts: {webhook: https://host/path}`")
    return read.alerts
