"""What a plugin holds for a request, in its memory and in the store, as numbers that can be compared."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sized
from typing import Any

from gateway.plugin import Plugin
from gateway.store.client.client import Client

Held = dict[str, float]
"""Names of what was found, with its size or its number."""


def in_memory(plugin: Plugin) -> Held:
    """Sizes of containers, numbers, free places of semaphores: of the plugin, and of its module's own objects in it."""
    found: Held = {}
    _look_into(vars(plugin), "", type(plugin).__module__, found)
    return found


def _look_into(attributes: Mapping[str, object], prefix: str, module: str, found: Held) -> None:
    for name, value in attributes.items():
        place = prefix + name
        if isinstance(value, asyncio.Semaphore):
            found[f"free places of `{place}`"] = value._value
        elif isinstance(value, int | float):
            found[f"`{place}`"] = value
        elif isinstance(value, deque) and value.maxlen is not None:
            continue
        elif isinstance(value, Sized) and not isinstance(value, str | bytes):
            found[f"the size of `{place}`"] = len(value)
            if isinstance(value, Mapping):
                found[f"the sum of `{place}`"] = sum(item for item in value.values() if isinstance(item, int | float))
        elif type(value).__module__ == module and hasattr(value, "__dict__") and not prefix:
            _look_into(vars(value), f"{place}.", module, found)


async def in_store(client: Client, request_id: str) -> Held:
    """Every key with its fields and members; numbers as they are, all else as 1. The request's id reads `<id>`."""
    found: Held = {}
    for key in await client.call("KEYS", "*"):
        for member, number in await _members(client, key):
            name = f"`{_text(key)}`" + (f" {_text(member)}" if member else "")
            name = name.replace(request_id, "<id>")
            found[name] = found.get(name, 0) + number
    return found


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
