"""Signatures are those of Standard Webhooks, also for receivers that verify with other code; a wrong secret is one clear line."""

from __future__ import annotations

import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from shutil import which

import pytest

from gateway.alerts.signature import VARIABLE, new_secret, secrets_of, sign
from gateway.base.errors import Misconfigured
from gateway.config.schema import Config
from tests.alerts.receiver import SECRET

KEY = b64decode(SECRET.removeprefix("whsec_"))
BODY = b'{"test": 2432232314}'


def test_the_example_of_the_specification_is_signed_the_same() -> None:
    signature = sign([KEY], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.skipif(which("openssl") is None, reason="needs openssl")
def test_openssl_computes_the_same() -> None:
    signed = b"msg_1.1800000000." + BODY
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{KEY.hex()}", "-binary"]
    digest = subprocess.run(command, input=signed, capture_output=True, check=True).stdout
    assert sign([KEY], "msg_1", 1_800_000_000, BODY) == f"v1,{b64encode(digest).decode()}"


def test_a_secret_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path))
    (key,) = secrets_of(config)
    file = tmp_path / "alerts.secret"
    assert len(key) == 32
    assert b64decode(file.read_text().strip().removeprefix("whsec_")) == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert secrets_of(config) == (key,)


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    assert secrets_of(Config(data=str(tmp_path))) == (KEY,)
    assert list(tmp_path.iterdir()) == []


def test_two_secrets_sign_both_while_one_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "alerts.secret").write_text(f"{SECRET}\n{new_secret()}\n")
    keys = secrets_of(Config(data=str(tmp_path)))
    first, second = sign(keys, "msg_1", 1, BODY).split(" ")
    assert (first, second) == (sign(keys[:1], "msg_1", 1, BODY), sign(keys[1:], "msg_1", 1, BODY))


@pytest.mark.parametrize(
    "text",
    [
        "a-secret-of-words-that-is-long",
        "whsec_not/base64/at/all/!!!",
        "whsec_" + b64encode(b"x" * 23).decode(),
        "whsec_" + b64encode(b"x" * 65).decode(),
        f"{SECRET} short",
        " ".join([SECRET] * 5),
    ],
)
def test_anything_else_is_refused_with_a_way_to_make_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "alerts.secret").write_text(text)
    with pytest.raises(Misconfigured) as refused:
        secrets_of(Config(data=str(tmp_path)))
    assert "openssl rand" in str(refused.value)
    assert text not in str(refused.value)
    assert str(refused.value).isprintable()
