"""Secrets in files: what is taken, what is refused with the path alone, and what is watched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.document import parse
from gateway.config.schema import load
from gateway.config.secrets import MAX_BYTES, MAX_TOTAL, SecretFiles, paths_in

SECRET = "sk-this-is-the-secret"


def value_of(folder: Path, text: str = "a: ${file:key}", **known: str) -> object:
    data, _ = parse(folder / "gateway.yaml", text.encode(), {}, known or None)
    return data["a"]


@pytest.mark.parametrize("raw", ["%s", "%s\n", "%s\r\n", "%s\n\n", "\ufeff%s\n"])
def test_a_secret_is_taken_without_the_line_ends_behind_it(tmp_path: Path, raw: str) -> None:
    (tmp_path / "key").write_text(raw % SECRET)
    assert value_of(tmp_path) == SECRET
    assert value_of(tmp_path, f"a: 'x${{file:{tmp_path}/key}}y'") == f"x{SECRET}y"


def test_a_relative_path_starts_at_the_configuration_and_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "key").write_text(SECRET)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "key").symlink_to("..data/key")
    assert value_of(tmp_path) == SECRET


def unreadable(path: Path) -> None:
    path.symlink_to(path)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "is missing; create it, or name another"),
    "a folder": (Path.mkdir, "cannot be read (Is a directory); name one that this user may read"),
    "a pipe": (os.mkfifo, "cannot be read (it is no regular file); name one that this user may read"),
    "a loop": (unreadable, "cannot be read (Too many levels of symbolic links); name one that this user may read"),
    "empty": (Path.touch, "is empty; write the secret into it"),
    "blank": (lambda path: path.write_text(" \n\n"), "is empty; write the secret into it"),
    "binary": (lambda path: path.write_bytes(b"\xff\xfe" + SECRET.encode()), "is not text in UTF-8"),
    "control": (lambda path: path.write_text(f"{SECRET}\0"), "has control characters; a secret is one line of text"),
    "lines": (lambda path: path.write_text(f"{SECRET}\n{SECRET}\n"), "has several lines; a secret is one line"),
    "large": (lambda path: path.write_text(SECRET * MAX_BYTES), f"is larger than {MAX_BYTES} bytes"),
}


@pytest.mark.parametrize(("make", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line_with_the_path_and_never_the_secret(
    tmp_path: Path, make: Callable[[Path], object], text: str
) -> None:
    make(tmp_path / "key")
    with pytest.raises(Misconfigured) as refused:
        value_of(tmp_path, "b: 1\na: ${file:key}")
    assert str(refused.value).startswith(f"{tmp_path}/gateway.yaml:2: a: the file key {text}")
    assert "secret-" not in str(refused.value) and SECRET not in str(refused.value)


def test_a_file_that_this_user_may_not_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # a test may run as root, which may read everything
    with pytest.raises(Misconfigured, match=r"a: the file key cannot be read \(Permission denied\)"):
        value_of(tmp_path)


@pytest.mark.parametrize("text", ["a: ${file:}", "a: '${file: }'"])
def test_a_reference_needs_a_path(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured, match="name a file, as in"):
        value_of(tmp_path, text)


def test_the_secrets_of_a_configuration_are_bounded_together(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    with pytest.raises(ValueError, match="bytes together"):
        for number in range(MAX_TOTAL // MAX_BYTES + 1):
            (tmp_path / str(number)).write_text("x" * MAX_BYTES)
            files.get(str(number))


def test_secrets_that_were_read_before_are_not_read_again(tmp_path: Path) -> None:
    assert value_of(tmp_path, key="known before") == "known before"
    with pytest.raises(Misconfigured, match="was not read with this configuration"):
        value_of(tmp_path, other="x")


def test_an_error_about_a_secret_shows_where_it_is_from(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET} with a space")
    file = tmp_path / "gateway.yaml"
    file.write_text("channels: {one: {base_url: '${file:key}', api_key: '${file:key}'}}")
    with pytest.raises(Misconfigured) as refused:
        load(file)
    assert SECRET not in str(refused.value)
    file.write_text("channels: {one: {base_url: http://h/v1}}\nlisten: ${file:key}")
    with pytest.raises(Misconfigured) as refused:
        load(file)
    assert SECRET not in str(refused.value)


def test_the_files_that_a_configuration_names_are_found_in_its_bytes(tmp_path: Path) -> None:
    raw = b"a: ${file:/run/one}\nb: 'x${file:two}${file:/run/one}${NAME}'\n# ${file:three\n"
    assert paths_in(raw, tmp_path) == (Path("/run/one"), tmp_path / "two")


def test_a_path_that_nobody_wrote_is_not_repeated_whole(tmp_path: Path) -> None:
    for name in ("x" * 5000, "x/" * 600):
        with pytest.raises(Misconfigured) as raised:
            value_of(tmp_path, f"a: ${{file:{name}}}")
        assert len(str(raised.value)) < 600
