"""`gateway audit`: who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.cli.client import ApiOption, run_with_client
from gateway.cli.common import ConfigOption, JsonOption, point_in_time, print_json, print_table

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.audit import AuditEntry

COLUMNS = ("at", "actor", "operation", "target", "outcome", "changed")

audit = typer.Typer(no_args_is_help=True, help="Show who changed what, and how it was before: list.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(audit, name="audit")


@audit.command("list")
def list_(
    actor: Annotated[str, typer.Option(help="Only those of whoever's name begins so, as in `command of alice`.")] = "",
    operation: Annotated[str, typer.Option(help="Only this operation, as in tokens.create, or tokens for all.")] = "",
    target: Annotated[
        str, typer.Option(help="Only what was done to this account with its tokens, or this token.")
    ] = "",
    since: Annotated[
        int | None,
        typer.Option(parser=point_in_time, metavar="TIME", help="Only later ones: 12h, 7d, 2026-11-21 (UTC)."),
    ] = None,
    by: Annotated[
        Literal["operators", "callers"] | None,
        typer.Option(help="Only what operators changed, or what callers changed at their own pages."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 50,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what, newest first: by commands, over the API and at the pages. JSON has it as it was before and after.

    Example: `gateway audit list --target alice --since 7d`
    """

    async def work(client: ActionClient) -> list[AuditEntry]:
        from gateway.admin.actions.action import LARGEST_LONG_PAGE
        from gateway.admin.actions.audit import AuditLines, list_

        found: list[AuditEntry] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            query = AuditLines(
                min(limit - len(found), LARGEST_LONG_PAGE),
                after,
                actor,
                operation,
                target,
                (since or 0) // 1000,
                by,
            )
            page = await list_(client, query=query)
            found += page.data
            after = page.next
        return found

    entries = run_with_client(config, api, work)
    if as_json:
        for entry in entries:
            print_json(entry)
        return
    print_table(
        COLUMNS,
        (
            (entry.at[:19], entry.actor, entry.operation, entry.target, entry.code or entry.outcome, _changed(entry))
            for entry in entries
        ),
        empty="Nothing was changed yet, or nothing of that kind.",
        optional=("changed",),
    )


def _changed(entry: AuditEntry) -> str:
    """Return the fields that differ, with their values before and after."""
    before, after = entry.before, entry.after
    if not isinstance(before, dict) or not isinstance(after, dict):
        return "-"
    names = [name for name in before if name in after and before[name] != after[name]]
    return ", ".join(f"{name}: {_short(before[name])} -> {_short(after[name])}" for name in names) or "-"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
