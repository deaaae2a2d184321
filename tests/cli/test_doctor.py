"""`gateway doctor` prints each finding with its remedy, for people and for scripts."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import program
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S

TOKEN = "sk-tester-aaaaaaaa-secret"


def doctor(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(program(), ["doctor", "--model", "m", *options], env={"GATEWAY_TOKEN": TOKEN})
    assert TOKEN not in result.output
    return result.exit_code, result.output


def test_people_get_a_line_and_a_remedy() -> None:
    port = free_port()
    code, text = doctor("--base-url", f"http://127.0.0.1:{port}/v1")
    assert code == 1
    assert text.splitlines() == [
        f"well  address: http://127.0.0.1:{port}/v1 ends in /v1",
        f"ILL   network: 127.0.0.1:{port} cannot be reached: {os.strerror(errno.ECONNREFUSED)}",
        "      Nothing reached the gateway. Check http or https, host and port, the network, and that the gateway or its "
        "proxy runs.",
    ]


def test_scripts_get_one_object_a_line() -> None:
    code, text = doctor("--base-url", f"http://127.0.0.1:{free_port()}/v1", "--json")
    first, second = map(json.loads, text.splitlines())
    assert (code, first["subject"], first["verdict"], first["code"]) == (1, "address", "well", "")
    assert (second["subject"], second["verdict"], second["code"]) == ("network", "ill", "unreachable")


def test_a_file_of_an_authority_that_cannot_be_used(tmp_path: Path) -> None:
    code, text = doctor("--base-url", "https://localhost/v1", "--ca", str(tmp_path / "ca.pem"))
    assert code == 2
    assert text.strip().endswith("No such file or directory; give the certificates of the authority, as PEM")
    assert len(text.strip().splitlines()) == 1


def test_an_entry_of_netrc_is_not_sent_in_place_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password pass-word")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    heads: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            heads.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        code, _ = doctor("--base-url", f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        thread.join(PATIENCE_S)
    assert code == 1
    assert b"Authorization" not in heads[0]
