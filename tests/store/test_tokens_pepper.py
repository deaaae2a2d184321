"""The pepper is made once, kept private, and never weak."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.errors import Misconfigured
from gateway.store.tokens import pepper_of


@pytest.fixture(autouse=True)
def without_a_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_PEPPER", raising=False)


def test_the_first_use_makes_it_and_the_next_finds_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = pepper_of(data)
    assert len(made) >= 32
    assert pepper_of(data) == made
    assert stat.S_IMODE((data / "pepper").stat().st_mode) == 0o600
    assert [file.name for file in data.iterdir()] == ["pepper"]


def test_two_folders_have_two(tmp_path: Path) -> None:
    assert pepper_of(tmp_path / "a") != pepper_of(tmp_path / "b")


def test_all_who_come_first_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        peppers = set(pool.map(pepper_of, [tmp_path / "data"] * 64))
    assert len(peppers) == 1
    assert peppers == {pepper_of(tmp_path / "data")}


def test_the_environment_gives_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PEPPER", "sixteen bytes ok")
    assert pepper_of(tmp_path / "data") == b"sixteen bytes ok"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("weak", ["", "fifteen bytes .", "   \n"])
def test_a_weak_one_is_refused_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weak: str) -> None:
    (tmp_path / "pepper").write_text(weak)
    with pytest.raises(Misconfigured, match="too short") as refused:
        pepper_of(tmp_path)
    assert "fifteen" not in str(refused.value)
    monkeypatch.setenv("GATEWAY_PEPPER", weak)
    with pytest.raises(Misconfigured, match=r"GATEWAY_PEPPER.*too short"):
        pepper_of(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(Misconfigured, match=r"data/pepper: .*make `data` writable"):
        pepper_of(tmp_path / "data")
