"""An ambiguous file is refused, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.document import Document, parse, read

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


def test_plain_values_keep_their_type(tmp_path: Path) -> None:
    text = "{a: 1, b: -2, c: 0.15, d: .5, e: 1.0, f: true, g: False, h: null, i: ~, j: [x], k: {}, l: '', m: 1e5}"
    assert data_in(tmp_path, text) == {
        **{"a": 1, "b": -2, "c": 0.15, "d": 0.5, "e": 1.0, "f": True, "g": False, "h": None, "i": None},
        **{"j": ["x"], "k": {}, "l": "", "m": "1e5"},
    }


def test_what_is_in_quotes_or_looks_like_a_date_is_text(tmp_path: Path) -> None:
    text = "a: 'yes'\nb: \"0x10\"\nc: 2026-11-21\nd: 2026-11-21T10:00:00Z\ne: 1.2.3\nf: =\ng: 127.0.0.1:8080"
    values = ["yes", "0x10", "2026-11-21", "2026-11-21T10:00:00Z", "1.2.3", "=", "127.0.0.1:8080"]
    assert data_in(tmp_path, text) == dict(zip("abcdefg", values, strict=True))


def test_every_key_is_text_whatever_it_looks_like(tmp_path: Path) -> None:
    text = "yes: 1\n2026-11-21: 2\n1.5: 3\n0x10: 4\n'null': 5"
    assert data_in(tmp_path, text) == {"yes": 1, "2026-11-21": 2, "1.5": 3, "0x10": 4, "null": 5}


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    assert data_in(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    for text in ("", "# only a comment\n", "---\n"):
        assert data_in(tmp_path, text) is None


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
