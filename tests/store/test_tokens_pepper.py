"""The pepper is generated once, readable by its owner alone, and never short."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.errors import Misconfigured
from gateway.store.tokens import pepper_of


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_PEPPER", raising=False)


def test_the_first_use_generates_it_and_the_next_reads_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    pepper = pepper_of(data)
    assert len(pepper) >= 32
    assert pepper_of(data) == pepper
    assert stat.S_IMODE((data / "pepper").stat().st_mode) == 0o600
    assert [file.name for file in data.iterdir()] == ["pepper"]


def test_two_folders_have_different_peppers(tmp_path: Path) -> None:
    assert pepper_of(tmp_path / "a") != pepper_of(tmp_path / "b")


def test_concurrent_first_uses_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        peppers = set(pool.map(pepper_of, [tmp_path / "data"] * 64))
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
        pepper_of(tmp_path / "data")
