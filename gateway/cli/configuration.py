"""Questions about a configuration: its `check`, the changes of a new file (`diff`), decisions about a request (`explain`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import msgspec
import typer
import yaml
from msgspec import NODEFAULT

from gateway.base.amounts import amount
from gateway.base.errors import GatewayError, StoreAway
from gateway.base.text import shown
from gateway.chain import loading
from gateway.chain.services import Store, services_of
from gateway.cli.client import At, command
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    TokenOption,
    found,
    print_fields,
    print_json,
    print_table,
    refuse,
    store_of,
    store_url,
)
from gateway.config.channel import Fixed
from gateway.config.decode import Section
from gateway.config.document import folder_of
from gateway.config.model import Serving
from gateway.config.schema import Config, Group, Loaded, load
from gateway.domain.catalogue import Catalogue
from gateway.domain.facts import AskedFor, Caller
from gateway.operations.operation import SERVED, Operation
from gateway.runtime.data_folder import check_place, has_store
from gateway.store.accounts import AccountStatus
from gateway.store.client.durability import check_store, refuse_database
from gateway.store.client.topology import naming_the_store
from gateway.store.pepper import PepperSource, record_of, refuse_other
from gateway.tools.explain import Explanation, sample_of
from gateway.tools.explain import explain as explain_request
from gateway.usage.home import home_of

ONLY_STREAMS: Final = "as streams alone: chat completions in one piece need `port.allow_non_streaming`"


def check(
    config: ConfigOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the bound of every balance in figures.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration, the order of the chain, the plugins' settings and the store, without serving.

    Example: `gateway check --config gateway.yaml`
    """
    from gateway.runtime.active_config import ConfigTest
    from gateway.server.tls import Certificate

    path = found(config)
    loaded = load(path)
    with _with_store(loaded) as (tried, place):
        with ConfigTest(tried) as test:
            test.wait()
        if loaded.config.tls is not None:
            Certificate(loaded.config.tls)
        with store_url(tried.config) as url, naming_the_store(url):
            store_notes = asyncio.run(_store_notes(tried, url, PepperSource(loaded.config.data_path)))
            with ConfigTest(tried, url) as test:
                report = test.wait()
    requests = {name: words for name, each in loaded.config.channels.items() if (words := each.request_in_words)}
    result = {
        "config": str(path),
        "store": place,
        "chain": report.plugins,
        "models": list(loaded.config.models),
        "channels": list(loaded.config.channels),
        "adds": requests,
        "answers": "as streams or whole" if loaded.config.port.allow_non_streaming else ONLY_STREAMS,
        "bound": None if report.exposure is None else str(report.exposure),
        "warnings": report.warnings + store_notes,
    }
    if version := home_of(loaded.config).version():
        result["usage_log"] = f"PostgreSQL {version}"
    if as_json:
        print_json(result)
    else:
        result["adds"] = [f"{name} ({words})" for name, words in requests.items()] or "nothing to requests"
        if report.exposure is None:
            result["bound"] = "none: no plugin charges, or every model is free"
        elif not verbose:
            result["bound"] = report.exposure.in_words
        result["warnings"] = "\n".join(report.warnings + store_notes) or "none"
        print_fields(
            {key: ", ".join(value) or "none" if isinstance(value, list) else value for key, value in result.items()}
        )
        typer.echo("good")


@contextmanager
def _with_store(loaded: Loaded) -> Iterator[tuple[Loaded, str]]:
    """Yield what to check, and in words where its store is: one that is not there yet gets a folder that is removed at the end."""
    if has_store(loaded.config):
        yield loaded, loaded.config.data
        return
    check_place(loaded.config.data_path)
    with TemporaryDirectory(prefix="gateway-check-") as folder:
        (Path(folder) / "store.lock").touch()
        config = msgspec.structs.replace(loaded.config, data=folder)
        place = f"none at {loaded.config.data} yet: `gateway serve` makes it"
        if config.redis != "embedded":
            place = f"the one that `redis` names; the folder {loaded.config.data} is made by `gateway serve`"
        yield Loaded(config, loaded.document), place


