"""The rows of the table: the thing that callers share, and how a row's gateway differs from the others'."""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One shared thing. `attack` is the name of what the first caller does.

    `account`: the first caller's accounts: `usual` has the limits of the file, `heavy` nearly none, `four` are four accounts.
    `second`: what the second caller does. `channel`: more settings of the channel; `port`: settings of the port.
    """

    shared: str
    attack: str
    account: Literal["usual", "heavy", "four", "limited"] = "usual"
    second: Literal["chat", "large", "few", "admin", "same-address"] = "chat"
    channel: str = ""
    port: str = ""
    descriptors: int | None = None

    @property
    def name(self) -> str:
        """The name that `--only` takes: that of the attack, with what the second caller does if that is unusual."""
        return self.attack if self.second in ("chat", "large", "few") else f"{self.attack}-{self.second}"


KEYS: Final = "api_keys: [credential-number-1, credential-number-2, credential-number-3]"
MIB: Final = 1024 * 1024

ROWS: Final = (
    Row("nothing (the noise of the machine)", "nothing"),
    Row("nothing (a caller that is busy elsewhere)", "elsewhere"),
    Row("channel health: flagged input, 403", "flagged"),
    Row("channel health: an error as the first event", "error-event"),
    Row("channel health: 500 for one caller's requests", "broken"),
    Row("channel health: 413 of a proxy before the upstream", "too-large"),
    Row("channel health: 429 for one caller's requests", "limited"),
    Row("channel health: one model's 429, another model", "other-model"),
    Row("channel health: the probe", "probe"),
    Row("credentials of a channel", "credentials", channel=KEYS),
    Row("body budget: open streams", "body-budget", account="four", second="large"),
    Row(
        "body budget: bodies that do not come",
        "half-bodies",
        account="four",
        second="large",
        port=f"body_budget: {32 * MIB}",
    ),
    Row(
        "body budget: bodies that do not end",
        "kept-bodies",
        account="four",
        second="large",
        port=f"body_budget: {64 * MIB}",
    ),
    Row("connections: unfinished heads", "half-heads"),
    Row("connections: descriptors", "idle", descriptors=1024),
    Row("connections: opened and closed", "connections"),
    Row("disk: wrong tokens", "wrong-tokens"),
    Row("disk: no token", "no-token"),
    Row("wrong tokens from the second caller's address", "wrong-tokens", second="same-address"),
    Row("the store: health checks", "health"),
    Row("the store and the log: refused requests", "refused", account="limited"),
    Row("the store and the log: refused requests, 500 connections", "refused-on-many", account="limited"),
    Row("the store and the log: requests for models", "models"),
    Row("the usage log's stream: lookups", "lookups"),
    Row("the store: one account's holds", "holds", account="heavy"),
    Row("memory: 100 streams", "streams", account="heavy"),
    Row("event loop: tiny events", "tiny-events"),
    Row("event loop: large events", "large-events"),
    Row("memory: slow readers", "slow-readers", account="four"),
    Row("event loop: large JSON", "large-json"),
    Row("event loop: deep JSON", "deep-json"),
    Row("event loop: large prompts", "large-prompts"),
    Row("event loop: tiny chunks", "tiny-chunks"),
    Row("event loop: pipelining", "pipelining"),
    Row("upstream connections: callers that leave", "leaving"),
    Row("log lines: an upstream that cannot be reached", "unreachable"),
    Row("a channel's concurrent calls", "channel-slots", second="few"),
    Row("the operator's port: refused requests", "refused", account="limited", second="admin"),
    Row("the operator's port: large prompts", "large-prompts", second="admin"),
)
