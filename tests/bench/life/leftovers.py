"""What is left after a run: the books, the usage log, the log of the gateway, secrets, and resources."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

from gateway.usage import queries
from gateway.usage.database import UsageFiles
from gateway.usage.record import Record
from gateway.usage.sink import Sink
from tests.bench.life.answers import KINDS
from tests.bench.life.settings import CANARY
from tests.bench.life.site import Site
from tests.bench.life.world import World
from tests.bench.process import anonymous_kib, sockets

KEEPS_SECRETS: Final = frozenset({"pepper", "admin.token", "gateway.yaml"})
PARENT_KIB: Final = 4 * 1024
"""What the parent may have more than at first. The first reload takes 1 MiB."""
WORKER_KIB: Final = 8 * 1024
"""The same for a worker: the allocator keeps what some large bodies at once took."""
TASKS, SOCKETS = 8, 16


class Resources(msgspec.Struct):
    """Of the parent and the spared worker, while no request is open."""

    parent_kib: int
    worker_kib: int
    tasks: int
    sockets: int

    @classmethod
    def measure(cls, site: Site, spared: int) -> Resources:
        tasks = int((site.folder / f"tasks-{spared}").read_text() or 0)
        return cls(anonymous_kib(site.pid), anonymous_kib(spared), tasks, sockets([site.pid, spared]))

    def growth(self, first: Resources) -> list[str]:
        """Describe what is more than it was first."""
        grown = []
        if self.parent_kib > first.parent_kib + PARENT_KIB:
            grown.append(f"memory of the parent: {self.parent_kib} KiB after {first.parent_kib}")
        if self.worker_kib > first.worker_kib + WORKER_KIB:
            grown.append(f"memory of the worker: {self.worker_kib} KiB after {first.worker_kib}")
        if self.tasks > first.tasks + TASKS:
            grown.append(f"tasks: {self.tasks} after {first.tasks}")
        if self.sockets > first.sockets + SOCKETS:
            grown.append(f"sockets: {self.sockets} after {first.sockets}")
        return grown


async def read_log(site: Site) -> dict[str, list[Record]]:
    """Move the usage log of a stopped gateway into its files, close what never ended, and return all rows by id."""
    rows: dict[str, list[Record]] = defaultdict(list)
    async with site.store() as store:
        sink = Sink(store.usage, retention_months=13, crashed_after_s=600)
        while await sink.move_batch():
            pass
        while await sink.close_lost(_now_ms()):
            while await sink.move_batch():
                pass
        sink.home.close()
        for record in queries.select(UsageFiles(store.usage.folder)):
            rows[record.id].append(record)
    return rows


def _now_ms() -> int:
    return round(time.time() * 1000)


async def check_books(site: Site, world: World, when: str) -> dict[str, object]:
    """Run `gateway verify`; what it finds is wrong."""
    code, output = await site.run("verify", "--json")
    if code != 0:
        world.wrong(f"gateway verify, {when}: exit code {code}: {output[-2000:]}")
        return {}
    report: dict[str, object] = json.loads(output[output.index("{") :])
    return report


async def check_holds(site: Site, world: World) -> None:
    """Nothing is held once all leases are over, and the account `exact` was served as often as it paid."""
    async with site.store() as store:
        async for account in store.accounts.all():
            if account.held_micros or account.holds:
                world.wrong(
                    f"account {account.id} still holds {account.held_micros} micros of {account.holds} requests"
                )
            if account.balance_micros < 0:
                world.wrong(f"account {account.id} has a balance of {account.balance_micros} micros")


def check_logs(site: Site, world: World) -> None:
    """Find tracebacks in the gateway's log, and secrets in any file that is not meant to keep them."""
    text = site.log.read_text(errors="replace")
    seen = set()
    for line in text.splitlines():
        if "Traceback" in line and (what := line[-160:]) not in seen:
            seen.add(what)
            sort = "of a full disk" if "No space left" in line else "in the log"
            world.wrong(f"a traceback {sort}: {line[:200]} ... {what}")
    secrets = {f"the token for {use}": token for use, token in world.tokens.items() if use != "malformed"}
    secrets |= {f"the end of the token for {use}": token.rpartition("-")[2] for use, token in secrets.items()}
    secrets |= {f"the credential of {name}": CANARY.format(name) for name in KINDS}
    secrets |= {name: (site.data / name).read_text().strip() for name in KEEPS_SECRETS - {"gateway.yaml"}}
    for file in sorted(path for path in site.folder.rglob("*") if path.is_file() and path.name not in KEEPS_SECRETS):
        data = file.read_bytes()
        for what, secret in secrets.items():
            if secret.encode() in data:
                world.wrong(f"a secret in {file.relative_to(site.folder)}: {what}")


def errors_logged(log: Path) -> dict[str, int]:
    """Count the events of the log that are errors or warnings."""
    counts: dict[str, int] = defaultdict(int)
    for line in log.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if entry.get("level") in ("error", "warning"):
                counts[f"{entry['level']} {entry['event']}"] += 1
        except (ValueError, KeyError, AttributeError):
            counts["not JSON"] += 1
    return counts
