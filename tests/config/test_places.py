"""Relative paths of a file start at its folder, whatever the current one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from gateway.config import document
from gateway.config.document import find, shipped
from gateway.config.schema import Config, load


def read(file: Path, text: str) -> Config:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return load(file).config


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("listen: 127.0.0.1:1\n", "conf/data"),
        ("data: ./here\n", "conf/here"),
        ("data: ../data\n", "data"),
        ("data: ''\n", "conf"),
    ],
)
def test_the_data_folder_is_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, data: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path / "conf" / "gateway.yaml", text).data_path == tmp_path / data
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(Path("../conf/gateway.yaml")).config.data_path == tmp_path / data


def test_an_absolute_folder_stays_and_a_home_is_that_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert read(tmp_path / "a.yaml", "data: /var/lib/x\n").data == "/var/lib/x"
    assert read(tmp_path / "a.yaml", "data: ~/x\n").data == "/home/me/x"


def test_other_paths_are_relative_to_the_file_too(tmp_path: Path) -> None:
    text = "tls: {certificate: c.pem, key: ../k.pem}\nredis: 'rediss://:p%2F@h:1/0?ssl_ca_certs=ca%20s.pem&ssl=x'\n"
    config = read(tmp_path / "conf" / "gateway.yaml", text)
    assert config.tls is not None
    assert (config.tls.certificate, config.tls.key) == (f"{tmp_path}/conf/c.pem", f"{tmp_path}/k.pem")
    assert config.redis == f"rediss://:p%2F@h:1/0?ssl_ca_certs={tmp_path}/conf/ca%20s.pem&ssl=x"


def test_certificates_of_a_channel_are_read_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    text = "channels: {c: {base_url: 'https://h/v1', ca_file: ca.pem}, d: {base_url: 'https://h/v1'}}\n"
    channels = read(tmp_path / "gateway.yaml", text).channels
    assert (channels["c"].ca_file, channels["d"].ca_file) == (f"{tmp_path}/ca.pem", "")


def test_the_demo_of_a_checkout_has_its_data_in_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkout = Path(__file__).parents[2]
    assert load(shipped("demo.yaml")).config.data_path == checkout / "data"


def test_the_demo_of_an_installed_package_has_its_data_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shipped"
    package.mkdir()
    (package / "demo.yaml").write_bytes(shipped("demo.yaml").read_bytes())
    monkeypatch.setattr(document, "SHIPPED", package)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert find(None, {}) == package / "demo.yaml"
    assert load(find(None, {})).config.data_path == tmp_path / "mine" / "data"
