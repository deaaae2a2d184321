"""Each file of the data folder, damaged in each way: every command says in one line what is wrong, and the rest works."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.base.errors import GatewayError
from gateway.chain.services import Store
from gateway.cli.commands import program
from gateway.config.schema import load
from gateway.store.embedded import EmbeddedStore
from gateway.store.money.archive import Archive, Archiver
from gateway.store.money.scripts import Settlement
from gateway.store.pepper import make_pepper
from gateway.usage import queries
from gateway.usage.database import UsageFiles, path_of
from gateway.usage.gateways import forget, gateways_of
from gateway.usage.record import encode
from gateway.usage.stream import write_lines
from tests.cli.processes import demo_in
from tests.forked import FORKED
from tests.patience import PATIENCE_S
from tests.records import arrival, end, id_at, usage_database, usage_sink
from tests.runtime.test_data_folder import NOBODY, as_user, root_only
from tests.store.conftest import wallet_of_then

OLD_MS = round((time.time() - 100 * 86_400) * 1000)
OLD = end(arrival(id_at(OLD_MS)), account="elder", charge_micros=27)
NOW = end(arrival(), account="acme", charge_micros=27)
CURRENT_DATABASE, OLD_DATABASE = (str(path_of(Path("data/usage"), record.arrived_at[:7])) for record in (NOW, OLD))

SEED = 11


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size or 1))


def append(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(50))


def garble(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = chance.randrange(max(1, len(data) - 200))
    data[at : at + 200] = chance.randbytes(min(200, len(data)))
    path.write_bytes(data)


def empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


def replace_by_folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(cut, append, garble, empty, remove, replace_by_folder, replace_by_link),
)
VERIFY = ("verify", "--archive", "archive")
LIST, SUMMARY, EXPORT = ("usage", "list"), ("usage", "summary", "--by", "account,day"), ("usage", "export")
TRACE_NOW, TRACE_OLD, SHOW = ("trace", NOW.id), ("trace", OLD.id), ("account", "show", "acme")
CREATE_TOKEN = ("token", "create", "acme")
ARCHIVE = ("account", "archive", "elder", "--before", "5d", "--to", "archive")
FILES: dict[str, tuple[tuple[str, ...], ...]] = {
    "data/pepper": (SHOW, CREATE_TOKEN),
    "data/usage/installation": (VERIFY, TRACE_NOW, SUMMARY),
    "data/usage/sink.lock": (VERIFY,),
    CURRENT_DATABASE: (VERIFY, LIST, SUMMARY, EXPORT, TRACE_NOW, TRACE_OLD),
    OLD_DATABASE: (VERIFY, LIST, SUMMARY, TRACE_NOW, TRACE_OLD),
    "data/usage/spool/0.jsonl": (VERIFY,),
    "data/journal/0.jsonl": (VERIFY,),
    "archive/elder.jsonl": (VERIFY, ARCHIVE),
}
"""The files, each with the commands that read it."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore.start(tmp_path_factory.mktemp("store"))
    yield store
    store.stop()


@pytest.fixture(scope="module")
def whole(store: EmbeddedStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every file of a gateway."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "gateway.yaml").write_text(
        f"redis: {store.url}\ndata: data\nadmin: null\nstore: {{timeout: {PATIENCE_S}}}\n"
        "plugins: [{use: usage-logger}, {use: auth}, {use: model-routing}]\n"
    )
    asyncio.run(_fill(folder, store))
    return folder


async def _fill(folder: Path, store: EmbeddedStore) -> None:
    with chdir(folder):
        config = load(folder / "gateway.yaml").config
        make_pepper(config.data_path)
        async with Store.open(config, store.url) as opened:
            for account in ("acme", "elder"):
                await opened.accounts.create(account)
                await opened.tokens.create(account)
            await opened.wallet.settle("acme", NOW.id, 27)
            await wallet_of_then(opened.client, 100 * 86_400).settle("elder", OLD.id, 27)
            archiver = Archiver(opened.client, Archive(folder / "archive"))
            assert await archiver.move("elder", OLD_MS + 86_400_000) == 1
            rows = usage_database(folder / "data" / "usage")
            rows.write([OLD, NOW, *(end(arrival(), account="none", charge_micros=0, price={}) for _ in range(50))])
            rows.close()
            opened.journal.append(Settlement("acme", arrival().id, 5))
            (journal,) = (folder / "data" / "journal").iterdir()
            journal.rename(journal.with_name("0.jsonl"))
            write_lines(folder / "data" / "usage" / "spool", [encode(end(arrival(), account="", charge_micros=0))] * 3)
            (spooled,) = (folder / "data" / "usage" / "spool").iterdir()
            spooled.rename(spooled.with_name("0.jsonl"))
    (folder / "data" / "admin.token").write_text("x" * 32)
    (folder / "data" / "usage" / "sink.lock").touch()
    (folder / "data" / "usage" / "clickhouse.place").write_text("2026-11.7")


