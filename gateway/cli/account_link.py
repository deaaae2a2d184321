"""`gateway account link`: let a caller in at the pages of its own account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.cli.account_options import IdArgument
from gateway.cli.admin import address_of_pages, print_link
from gateway.cli.client import ApiOption, run_with_client
from gateway.cli.common import ConfigOption, JsonOption, configuration
from gateway.cli.named import account_at

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.links import Link


def link(
    account_id: IdArgument, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Print an address that lets a caller in at the pages of its own account, once, within ten minutes.

    They show its use, its requests, its budgets and its ledger, and make and delete its tokens. The caller stays in for twelve
    hours, until it leaves, or until the token that the link was made with is revoked or changed. The address is that of `portal:`
    in the file, or else of the operator's port, or of `--api`.

    Example: `gateway account link alice`
    """

    async def work(client: ActionClient) -> Link:
        from gateway.admin.actions import links

        return await links.own(client, await account_at(client, account_id))

    made = run_with_client(config, api, work)
    if not api:
        settings = configuration(config)
        api = address_of_pages(settings.portal or settings.admin)
    print_link(made, api, as_json)
