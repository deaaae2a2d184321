"""The report: kinds, counts and outcomes, then each violation with what was done around it."""

from __future__ import annotations

import json
from collections import Counter

import msgspec

from tests.bench.life.known import tolerated
from tests.bench.life.oracle import in_words
from tests.bench.life.seen import Seen
from tests.bench.life.world import World

AROUND_S = 3.0
SHOWN = 5
"""Violations of one sort that are printed in full."""


class Violation(msgspec.Struct):
    """Something wrong: where a caller saw it, with its request, and what was done around it."""

    what: str
    tolerated: bool
    id: str = ""
    tag: str = ""
    kind: str = ""
    saw: str = ""
    model: str = ""
    at: str = ""
    around: list[str] = []

    @classmethod
    def of(cls, world: World, what: str, seen: Seen | None) -> Violation:
        known = tolerated(what, seen)
        if seen is None:
            return cls(what, known)
        around = world.timeline.around(seen.sent - AROUND_S, seen.ended + AROUND_S)
        at = f"{seen.sent:.2f}-{seen.ended:.2f} s"
        return cls(what, known, seen.id, seen.tag, seen.kind, in_words(seen), seen.model, at, list(map(str, around)))

    @property
    def sort(self) -> str:
        """The violation without its numbers, to count those that are alike."""
        return (
            " ".join(word for word in self.what.split()[:6] if not any(c.isdigit() for c in word)) + f" [{self.model}]"
        )


def table(world: World) -> list[str]:
    """Return the lines of a table: each kind of caller and model, and what its requests saw how often."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for seen in world.seen:
        counts.setdefault((seen.kind, seen.model), Counter())[in_words(seen)] += 1
    lines = ["| caller | model | requests | saw |", "|---|---|---|---|"]
    for (kind, model), saw in sorted(counts.items()):
        lines.append(
            f"| {kind} | {model} | {saw.total()} | {', '.join(f'{n} {what}' for what, n in saw.most_common())} |"
        )
    return lines


def as_text(violations: list[Violation]) -> list[str]:
    """Return the lines that describe the violations, some of each sort in full."""
    lines, shown = [], Counter[str]()
    for each in violations:
        shown[each.sort] += 1
        if shown[each.sort] <= SHOWN:
            mark = "tolerated" if each.tolerated else "VIOLATION"
            lines.append(f"{mark}: {each.what}")
            if each.tag:
                lines.append(
                    f"    {each.kind}, model {each.model}, saw {each.saw}, {each.at}, id {each.id or 'none'}, {each.tag}"
                )
            lines += [f"    around: {injection}" for injection in each.around]
    lines += [f"{count} times: {sort}" for sort, count in shown.most_common() if count > SHOWN]
    return lines


def as_json(summary: dict[str, object], violations: list[Violation]) -> str:
    return json.dumps({**summary, "violations": msgspec.to_builtins(violations)})
