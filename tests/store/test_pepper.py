"""The pepper is generated once, readable by its owner alone, and never short."""

from __future__ import annotations

import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured, StoreAway
from gateway.store.accounts import Accounts
from gateway.store.client.client import Client
from gateway.store.pepper import FINGERPRINT, PepperSource, make_pepper, pepper_of
from gateway.store.tokens import Tokens


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_PEPPER", raising=False)


def test_the_first_use_generates_it_and_the_next_reads_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_pepper(data)
    pepper = pepper_of(data)
    make_pepper(data)
    assert len(pepper) >= 32
    assert pepper_of(data) == pepper
    assert stat.S_IMODE((data / "pepper").stat().st_mode) == 0o600
    assert [file.name for file in data.iterdir()] == ["pepper"]


def test_two_folders_have_different_peppers(tmp_path: Path) -> None:
    make_pepper(tmp_path / "a")
    make_pepper(tmp_path / "b")
    assert pepper_of(tmp_path / "a") != pepper_of(tmp_path / "b")


def made(data: Path) -> bytes:
    make_pepper(data)
    return pepper_of(data)


def test_concurrent_first_uses_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        peppers = set(pool.map(made, [tmp_path / "data"] * 64))
    assert len(peppers) == 1
    assert peppers == {pepper_of(tmp_path / "data")}


def test_the_environment_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PEPPER", "sixteen bytes ok")
    assert pepper_of(tmp_path / "data") == b"sixteen bytes ok"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("short", ["", "fifteen bytes .", "   \n"])
def test_a_short_one_is_refused_and_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    (tmp_path / "pepper").write_text(short)
    with pytest.raises(Misconfigured, match="too short") as refused:
        pepper_of(tmp_path)
    assert "fifteen" not in str(refused.value)
    monkeypatch.setenv("GATEWAY_PEPPER", short)
    with pytest.raises(Misconfigured, match=r"GATEWAY_PEPPER.*too short"):
        pepper_of(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(Misconfigured, match=r"data/pepper: .*make `data` writable"):
        make_pepper(tmp_path / "data")


async def test_a_pepper_that_the_tokens_were_not_made_with_is_refused(client: Client, tmp_path: Path) -> None:
    one, other = b"one" * 10, b"other" * 10
    await Tokens(client, lambda: other).check_pepper()
    await Tokens(client, lambda: other).check_pepper()
    await Accounts(client).create("acme")
    source = PepperSource(lambda: one, name="/var/lib/data/pepper")
    for refused_by in (Tokens(client, source).check_pepper(), Tokens(client, source).create("acme")):
        with pytest.raises(Misconfigured, match="the pepper is not the one with which") as refused:
            await refused_by
        assert "one" * 10 not in str(refused.value)
        assert f": /var/lib/data/pepper is another, the gateway on {socket.gethostname()} recorded it at 20" in str(
            refused.value
        )


async def test_tokens_of_a_store_without_a_fingerprint_keep_their_pepper(client: Client) -> None:
    await Accounts(client).create("acme")
    await Tokens(client, lambda: b"one" * 10).create("acme")
    await client.call("DEL", FINGERPRINT)
    await Tokens(client, lambda: b"one" * 10).check_pepper()
    assert len(await client.call("HGET", FINGERPRINT, "fingerprint")) == 16


async def test_without_a_pepper_a_token_is_a_503_and_other_calls_work(client: Client, tmp_path: Path) -> None:
    await Accounts(client).create("acme")
    token = await Tokens(client, lambda: b"one" * 10).create("acme")
    without = Tokens(client, lambda: pepper_of(tmp_path))
    assert [each.id for each in await without.all_of("acme")] == [token.id]
    with pytest.raises(StoreAway, match="pepper is missing"):
        await without.authenticate(token.token)
