"""Snapshots of what a plugin keeps, in memory and in the store, as numbers that can be compared."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sized
from typing import Any

from gateway.plugin import Plugin
from gateway.store.client.client import Client

Snapshot = dict[str, float]
"""Sizes and numbers by their names, which are fit for a sentence."""


def memory_snapshot(plugin: Plugin) -> Snapshot:
    """Return the numbers, sizes of containers and free slots of semaphores in a plugin's attributes.

    Attributes that are objects of a class of the plugin's own module are looked into, one level deep.
    """
    snapshot: Snapshot = {}
    _add_attributes(vars(plugin), "", type(plugin).__module__, snapshot)
    return snapshot


def _add_attributes(attributes: Mapping[str, object], prefix: str, module: str, snapshot: Snapshot) -> None:
    for name, value in attributes.items():
        path = prefix + name
        if isinstance(value, asyncio.Semaphore):
            snapshot[f"free slots of `{path}`"] = value._value
        elif isinstance(value, int | float):
            snapshot[f"`{path}`"] = value
        elif isinstance(value, deque) and value.maxlen is not None:
            continue
        elif isinstance(value, Sized) and not isinstance(value, str | bytes):
            snapshot[f"the size of `{path}`"] = len(value)
            if isinstance(value, Mapping):
                snapshot[f"the sum of `{path}`"] = sum(item for item in value.values() if isinstance(item, int | float))
        elif type(value).__module__ == module and hasattr(value, "__dict__") and not prefix:
            _add_attributes(vars(value), f"{path}.", module, snapshot)


async def store_snapshot(client: Client, request_id: str) -> Snapshot:
    """Return every key of the store with its fields or members: numbers as they are, anything else as 1.

    The request's id is replaced by `<id>`, so that snapshots of different requests can be compared.
    """
    snapshot: Snapshot = {}
    for key in await client.call("KEYS", "*"):
        for member, number in await _members(client, key):
            name = f"`{_text(key)}`" + (f" {_text(member)}" if member else "")
            name = name.replace(request_id, "<id>")
            snapshot[name] = snapshot.get(name, 0) + number
    return snapshot


async def _members(client: Client, key: Any) -> list[tuple[Any, float]]:
    match _text(await client.call("TYPE", key)):
        case "string":
            return [("", _number(await client.call("GET", key)))]
        case "hash":
            fields = await client.call("HGETALL", key)
            return [(field, _number(value)) for field, value in fields.items()]
        case "set":
            return [(member, 1) for member in await client.call("SMEMBERS", key)]
        case "zset":
            return [(member, 1) for member in await client.call("ZRANGE", key, 0, -1)]
        case "list":
            return [("", await client.call("LLEN", key))]
        case "stream":
            return [("", await client.call("XLEN", key))]
    return [("", 1)]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _number(value: Any) -> float:
    try:
        return float(_text(value))
    except ValueError:
        return 1
