"""The names of the usage log's keys in the store. All are in one hash slot, so that one script may use all of them."""

from __future__ import annotations

from typing import Final

STREAM: Final = "gw:{usage}:stream"
"""The stream of arrivals and ends of all gateways. It has a consumer group for each gateway, named after its installation."""
HEARD: Final = "gw:{usage}:heard"
"""A sorted set: when each gateway's sink was last heard of, in milliseconds of the store's clock."""
GATEWAYS: Final = "gw:{usage}:gateways"
"""A hash: what each gateway says about itself, see `gateways.About`."""
TRIMMED: Final = "gw:{usage}:trimmed"
"""The id of the last entry that was removed from the stream."""
LATE: Final = "gw:{usage}:late"
"""A sorted set: the arrival of the oldest of some requests that were written late, by the time at which they were written."""

WANTED: Final = "gw:{usage}:wanted"
"""A hash: what each gateway is asked for by one that has a gap, see `filling`."""
FILLED: Final = "gw:{usage}:filled"
"""What the names of the answers begin with; the asker follows. They expire."""
COPIER: Final = "gw:{usage}:copier"
"""The gateway that copies to ClickHouse; expires."""
COPIED: Final = "gw:{usage}:copied"
"""The id of an entry of the stream: it, and all before, is in ClickHouse."""

EARLIER: Final = "gw:usage:"
"""What the name of a stream began with when each gateway had its own; its installation follows."""
