"""Files of the configuration: documents, paths, secrets and keys that are in the file or beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from gateway.base.errors import Misconfigured
from gateway.config import document
from gateway.config.document import UNSET, Document, find, parse, read, shipped
from gateway.config.schema import Config, load
from gateway.config.secrets import MAX_BYTES, MAX_TOTAL, SecretFiles, paths_in

# An ambiguous file is refused, with file and line.
REFUSED = {
    "a: 1\nb: *other": "2: anchors and aliases are not allowed; write the value out",
    "a: &this {b: 1}": "1: anchors and aliases are not allowed; write the value out",
    "a: !!str 5": "1: tags such as `!!str` are not allowed; write plain values",
    "a: !!python/object:os.system x": "1: tags such as `!!python/object:os.system` are not allowed; write plain values",
    "a: !env HOME": "1: tags such as `!env` are not allowed; write plain values",
    "a:\n  <<: {b: 1}": "2: every key must be plain text; quote it if it is meant",
    "~: 1": "1: every key must be plain text; quote it if it is meant",
    "? [a]\n: 1": "1: every key must be plain text; quote it if it is meant",
    "a: 1\nb: 2\na: 3": "3: the key `a` is given twice; keep one",
    "a:\n  - {b: 1, b: 2}": "2: the key `b` is given twice; keep one",
    "1: a\n'1': b": "2: the key `1` is given twice; keep one",
    "a:\n\tb: 1": "2: a tab cannot indent; use spaces",
    "# é\na:\n \tb: 1": "3: a tab cannot indent; use spaces",
    "a: 1\nb: '\x07'": "2: the control character '\\x07' is not allowed; remove it",
    'a: "x\\0"': "1: the character '\\x00' is not allowed; remove it",
    'a:\n  "\\e": 1': "2: the character '\\x1b' is not allowed; remove it",
    "a: \0": "1: the control character '\\x00' is not allowed; remove it",
    "a: 'x": "1: not valid YAML: while scanning a quoted scalar found unexpected end of stream; "
    "check quotes, colons and indentation there",
    "a: 1\n---\nb: 2": "2: not valid YAML: expected a single document in the stream but found another document; "
    "check quotes, colons and indentation there",
    "a: b: c": "1: not valid YAML: mapping values are not allowed in this context; "
    "check quotes, colons and indentation there",
    "a: `x`": "1: not valid YAML: while scanning for the next token found character that cannot start any token; "
    "check quotes, colons and indentation there",
    "[" * 100_000: "1: nested deeper than 32; no setting is",
    "[" * 500 + "]" * 500: "1: nested deeper than 32; no setting is",
    "{a: " * 40 + "1" + "}" * 40: "1: nested deeper than 32; no setting is",
    "- " * 50_000: "1: nested deeper than 32; no setting is",
    "a: [1, yes]": "1: a[1]: write true or false, or put `yes` in quotes if it is a name",
    "a: NO": "1: a: write true or false, or put `NO` in quotes if it is a name",
    "a:\n  b: On": "2: a.b: write true or false, or put `On` in quotes if it is a name",
    "a: off": "1: a: write true or false, or put `off` in quotes if it is a name",
    **{
        f"a: {number}": f"1: a: write `{number}` in plain digits (at most 15), or in quotes if it is a name"
        for number in (
            *("1_000", "0x10", "0b1", "010", "1:30", "1234567890123456", "+.inf", "-.INF", ".nan"),
            *("1.0e+5", "1_0.5", "1:30.5", "0.1234567890123456", "123456789012345.6", "1."),
        )
    },
    "a: ${NOT-A-NAME}": "1: a: write a variable as ${NAME}, of letters, digits and _, or as ${file:PATH}",
    "a: ${HALF": "1: a: write a variable as ${NAME}, of letters, digits and _, or as ${file:PATH}",
    "a: 1\nb: [x, '-${MISSING}-']": "2: b[1]: the environment variable MISSING is not set; export it or write a value",
}


def data_in(tmp_path: Path, text: str | bytes, **environment: str) -> object:
    file = tmp_path / "file.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return parse(file, read(file), environment)[0]


@pytest.mark.parametrize(("text", "error"), REFUSED.items(), ids=[repr(text[:24]) for text in REFUSED])
def test_an_ambiguous_value_is_refused(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        data_in(tmp_path, text)
    assert str(refused.value) == f"{tmp_path}/file.yaml:{error}"


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"\xff\xfea\0", ":1: not UTF-8; save the file as UTF-8"),
        (b"a: 1\nb: '\xe9'", ":2: not UTF-8; save the file as UTF-8"),
        (b"#" * (10 * 1024 * 1024), ": larger than 1 MiB; a configuration is a few kilobytes"),
    ],
)
def test_a_file_that_is_not_utf_8_text_or_too_large_is_refused(tmp_path: Path, raw: bytes, error: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        data_in(tmp_path, raw)
    assert str(refused.value) == f"{tmp_path}/file.yaml{error}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(Misconfigured) as refused:
            parse(path, read(path), {})
        assert str(refused.value) == f"{path}: {reason}; name a readable file with --config"


def test_an_endless_device_is_read_up_to_the_maximum_size_of_a_file() -> None:
    with pytest.raises(Misconfigured, match="larger than 1 MiB"):
        read(Path("/dev/zero"))


READ: dict[str | bytes, object] = {
    "{a: 1, b: -2, c: 0.15, d: .5, e: 1.0, f: true, g: False}": {
        **{"a": 1, "b": -2, "c": 0.15, "d": 0.5, "e": 1.0, "f": True, "g": False},
    },
    "{h: null, i: ~, j: [x], k: {}, l: '', m: 1e5}": {"h": None, "i": None, "j": ["x"], "k": {}, "l": "", "m": "1e5"},
    "[c: 2026-11-21, d: 2026-11-21T10:00:00Z]": [{"c": "2026-11-21"}, {"d": "2026-11-21T10:00:00Z"}],
    "['yes', \"0x10\", 1.2.3, =, 127.0.0.1:8080]": ["yes", "0x10", "1.2.3", "=", "127.0.0.1:8080"],
    "yes: 1\n2026-11-21: 2\n1.5: 3\n0x10: 4\n'null': 5": {"yes": 1, "2026-11-21": 2, "1.5": 3, "0x10": 4, "null": 5},
    b"\xef\xbb\xbfa: 1\r\nb: 2\r\n": {"a": 1, "b": 2},
    **dict.fromkeys(("", "# only a comment\n", "---\n")),
}


@pytest.mark.parametrize(("text", "value"), READ.items())
def test_values_keep_their_type_and_keys_are_text(tmp_path: Path, text: str | bytes, value: object) -> None:
    assert data_in(tmp_path, text) == value


def test_variables_are_text_and_never_read_as_yaml(tmp_path: Path) -> None:
    text = "a: ${A}\nb: x-${A}-${B}\n${A}: c\nd: $A"
    values = data_in(tmp_path, text, A="yes: [1]\n- &x", B="${A}")
    assert values == {"a": "yes: [1]\n- &x", "b": "x-yes: [1]\n- &x-${A}", "${A}": "c", "d": "$A"}


def test_an_error_shows_the_variable_and_not_its_value(tmp_path: Path) -> None:
    document = Document(tmp_path / "file.yaml")
    document.resolve(("a",), "${KEY} ${LONGER}", {"KEY": "sesame", "LONGER": "sesame-open"})
    error = document.wrong(("a",), "`sesame-open` and `sesame` are no names")
    assert str(error) == f"{tmp_path}/file.yaml:1: a: `${{LONGER}}` and `${{KEY}}` are no names"
    assert "sesame" not in repr(document)


def test_an_error_is_one_line_of_bounded_length(tmp_path: Path) -> None:
    document = Document(tmp_path / "file.yaml")
    error = str(document.wrong(("a\nb\x1b[31m",), "x" * 100_000))
    assert error.startswith(f"{tmp_path}/file.yaml:1: a\\nb\\x1b[31m: xxx")
    assert len(error) < len(str(tmp_path)) + 1100


def test_an_error_for_a_missing_key_has_the_line_of_its_section(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("a: 1\nb:\n  - c: 2\n")
    document = parse(file, read(file), {})[1]
    assert str(document.wrong(("b", 0, "d", "e"), "x")) == f"{file}:3: b[0].d.e: x"
    assert str(document.wrong((), "x")) == f"{file}:1: x"


# Relative paths of a file start at its folder, whatever the current one is.
def places_read(file: Path, text: str) -> Config:
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
    assert places_read(tmp_path / "conf" / "gateway.yaml", text).data_path == tmp_path / data
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(Path("../conf/gateway.yaml")).config.data_path == tmp_path / data


def test_an_absolute_folder_stays_and_a_home_is_that_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert places_read(tmp_path / "a.yaml", "data: /var/lib/x\n").data == "/var/lib/x"
    assert places_read(tmp_path / "a.yaml", "data: ~/x\n").data == "/home/me/x"


def test_other_paths_are_relative_to_the_file_too(tmp_path: Path) -> None:
    text = "tls: {certificate: c.pem, key: ../k.pem}\nredis: 'rediss://:p%2F@h:1/0?ssl_ca_certs=ca%20s.pem&ssl=x'\n"
    config = places_read(tmp_path / "conf" / "gateway.yaml", text)
    assert config.tls is not None
    assert (config.tls.certificate, config.tls.key) == (f"{tmp_path}/conf/c.pem", f"{tmp_path}/k.pem")
    assert config.redis == f"rediss://:p%2F@h:1/0?ssl_ca_certs={tmp_path}/conf/ca%20s.pem&ssl=x"


def test_certificates_of_a_channel_are_read_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    text = "channels: {c: {base_url: 'https://h/v1', ca_file: ca.pem}, d: {base_url: 'https://h/v1'}}\n"
    channels = places_read(tmp_path / "gateway.yaml", text).channels
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


# Secrets in files: what is taken, what is refused with the path alone, and what is watched.
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
    "a pipe": (os.mkfifo, "cannot be read (it is not a regular file); name one that this user may read"),
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


# A command that calls no upstream needs no upstream's key.
CHANNELS = """
channels:
  east: {base_url: "https://${HOST}/v1", api_key: "${EAST_KEY}"}
  west: {base_url: "https://west.example/v1", api_keys: ["${WEST_KEY}", "${SHARED}"]}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(text)
    return file


