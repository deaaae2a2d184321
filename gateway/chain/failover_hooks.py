"""The hooks that decide whether another upstream is called after one that failed."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.chain.entry import Entry
from gateway.chain.failures import is_cancellation, origin_of
from gateway.errors import Refused, StoreAway
from gateway.exchange import Exchange
from gateway.log import Logger

log = Logger("gateway.chain")


async def may_fail_over(exchange: Exchange, entries: Sequence[Entry]) -> bool:
    """Return whether no plugin prevents a further attempt. What does is logged: the caller gets the failed attempt's error."""
    for entry in entries:
        try:
            await entry.plugin.on_failover(exchange)
        except BaseException as error:
            if is_cancellation(error):
                raise
            if isinstance(error, Refused | StoreAway):
                reason = error.code if isinstance(error, Refused) else str(error)
                log.warning("failover_refused", plugin=entry.name, request_id=exchange.id, reason=reason)
            else:
                where = origin_of(error, entry.name, "on_failover")
                log.error("plugin_failed", **where, request_id=exchange.id, exc_info=error)
            if entry.on_error == "refuse" or isinstance(error, Refused):
                return False
    return True
