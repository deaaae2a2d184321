"""Peppers: generated once, readable by their owner alone, rotated without a restart. The layout of a store is one."""

from __future__ import annotations

import shutil
import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError, Misconfigured, StoreAway
from gateway.store import layout, pepper
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.pepper import (
    FINGERPRINT,
    PepperSource,
    changing,
    is_pending,
    make_pepper,
    record_next,
    record_of,
    replace,
    write_next,
)
from gateway.store.tokens import Created, TokenRefused, Tokens, made_before
from tests.store.conftest import Pepper


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATEWAY_PEPPER", "GATEWAY_PEPPER_OLD"):
        monkeypatch.delenv(name, raising=False)


# The pepper is generated once, readable by its owner alone, and never short.
def test_the_first_use_generates_it_and_the_next_reads_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_pepper(data)
    pepper = PepperSource(data)()
    make_pepper(data)
    assert len(pepper) >= 32
    assert PepperSource(data)() == pepper
    assert stat.S_IMODE((data / "pepper").stat().st_mode) == 0o600
    assert [file.name for file in data.iterdir()] == ["pepper"]


def test_two_folders_have_different_peppers(tmp_path: Path) -> None:
    assert made(tmp_path / "a") != made(tmp_path / "b")


def made(data: Path) -> bytes:
    make_pepper(data)
    return PepperSource(data)()


def test_concurrent_first_uses_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        peppers = set(pool.map(made, [tmp_path / "data"] * 64))
    assert len(peppers) == 1
    assert peppers == {PepperSource(tmp_path / "data")()}


def test_the_environment_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PEPPER", "sixteen bytes ok")
    assert PepperSource(tmp_path / "data")() == b"sixteen bytes ok"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("short", ["", "fifteen bytes .", "   \n"])
def test_a_short_one_is_refused_and_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    (tmp_path / "pepper").write_text(short)
    with pytest.raises(Misconfigured, match="too short") as refused:
        PepperSource(tmp_path)()
    assert "fifteen" not in str(refused.value)
    monkeypatch.setenv("GATEWAY_PEPPER", short)
    with pytest.raises(Misconfigured, match=r"GATEWAY_PEPPER.*too short"):
        PepperSource(tmp_path)()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(Misconfigured, match=r"data/pepper: .*make `data` writable"):
        make_pepper(tmp_path / "data")


async def test_a_pepper_that_the_tokens_were_not_made_with_is_refused(client: Client, tmp_path: Path) -> None:
    one, other = b"one" * 10, b"other" * 10
    await Tokens(client, Pepper(other)).check_pepper()
    await Tokens(client, Pepper(other)).check_pepper()
    await Accounts(client).create("acme")
    source = Pepper(one, "/var/lib/data/pepper")
    for refused_by in (Tokens(client, source).check_pepper(), Tokens(client, source).create("acme")):
        with pytest.raises(Misconfigured, match="the pepper is not the one with which") as refused:
            await refused_by
        assert "one" * 10 not in str(refused.value)
        assert f": /var/lib/data/pepper is another, the gateway on {socket.gethostname()} recorded it at 20" in str(
            refused.value
        )


async def test_tokens_of_a_store_without_a_fingerprint_keep_their_pepper(client: Client) -> None:
    await Accounts(client).create("acme")
    await Tokens(client, Pepper(b"one" * 10)).create("acme")
    await client.call("DEL", FINGERPRINT)
    await Tokens(client, Pepper(b"one" * 10)).check_pepper()
    assert len(await client.call("HGET", FINGERPRINT, "fingerprint")) == 16


async def test_without_a_pepper_a_token_is_a_503_and_other_calls_work(client: Client, tmp_path: Path) -> None:
    await Accounts(client).create("acme")
    token = await Tokens(client, Pepper(b"one" * 10)).create("acme")
    without = Tokens(client, PepperSource(tmp_path))
    assert [each.id for each in await without.all_of("acme")] == [token.id]
    with pytest.raises(StoreAway, match="pepper is missing"):
        await without.authenticate(token.token)


# Tokens of the pepper before are accepted until the time that the store says, by processes that never restart.
@pytest.fixture
async def data(client: Client, tmp_path: Path) -> Path:
    await Accounts(client).create("acme")
    make_pepper(tmp_path)
    return tmp_path


async def accepted(tokens: Tokens, created: Created) -> bool:
    try:
        return (await tokens.authenticate(created.token)).token.id == created.id
    except TokenRefused:
        return False


async def test_a_running_gateway_takes_both_and_then_the_next_one_alone(client: Client, data: Path) -> None:
    running = Tokens(client, PepperSource(data))
    old = await running.create("acme")
    assert running.known(old.token) is None and await accepted(running, old)
    write_next(data)
    assert await record_next(client, data, int(time.time()) + 60)
    new = await Tokens(client, PepperSource(data)).create("acme")
    assert await accepted(running, new), "the file is looked at when a token cannot be read"
    await running.refresh_pepper()
    assert await accepted(running, old) and await accepted(running, new)
    assert running.known(old.token) is not None
    record = await record_of(client)
    assert record is not None and record.accepts_old()
    await client.call("HSET", "gw:pepper", "until", int(time.time()))
    await running.refresh_pepper()
    assert running.known(old.token) is None, "what was remembered of it is forgotten"
    assert not await accepted(running, old)
    assert await accepted(running, new)
    assert await made_before(running, int(time.time())) == 2


