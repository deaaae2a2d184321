"""A file is shown with its lines and numbers, and with nothing that may be a secret, wherever in it that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.actions.served import shown_lines
from gateway.config.schema import load

FILE = """\
# günstige Kanäle; old key: sk-canary-4711canary4711
redis: redis://:canary-password@store:6379   # where the money is
usage: {clickhouse: "http://u:canary-click@c:8123/d"}
alerts: {webhook: "https://hooks.example/canary-hook"}
channels:
  möglich: {base_url: "https://a.example/v1", api_key: canary-key-1}  # was canary-key-1
  two:
    base_url: https://b.example/v1
    api_keys: [canary-key-2, "${SECOND}", "${file:third}"]
    proxy: http://u:canary-proxy@p:1
    headers: {X-Team: canary-header, X-Other: "${SECOND}"}
    query: {v: canary-query}
    set:
      user: >
        canary-set
        canary-more
      temperature: 1
    concurrent: 7
models:
  m: {channels: [two], free: true}
groups: {default: {}}
plugins:
  - use: quota
    with:
      rate: 5
      pin: 4711
      open: true
      nested: {text: default, other: canary-nested, other_token: 12345, list: [canary-item, 3]}
"""


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    (tmp_path / "third").write_text("canary-third\n")
    file = tmp_path / "gateway.yaml"
    file.write_text(FILE)
    return shown_lines(load(file, {"SECOND": "canary-second"}).document)


def test_nothing_that_may_be_a_secret_is_shown(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert "canary" not in text
    assert "4711" not in text
    assert "12345" not in text


def test_the_rest_is_as_in_the_file_at_its_lines(lines: list[str]) -> None:
    given = FILE.splitlines()
    assert len(lines) == len(given)
    assert lines[0].startswith("# günstige Kanäle; old key: (hidden)")
    assert lines[1] == "redis: (hidden)   # where the money is"
    assert lines[5].startswith('  möglich: {base_url: "https://a.example/v1", api_key: (hidden)}')
    assert lines[8] == '    api_keys: [(hidden), "${SECOND}", "${file:third}"]'
    assert lines[10] == '    headers: {X-Team: (hidden), X-Other: "${SECOND}"}'
    for number in (4, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26):
        assert lines[number] == given[number]
    assert lines[25] == "      pin: (hidden)"
    assert lines[27] == "      nested: {text: (hidden), other: (hidden), other_token: (hidden), list: [(hidden), 3]}"