def copied(whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(whole, folder, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GATEWAY_PEPPER", raising=False)
    return folder


def run(*command: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed. It must not raise."""
    result = CliRunner().invoke(program(), [*command, "--config", "gateway.yaml"])
    assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exc_info)
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def test_without_damage_every_command_succeeds(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(whole, tmp_path, monkeypatch)
    for command in sorted({command for commands in FILES.values() for command in commands}):
        code, printed = run(*command)
        assert code == 0, (command, printed)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("file", FILES)
def test_a_command_works_or_says_in_a_line_which_file_is_wrong(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    damage: Callable[[Path, random.Random], None],
) -> None:
    folder = copied(whole, tmp_path, monkeypatch)
    damage(folder / file, random.Random(SEED))
    for command in FILES[file]:
        code, printed = run(*command)
        words = " ".join(printed.split())
        assert code == 0 or any(mark in words for mark in ("WRONG: ", "DAMAGED: ", "gateway: ", "never arrived")), (
            command
        )
        if code == 2:
            assert file in words or "pepper" in words, (command, printed)
    asyncio.run(_background_work_goes_on(folder))


async def _background_work_goes_on(folder: Path) -> None:
    """What the sink and the maintenance do: new records are stored, other charges are delivered."""
    config = load(folder / "gateway.yaml").config
    try:
        async with Store.open(config, config.redis) as store:
            mine = end(arrival(), account="", charge_micros=0)
            await store.usage.end(mine)
            for gone in await gateways_of(store.client):  # a folder that has lost its name is another gateway
                if gone.installation != store.usage.installation:
                    await forget(store.client, gone)
            sink = usage_sink(store.usage, retention_months=13, crashed_after_s=600)
            for _ in range(4):
                await sink.move_batch()
            sink.home.close()
            assert queries.find(UsageFiles(store.usage.folder), mine.id) == mine
            store.journal.append(Settlement("acme", (charge := arrival()).id, 3))
            await store.journal.replay(store.wallet.deliver)
            assert charge.id in await store.wallet.ends("acme", [charge.id])
    except GatewayError as error:
        assert "installation" in str(error) or "pepper" in str(error)


@pytest.mark.parametrize(
    ("file", "damage", "code", "said"),
    [
        ("pepper", remove, 2, "data/pepper is missing, and is not made anew"),
        ("pepper", cut, 2, "pepper"),
        ("pepper", garble, 2, "the pepper is not the one with which the store's tokens were made"),
        ("usage/installation", empty, 2, "usage/installation is damaged"),
        ("appendonlydir/appendonly.aof.manifest", remove, 2, "appendonly.aof.manifest is missing"),
    ],
)
def test_a_gateway_that_cannot_be_started_says_why_in_a_line(
    served: Path, tmp_path: Path, file: str, damage: Callable[[Path, random.Random], None], code: int, said: str
) -> None:
    shutil.copytree(served, tmp_path / "data", ignore=shutil.ignore_patterns("store.sock"))
    damage(tmp_path / "data" / file, random.Random(SEED))
    result = serve(tmp_path, timeout_s=PATIENCE_S)
    assert (result.returncode, said in result.stderr) == (code, True), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of a demo that was started and stopped."""
    folder = tmp_path_factory.mktemp("served")
    demo = demo_in(folder)
    with subprocess.Popen(
        [FORKED, "-m", "gateway", "serve", "--config", str(demo)], cwd=folder, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while b"balances are kept" not in process.stdout.readline():
            assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    return folder / "data"


def serve(folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [FORKED, "-m", "gateway", "serve", "--config", str(demo_in(folder))]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)


@root_only
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_another_user_owns_is_named(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    folder = copied(whole, tmp_path, monkeypatch)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / file).chmod(0o600)
    for command in FILES[file]:
        with as_user(NOBODY):
            code, printed = run(*command)
        assert code == 0 or "gateway: " in printed or "DAMAGED" in printed or "WRONG" in printed