async def test_a_gateway_elsewhere_is_prepared_first_and_refuses_nothing(
    client: Client, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(data / "pepper", elsewhere)
    here, there = Tokens(client, PepperSource(data)), Tokens(client, PepperSource(elsewhere))
    old = await there.create("acme")
    write_next(data)
    record = await record_of(client)
    assert record is not None and is_pending(record, PepperSource(data))
    between = await Tokens(client, PepperSource(data)).create("acme")  # still of the pepper that the store has
    assert await accepted(there, between)
    for name in ("pepper", "pepper.old"):
        shutil.copy(data / name, elsewhere)
    assert await record_next(client, data, int(time.time()) + 60)
    assert not await record_next(client, data, int(time.time()) + 60), "it is recorded already"
    new = await Tokens(client, PepperSource(data)).create("acme")
    for tokens in (here, there):
        assert [await accepted(tokens, each) for each in (old, between, new)] == [True] * 3


async def test_a_gateway_that_was_left_behind_says_so_and_its_tokens_end(
    client: Client, data: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    behind = tmp_path_factory.mktemp("behind")
    shutil.copy(data / "pepper", behind)
    tokens = Tokens(client, PepperSource(behind))
    old = await tokens.create("acme")
    write_next(data)
    await record_next(client, data, int(time.time()) + 60)
    with pytest.raises(
        Misconfigured, match=r"the pepper was changed: .*behind.*/pepper is the one before, the gateway on"
    ):
        await tokens.create("acme")
    await tokens.refresh_pepper()
    assert "pepper_is_another" in capsys.readouterr().out
    assert await accepted(tokens, old)
    await client.call("HSET", "gw:pepper", "until", 1)
    await tokens.refresh_pepper()
    assert not await accepted(tokens, old)


async def test_a_wrong_file_changes_nothing_in_a_running_gateway(client: Client, data: Path) -> None:
    tokens = Tokens(client, PepperSource(data))
    token = await tokens.create("acme")
    (data / "pepper").write_text("another pepper of some length")
    await tokens.refresh_pepper()
    assert await accepted(tokens, token)
    (data / "pepper").unlink()
    await tokens.refresh_pepper()
    assert await accepted(tokens, token)


async def test_the_file_is_looked_at_once_a_second_at_most(
    client: Client, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    source = Pepper(b"x" * 32)
    monkeypatch.setattr(source, "version", lambda: looks.append(1))
    tokens = Tokens(client, source)
    monkeypatch.setattr(pepper, "LOOK_INTERVAL_S", 3600)
    for _ in range(50):
        with pytest.raises(TokenRefused):
            await tokens.authenticate("sk-acme-12345678-" + "x" * 28)
    assert len(looks) == 2, "when it was read, and for the first of these"


async def test_variables_take_the_place_of_both_files(
    client: Client, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_PEPPER", "the pepper before, of some length")
    old = await Tokens(client, PepperSource(data)).create("acme")
    monkeypatch.setenv("GATEWAY_PEPPER_OLD", "the pepper before, of some length")
    monkeypatch.setenv("GATEWAY_PEPPER", "the next pepper, of some length")
    gateway = Tokens(client, PepperSource(data))
    await gateway.check_pepper()
    assert await accepted(gateway, old)
    assert await record_next(client, data, int(time.time()) + 60)
    new = await gateway.create("acme")
    assert await accepted(gateway, new)
    monkeypatch.delenv("GATEWAY_PEPPER_OLD")
    assert not await accepted(Tokens(client, PepperSource(data)), old)


async def test_two_changes_before_a_gateway_looks_again_are_both_taken_up(client: Client, data: Path) -> None:
    running = Tokens(client, PepperSource(data))
    first = await running.create("acme")
    for _ in range(2):
        write_next(data)
        assert await record_next(client, data, int(time.time()) + 60)
        last = await Tokens(client, PepperSource(data)).create("acme")
        running._codec._look_at = 0.0
        await accepted(
            running, last
        )  # an unknown token lets the gateway look at the files, which the store is ahead of
    await running.refresh_pepper()
    assert await accepted(running, last)
    assert not await accepted(running, first)


async def test_a_running_gateway_takes_up_what_replaces_a_lost_pepper(client: Client, data: Path) -> None:
    running = Tokens(client, PepperSource(data))
    old = await running.create("acme")
    (data / "pepper").unlink()
    await replace(client, data)
    new = await Tokens(client, PepperSource(data)).create("acme")
    await accepted(running, new)
    await running.refresh_pepper()
    for tokens in (running, Tokens(client, PepperSource(data))):
        assert await accepted(tokens, new)
        assert not await accepted(tokens, old)


def test_one_command_at_a_time_changes_the_pepper_of_a_folder(tmp_path: Path) -> None:
    with (
        changing(tmp_path),
        pytest.raises(GatewayError, match="another `gateway pepper rotate` runs"),
        changing(tmp_path),
    ):
        pass
    with changing(tmp_path):
        pass


async def test_a_store_without_data_gets_the_layout_of_this_version(client: Client) -> None:
    await layout.check(client)
    assert await client.call("GET", layout.KEY) is None, "a check writes nothing"
    for _ in range(2):
        await layout.ensure(client)
        assert await client.call("GET", layout.KEY) == str(layout.LAYOUT).encode()
    await layout.check(client)


@pytest.mark.parametrize("other", [layout.LAYOUT - 1, layout.LAYOUT + 1, "other"])
async def test_a_store_of_another_layout_is_refused_and_stays_as_it_is(client: Client, other: int | str) -> None:
    await client.call("SET", layout.KEY, other)
    for refused in (layout.ensure, layout.check):
        with pytest.raises(
            Misconfigured, match=f"is in layout {other}, this version reads layout {layout.LAYOUT} alone"
        ):
            await refused(client)
    assert await client.call("GET", layout.KEY) == str(other).encode()