def test_keys_that_are_not_set_are_not_needed_and_those_that_are_set_are_used(tmp_path: Path) -> None:
    file = written(tmp_path, CHANNELS)
    channels = load(file, {"HOST": "east.example", "SHARED": "given"}, keys=False).config.channels
    assert channels["east"].api_key == UNSET
    assert channels["west"].api_keys == (UNSET, "given")


def test_a_file_of_a_key_is_not_needed_either_and_every_other_one_is(tmp_path: Path) -> None:
    text = "channels:\n  east: {base_url: https://east.example/v1, api_keys: ['${file:east}', '${file:west}']}\n"
    (tmp_path / "west").write_text("key-in-a-file\n")
    channels = load(written(tmp_path, text), {}, keys=False).config.channels
    assert channels["east"].api_keys == (UNSET, "key-in-a-file")
    for other in ("redis: 'redis://:${file:east}@store:6379'\n", "redis: 'redis://:${file:else}@store:6379'\n"):
        with pytest.raises(Misconfigured, match=r"the file e(ast|lse) is missing"):
            load(written(tmp_path, text + other), {}, keys=False)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (CHANNELS, "HOST"),
        (CHANNELS + 'redis: "redis://:${SHARED}@store:6379"\n', "SHARED"),
        ("redis: '${STORE}'\n", "STORE"),
    ],
)
def test_every_other_variable_is_needed(tmp_path: Path, text: str, missing: str) -> None:
    given = {"HOST": "east.example", "SHARED": "x"}
    given.pop(missing, None)
    with pytest.raises(Misconfigured, match=f"the environment variable {missing} is not set"):
        load(written(tmp_path, text), given, keys=False)


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "channels: 5\n", "channels: {east: 7}\n", "\x00"])
def test_a_file_that_cannot_be_read_is_refused_as_ever(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured, match=r"gateway\.yaml:\d"):
        load(written(tmp_path, text), {}, keys=False)
