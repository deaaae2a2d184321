"""Only a start makes the data folder, and whatever is wrong with it is one sentence before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError, Misconfigured
from gateway.config.schema import Config
from gateway.runtime.data_folder import NoStore, check_access, data_folder, existing_folder, has_store, usage_home
from tests.disk import small_disk

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


def config_of(folder: Path, redis: str = "embedded") -> Config:
    return Config(data=str(folder), redis=redis)


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def refused(folder: Path) -> str:
    with pytest.raises(GatewayError) as error:
        data_folder(config_of(folder))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """Return a folder that every user may look into."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path


def test_a_start_makes_it_for_its_owner_alone(tmp_path: Path) -> None:
    made = data_folder(config_of(tmp_path / "a" / "data"))
    assert made.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a").stat().st_mode & 0o055


@pytest.mark.parametrize("redis", ["embedded", "redis://127.0.0.1:1"])
def test_what_is_no_start_makes_nothing(tmp_path: Path, redis: str) -> None:
    config = config_of(tmp_path / "data", redis)
    for read in (existing_folder, usage_home):
        with pytest.raises(NoStore) as error:
            read(config)
        assert str(error.value) == f"no store at {tmp_path}/data: start the gateway there, or pass --config"
    assert not has_store(config)
    assert list(tmp_path.iterdir()) == []


def test_an_embedded_store_is_there_once_it_has_been_started(tmp_path: Path) -> None:
    assert has_store(config_of(tmp_path, "redis://127.0.0.1:1"))
    assert not has_store(config_of(tmp_path))
    (tmp_path / "usage").mkdir()
    assert usage_home(config_of(tmp_path)).folder == tmp_path / "usage", "it may have been copied from elsewhere"
    (tmp_path / "store.lock").touch()
    assert existing_folder(config_of(tmp_path)) == tmp_path


@root_only
def test_a_folder_of_another_user_is_named_with_both(open_path: Path) -> None:
    folder = open_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "store.lock").touch()
    with as_user(NOBODY):
        assert f"data: {folder} belongs to root, and this runs as nobody: run it as root" in refused(folder)
        with pytest.raises(Misconfigured, match=f"chown -R nobody {folder}"):
            check_access(folder)
        with pytest.raises(Misconfigured, match=f"nobody may not make {open_path}/other: {open_path} belongs to root"):
            data_folder(config_of(open_path / "other"))
        said = f"data: nobody may not look into {folder}, which belongs to root"
        with pytest.raises(Misconfigured, match=said):
            existing_folder(config_of(folder / "within"))
    os.chown(folder, NOBODY, NOBODY)
    with as_user(NOBODY):  # root has started something there before
        assert f"data: {folder}/store.lock belongs to root, and this runs as nobody" in refused(folder)


@root_only
def test_root_makes_nothing_in_the_store_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "store.lock").touch()
    os.chown(tmp_path / "store.lock", NOBODY, NOBODY)
    assert f"data: the store in {tmp_path} belongs to nobody, who could not use what root makes" in refused(tmp_path)


@root_only
def test_a_full_and_a_read_only_disk_are_named(tmp_path: Path) -> None:
    import subprocess

    with small_disk(tmp_path / "disk", 1) as disk:
        folder = disk.folder / "data"
        data_folder(config_of(folder))
        disk.fill()
        said = refused(folder)
        assert said == f"data: the disk of {folder} is full: make room on it"
        disk.free()
        data_folder(config_of(folder))
        if subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=False).returncode == 0:
            assert f"data: {folder} is on a read-only disk: mount it for writing" in refused(folder)
            assert f"data: {disk.folder} is on a read-only disk" in refused(disk.folder / "other")