async def _store_notes(loaded: Loaded, url: str, source: PepperSource) -> list[str]:
    async with Store.open(loaded.config, url) as store:
        try:
            notes = await check_store(store.client, accept_loss=loaded.config.store.accept_loss)
            if (record := await record_of(store.client)) is not None:
                refuse_other(record, source)
            return notes
        except StoreAway as error:
            refuse_database(loaded.document, error)
            raise


SECRET: Final = re.compile(r"(^|_)(secret|password|passphrase|token|key|pin|code)$", re.IGNORECASE)
"""Names of settings that are secrets, also where they are numbers."""


class ConfigChange(msgspec.Struct, frozen=True):
    """One difference. `takes`: whether a reload applies it, or only a restart."""

    place: str
    text: str
    takes: str = "reload"


def diff(
    new: Annotated[Path, typer.Argument(metavar="FILE", help="The new file, which would replace the present one.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a new file would change, and which changes need a restart.

    The new file is checked first. Accounts and tokens that could use no model any more are counted, if the store answers.

    Example: `gateway diff new.yaml --config gateway.yaml`
    """
    present = found(config)
    before = load(present)
    loaded = load(new, folder=folder_of(present))
    loading.build(loaded)
    differences = [
        msgspec.structs.replace(change, text=before.document.hide(loaded.document.hide(change.text)))
        for change in (*changes(before.config, loaded.config), *_lockouts(before.config, loaded.config))
    ]
    for change in differences:
        if as_json:
            print_json(change)
        else:
            restart = "" if change.takes == "reload" else "  (needs a restart)"
            print(f"{change.place}: {change.text}{restart}")
    if not differences and not as_json:
        print("nothing would change")


def changes(before: Config, after: Config) -> Iterator[ConfigChange]:
    """Yield every difference between two configurations. Values that may be secret are left out."""
    from gateway.runtime.reload import RELOADABLE, needs_restart

    restarts = needs_restart(before, after)
    for name in restarts:
        for change in _field(name, name, before, after):
            yield msgspec.structs.replace(change, takes="restart")
    if "port" not in restarts:
        yield from _field("port.trusted_proxies", "trusted_proxies", before.port, after.port)
    for name in Config.__struct_fields__:
        if name in RELOADABLE and name != "plugins":
            yield from _field(name, name, before, after)
    old = {entry.label: entry for entry in before.plugins if entry.enabled}
    new = {entry.label: entry for entry in after.plugins if entry.enabled}
    yield from _entries("plugins", old, new)
    stay = [label for label in old if label in new]
    if stay != [label for label in new if label in old]:
        yield ConfigChange("plugins", f"the order becomes {', '.join(new)}")


def _entries(place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ConfigChange]:
    for name in old.keys() - new.keys():
        yield ConfigChange(f"{place}.{name}", "is removed")
    for name, entry in new.items():
        if name not in old:
            yield ConfigChange(f"{place}.{name}", _added(entry))
        elif isinstance(entry, Section):
            yield from _fields(f"{place}.{name}", old[name], entry)
        elif entry != old[name]:
            yield ConfigChange(f"{place}.{name}", _becomes(old[name], entry))


def _fields(place: str, old: Section, new: Section) -> Iterator[ConfigChange]:
    for field in msgspec.structs.fields(new):
        yield from _field(f"{place}.{field.encode_name}", field.name, old, new)


def _field(place: str, name: str, old: Section, new: Section) -> Iterator[ConfigChange]:
    was, becomes = getattr(old, name), getattr(new, name)
    if isinstance(was, Section) and isinstance(becomes, Section):
        yield from _fields(place, was, becomes)
    elif isinstance(was, Fixed) and isinstance(becomes, Fixed):
        yield from _fixed(place, was, becomes)
    elif isinstance(was, dict) and isinstance(becomes, dict):
        yield from (_settings if name in new.hidden else _entries)(place, was, becomes)
    elif was == becomes:
        return
    elif name in new.hidden:
        yield ConfigChange(place, "changes")
    elif isinstance(was, list | tuple) and isinstance(becomes, list | tuple):
        yield from _lists(place, was, becomes)
    elif was is None and isinstance(becomes, Section):
        yield ConfigChange(place, _added(becomes))
    else:
        yield ConfigChange(place, "is removed" if isinstance(was, Section) else _becomes(was, becomes))


def _lists(place: str, was: Sequence[Any], becomes: Sequence[Any]) -> Iterator[ConfigChange]:
    """Yield what a list gains and loses. A model's channels are compared by their names where each is there once."""
    sides = [[Serving(item) if isinstance(item, str) else item for item in side] for side in (was, becomes)]
    if place.startswith("models.") and place.endswith(".channels"):
        old, new = ({item.use: item for item in side} for side in sides)
        if len(old) == len(was) and len(new) == len(becomes):
            yield from _entries(place, old, new)
            return
    added, removed = [item for item in becomes if item not in was], [item for item in was if item not in becomes]
    for items, word in ((added, "adds"), (removed, "removes")):
        for item in items:
            yield ConfigChange(place, f"{word} {_in_yaml(item)}")
    if not (added or removed):
        yield ConfigChange(place, f"becomes {_in_yaml(becomes)}")


def _settings(place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """Yield the differences between a plugin's settings. Only numbers and switches are shown: a text may be a secret."""
    for key in {**old, **new}:
        was, becomes = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(becomes, dict):
            yield from _settings(f"{place}.{key}", was, becomes)
        elif key not in new:
            yield ConfigChange(f"{place}.{key}", "is removed")
        elif key not in old or was != becomes:
            open_ = not SECRET.search(key) and all(isinstance(value, int | float | None) for value in (was, becomes))
            text = "changes" if key in old else "is added"
            if open_:
                text = _becomes(was, becomes) if key in old else f"is set to {_in_yaml(becomes)}"
            yield ConfigChange(f"{place}.{key}", text)


def _lockouts(before: Config, after: Config) -> Iterator[ConfigChange]:
    """Yield whom the change locks out, or that this is not known."""
    if not may_lock_out(before, after):
        return
    try:
        found = asyncio.run(locked_out(before, after))
    except GatewayError as error:
        yield ConfigChange("accounts", f"those that could use no model any more are not counted: {error}")
        return
    for group, ids in sorted(found.by_group.items()):
        yield ConfigChange(f"groups.{group}", f"{len(ids)} accounts in it would be refused with 403: {named(ids)}")
    if found.accounts:
        yield ConfigChange("accounts", f"{len(found.accounts)} could use no model any more: {named(found.accounts)}")
    if found.tokens:
        yield ConfigChange("tokens", f"{len(found.tokens)} could use no model any more: {named(found.tokens)}")


def _becomes(was: object, becomes: object) -> str:
    return f"{_in_yaml(was)} becomes {_in_yaml(becomes)}"


def _added(entry: object) -> str:
    return f"is added: {_in_yaml(entry)}" if _plain(entry) else "is added"


def _fixed(place: str, old: Fixed[Any], new: Fixed[Any]) -> Iterator[ConfigChange]:
    """Yield the names that differ: their values may be secret."""
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            yield ConfigChange(f"{place}.{name}", "is removed")
        elif name not in old:
            yield ConfigChange(f"{place}.{name}", "is added")
        elif Fixed({name: old[name]}) != Fixed({name: new[name]}):
            yield ConfigChange(f"{place}.{name}", "changes")


def _in_yaml(value: object) -> str:
    """Return a value in one line, as the file may have it."""
    text = yaml.safe_dump(_plain(value), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return "none" if value is None else text.removesuffix("...\n").strip().replace("'...'", "...")


def _plain(value: Any) -> Any:
    """Return a value as YAML has it: of a section what is not at its default. What may be secret is `...`."""
    if isinstance(value, Section):
        fields = [(field, _plain(getattr(value, field.name))) for field in msgspec.structs.fields(value)]
        return {
            field.encode_name: "..." if field.name in value.hidden else given
            for field, given in fields
            if field.required or given != _plain(_default(field))
        }
    if isinstance(value, Fixed):
        return dict.fromkeys(value, "...")
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Decimal | float):
        return int(value) if value == int(value) else float(value)
    return msgspec.to_builtins(value)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


AMOUNTS: Final = ("input", "output", "cached_input", "cache_write", "request")
"""The terms of a price that are amounts in micros."""


@command(options=("config", "as_json"), keys=True)
async def explain(
    at: At,
    model: Annotated[
        str | None, typer.Option(help="The model of the request. Default: each model, one after another.")
    ] = None,
    token: TokenOption = "",
    account: Annotated[
        str | None, typer.Option(metavar="ID", help="In place of a token: what this account and its group allow.")
    ] = None,
    token_id: Annotated[
        str | None, typer.Option(metavar="ID", help="In place of a token: the id of one, as in alice-1a2b3c4d.")
    ] = None,
    operation: Annotated[
        Operation | None,
        typer.Option(
            metavar="NAME",
            help=f"What is asked for: {', '.join(SERVED)}. Default: the first that the model is served on.",
            show_choices=False,
        ),
    ] = None,
    text: Annotated[str, typer.Option(help="Its text, whose length counts.")] = "Say hello",
    max_tokens: Annotated[int | None, typer.Option(help="Its ceiling, where the operation has one.")] = None,
    address: Annotated[str, typer.Option(help="The address that the caller connects from.")] = "127.0.0.1",
) -> None:
    """Show what would happen to a request now: each plugin's decision, the price, the hold, the channels.

    Nothing is sent, held, counted or charged. The exit code is 1 unless the request would be served.

    Without the caller's secret, name its token by `--token-id`, or its account by `--account`: then no token restricts it.

    Example: `gateway explain --account alice --model gpt-4o-mini --max-tokens 500`
    """
    if account is not None and token_id is not None:
        raise typer.BadParameter("give `--account` or `--token-id`, not both: a token's id has its account in it")
    if operation is not None and operation not in SERVED:
        raise typer.BadParameter(f"`{operation}` is none of {', '.join(SERVED)}")
    config, store = at.config, at.local.store
    if model is None and not config.models:
        raise refuse("the configuration has no models", "not_found")
    chain, catalogue = loading.build(at.local.loaded), Catalogue(config)
    headers = [("Authorization", f"Bearer {token}")] if token else []
    rules = catalogue.body_rules(config.port)
    asked = await _asked(at, account, token_id)
    with suppress(StoreAway):  # the chain says it
        await store.tokens.check_pepper()
    await chain.start(services_of(config, store))
    explanations = {}
    try:
        for name in [*config.models] if model is None else [model]:
            kind = operation or catalogue.first_operation(name)
            sample = sample_of(kind, name, text, max_tokens)
            explanations[name] = await explain_request(chain, headers, sample, rules, address, asked, kind)
    finally:
        await chain.stop()
    if model is not None:
        _print(explanations[model], at.as_json)
    else:
        _print_all(explanations, at.as_json)
    if not any(explanation.served for explanation in explanations.values()):
        raise typer.Exit(1)


async def _asked(at: At, account: str | None, token_id: str | None) -> AskedFor | None:
    """Return the account and the token that are named, which must exist; None where neither is."""
    if token_id is not None:
        return AskedFor((await at.local.store.tokens.get(token_id)).id.rpartition("-")[0], token_id)
    return None if account is None else AskedFor((await at.do("accounts.read", account)).id)


def _print(explanation: Explanation, as_json: bool) -> None:
    if as_json:
        print_json(explanation)
    else:
        print("\n".join(map(shown, _explanation_in_words(explanation).splitlines())))


def _print_all(explanations: Mapping[str, Explanation], as_json: bool) -> None:
    """Print a line for each model: whether it would be served, or which plugin refuses it and why."""
    if as_json:
        for model, explanation in explanations.items():
            print_json({"model": model, **msgspec.to_builtins(explanation)})
        return
    print_table(("model", "result", "why"), (_row(*each) for each in explanations.items()), empty="")


def _row(model: str, explanation: Explanation) -> tuple[str, str, str]:
    if explanation.refusal is not None:
        by = f"{explanation.refusal.by}: " if explanation.refusal.by else ""
        message = explanation.refusal.message.rpartition("The reason: ")[2]
        return model, f"refused: {explanation.refusal.status} {explanation.refusal.code}", by + message
    if explanation.served:
        first = next(choice for choice in explanation.channels if choice.verdict in ("first", "fallback"))
        return model, "served", f"by channel {first.channel}"
    return model, "not known", "no plugin with an `explain` chose a channel"


def _explanation_in_words(explanation: Explanation) -> str:
    lines = []
    for each in explanation.plugins:
        lines.append(f"{each.verdict:<8}  {each.plugin}: {each.text}")
        lines += [f"changes   {line}" for line in each.changes]
    if explanation.price:
        lines.append(f"price     {_terms(explanation.price)}")
    for choice in explanation.channels:
        named = f"{choice.verdict:<8}  channel {choice.channel}, as {choice.model}"
        lines.append(f"{named}: {choice.text}" if choice.text else named)
        if choice.request:
            lines.append(f"request   {choice.request}")
        if choice.cost:
            lines.append(f"cost      {_terms(choice.cost)}")
    if explanation.refusal is not None:
        by = f" by {explanation.refusal.by}" if explanation.refusal.by else ""
        lines.append(f"The request would be refused{by}: {explanation.refusal.status} {explanation.refusal.code}.")
    elif explanation.served:
        unknown = [each.plugin for each in explanation.plugins if each.verdict == "unknown"]
        unless = f", unless it is refused by {' or '.join(unknown)}, which cannot say" if unknown else ""
        lines.append(f"The request would be served{unless}.")
    else:
        lines.append(
            "It is not known whether the request would be served: no plugin with an `explain` chose a channel."
        )
    return "\n".join(lines)


def _terms(price: dict[str, Any]) -> str:
    """Return the terms of a price, with amounts in units of the currency; those of tokens are for a million of them."""
    shown = {
        name.removesuffix("_micros"): amount(value) if name in AMOUNTS or name.endswith("_micros") else value
        for name, value in price.items()
    }
    return ", ".join(f"{name} {value}" for name, value in shown.items())


Terms = tuple[str, tuple[str, ...], tuple[str, ...]]
"""What decides which models a caller may use: the group of its account, and the models of its account and of its token."""


class LockedOut(msgspec.Struct):
    """The ids of those that are locked out: accounts by a group that is not served any more, other accounts, tokens of others."""

    by_group: dict[str, list[str]] = {}
    accounts: list[str] = []
    tokens: list[str] = []


def may_lock_out(before: Config, after: Config) -> bool:
    """Return whether the change takes a model or a group away, or changes what a group may use."""
    if not before.models.keys() <= after.models.keys():
        return True
    return any(_allowed(group) != _allowed(after.groups.get(name)) for name, group in before.groups.items())


async def locked_out(before: Config, after: Config) -> LockedOut:
    """Return whom a change of the configuration would lock out. Raises `GatewayError` where the store cannot be read."""
    found, groups, old, new = LockedOut(), {}, Catalogue(before), Catalogue(after)

    @cache
    def loses_all(terms: Terms) -> bool:
        return _may_use_any(old, terms) and not _may_use_any(new, terms)

    async with store_of(before) as store:
        async for account in store.accounts.all():
            if account.status is AccountStatus.CLOSED:
                continue
            if not loses_all((account.group, account.models, ())):
                groups[account.id] = (account.group, account.models)
            elif _is_served(new, account.group):
                found.accounts.append(account.id)
            else:
                found.by_group.setdefault(account.group, []).append(account.id)
        async for token in store.tokens.all():
            terms = groups.get(token.id.rpartition("-")[0])
            if token.models and terms is not None and loses_all((*terms, token.models)):
                found.tokens.append(token.id)
    return found


def _allowed(group: Group | None) -> object:
    return group and (group.enabled, group.models, group.channels)


def _may_use_any(catalogue: Catalogue, terms: Terms) -> bool:
    group, of_account, of_token = terms
    caller = Caller("", "", group, account_models=of_account or None, token_models=of_token or None)
    return _is_served(catalogue, group) and bool(catalogue.visible(caller))


def _is_served(catalogue: Catalogue, name: str) -> bool:
    group = catalogue.group(name)
    return group is not None and group.enabled


def named(ids: Sequence[str], most: int = 5) -> str:
    """Return ids with commas between them, of many the first ones."""
    return ", ".join(sorted(ids)[:most]) + (", ..." if len(ids) > most else "")
