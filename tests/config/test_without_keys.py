"""A command that calls no upstream needs no upstream's key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.config.without_keys import UNSET, load_without_keys

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
    channels = load_without_keys(file, {"HOST": "east.example", "SHARED": "given"}).config.channels
    assert channels["east"].api_key == UNSET
    assert channels["west"].api_keys == (UNSET, "given")


def test_a_file_of_a_key_is_not_needed_either_and_every_other_one_is(tmp_path: Path) -> None:
    text = "channels:\n  east: {base_url: https://east.example/v1, api_keys: ['${file:east}', '${file:west}']}\n"
    (tmp_path / "west").write_text("key-in-a-file\n")
    channels = load_without_keys(written(tmp_path, text), {}).config.channels
    assert channels["east"].api_keys == (UNSET, "key-in-a-file")
    for other in ("redis: 'redis://:${file:east}@store:6379'\n", "redis: 'redis://:${file:else}@store:6379'\n"):
        with pytest.raises(Misconfigured, match=r"the file e(ast|lse) is missing"):
            load_without_keys(written(tmp_path, text + other), {})


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
        load_without_keys(written(tmp_path, text), given)


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "channels: 5\n", "channels: {east: 7}\n", "\x00"])
def test_a_file_that_cannot_be_read_is_refused_as_ever(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured, match=r"gateway\.yaml:\d"):
        load_without_keys(written(tmp_path, text), {})
