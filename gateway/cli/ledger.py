"""`gateway account ledger`: what changed an account's balance, newest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from gateway.cli.client import ApiOption, run_with_client
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    amount,
    print_csv,
    print_json,
    print_table,
    printable,
)
from gateway.cli.named import account_at

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.money import Ledger
    from gateway.store.money.ledger import Line

PAGE: Final = 1000
ARCHIVED: Final = "archived"


def ledger(
    account_id: Annotated[str, typer.Argument(metavar="ID", help="The account's id.")],
    limit: Annotated[int, typer.Option(min=1, help="How many lines to list at most.")] = 50,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV; amounts in millionths of a currency unit.")] = False,
) -> None:
    """List what changed an account's balance, newest first: credits, adjustments, and the charge of each request.

    `charge`: what a request cost. `release`: a request that cost nothing. `expiry`: a request that was not settled, because its
    gateway died, and what was charged for it; `late`: the correction of that. The last line sums up what was archived.

    Example: `gateway account ledger alice --limit 1000 --csv > alice.csv`
    """

    async def work(client: ActionClient) -> tuple[str, Ledger]:
        name = await account_at(client, account_id)
        return name, await _read(client, name, limit)

    name, found = run_with_client(config, api, work)
    rows = [*map(_row, found.data), *_archived(found)]
    if as_csv:
        print_csv(rows)
    elif as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(
            ("time (UTC)", "kind", "amount", "request or transaction"),
            map(_cells, rows),
            empty=f"The ledger of `{name}` has no lines yet.",
        )
    if found.next:
        typer.echo(f"note: there are older lines; --limit {limit * 10} lists more of them", err=True)


async def _read(client: ActionClient, account: str, limit: int) -> Ledger:
    """Return the newest lines, up to `limit`, read in parts."""
    from gateway.admin.actions import money
    from gateway.admin.actions.money import LedgerLines

    lines: list[Line] = []
    while True:
        query = LedgerLines(min(PAGE, limit - len(lines)), lines[-1].id if lines else "")
        page = await money.ledger(client, account, query=query)
        lines += page.data
        if not page.next or len(lines) >= limit:
            return msgspec.structs.replace(page, data=lines)


def _row(line: Line) -> dict[str, Any]:
    return msgspec.structs.asdict(line)


def _archived(found: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the line for what was archived, where the list reaches it."""
    archived = found.archived
    if archived is not None and not found.next:
        from gateway.store.money.ledger import Line

        text = f"{archived.lines} older lines, moved by `gateway account archive`"
        yield _row(Line("", archived.until, ARCHIVED, archived.amount_micros, reason=text))


def _cells(row: dict[str, Any]) -> Sequence[str]:
    subject = " ".join(filter(None, (row["request_id"], row["transaction"], row["reason"])))
    return row["at"][:19].replace("T", " "), row["kind"], amount(row["amount_micros"]), printable(subject)
