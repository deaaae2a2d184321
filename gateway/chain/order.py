"""What a list of plugins must and should look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.chain.entry import Entry
from gateway.chain.hooks import api_of, may_answer
from gateway.errors import Misconfigured
from gateway.facts import Route
from gateway.plugin import PLUGIN_API


def check_order(entries: Sequence[Entry]) -> None:
    """Raise `Misconfigured` where a fact is required that no plugin above provides, or a plugin defines two forms of a hook."""
    provided: set[type] = set()
    for index, entry in enumerate(entries):
        for waiting, planning in (("on_request", "request_step"), ("on_end", "end_step")):
            if entry.defines(waiting) and entry.defines(planning):
                raise entry.wrong(f"'{entry.name}' defines both {waiting} and {planning}: keep one of them")
        for fact in entry.plugin.requires:
            if fact not in provided:
                raise entry.wrong(_cure(entry.name, fact, entries[index + 1 :]))
        if entry.on_error == "ignore":
            needed = {fact for other in entries[index + 1 :] for fact in other.plugin.requires} | {Route}
            for fact in needed.intersection(entry.plugin.provides):
                raise entry.wrong(
                    f"'{entry.name}' provides {fact.__name__}, which is needed: remove its `on_error: ignore`"
                )
        provided.update(entry.plugin.provides)
    if Route not in provided:
        wrong = entries[-1].wrong if entries else Misconfigured
        raise wrong("nothing in the chain provides Route: add `- use: model-routing` as the last plugin")


def warnings(entries: Sequence[Entry]) -> list[str]:
    """Return what is allowed and probably a mistake, in words."""
    undeclared = (
        f"`{entry.name}` does not say which API of plugins it is made for: write `API = {PLUGIN_API}` in its class"
        for entry in entries
        if api_of(type(entry.plugin)) is None
    )
    return [*_unrecorded(entries), *_answered_above_routing(entries), *undeclared]


def _unrecorded(entries: Sequence[Entry]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        if entry.plugin.sees_misdirected and index > 0:
            above = ", ".join(f"`{other.name}`" for other in entries[:index])
            yield f"`{entry.name}` is below {above}: requests refused there leave no record; move it to the top"
            return


def _answered_above_routing(entries: Sequence[Entry]) -> Iterator[str]:
    routing = next((index for index, entry in enumerate(entries) if Route in entry.plugin.provides), 0)
    for entry in entries[:routing]:
        if may_answer(type(entry.plugin)):
            name = entries[routing].name
            yield (
                f"`{entry.name}` answers requests above `{name}`: it answers also for models that the caller may not use; "
                f"move it below `{name}`"
            )


def _cure(name: str, fact: type, below: Sequence[Entry]) -> str:
    problem = f"'{name}' needs {fact.__name__}, which nothing above it provides"
    for entry in below:
        if fact in entry.plugin.provides:
            return f"{problem}: move '{entry.name}' above '{name}'"
    return f"{problem}: add a plugin that provides it above '{name}'"
