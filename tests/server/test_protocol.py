"""The private attributes of aiohttp that the server's protocol relies on, and the `Date` header that it writes."""

from __future__ import annotations

import re
from pathlib import Path

from aiohttp.base_protocol import BaseProtocol

import gateway.server.protocol as module
from gateway.proxy.caller import _date_line
from gateway.server.protocol import AIOHTTP_ATTRIBUTES, ServerProtocol

SERVER = Path(module.__file__).parent
FILE = SERVER / "protocol.py"


def test_aiohttp_has_the_attributes_that_are_not_public() -> None:
    missing = [name for name in AIOHTTP_ATTRIBUTES if not hasattr(BaseProtocol, name)]
    assert not missing, "this version of aiohttp differs: read its base_protocol.py before you raise the version"


def test_the_list_of_attributes_is_complete() -> None:
    """The gateway's own attributes are in `__slots__`; any other `self._name` that the modules read is aiohttp's."""
    read = set(re.findall(r"\bself\.(_[a-z]\w*)", FILE.read_text()))
    own = {*ServerProtocol.__slots__, "_loop"}
    own |= {name for name in vars(ServerProtocol) if not hasattr(BaseProtocol, name)}
    overridden = {name for name in vars(ServerProtocol) if name in AIOHTTP_ATTRIBUTES}
    assert (read - own) | overridden == set(AIOHTTP_ATTRIBUTES)


def test_no_other_file_uses_attributes_of_aiohttps_base() -> None:
    pattern = re.compile(r"\.(" + "|".join(AIOHTTP_ATTRIBUTES) + r")\b")
    derived = {path for path in SERVER.parent.rglob("*.py") if "aiohttp.base_protocol" in path.read_text()}
    assert derived == {FILE}
    for file in {*SERVER.glob("*.py")} - {FILE}:
        assert not pattern.search(file.read_text()), file


def test_the_date_is_in_http_format_and_formatted_once_a_second() -> None:
    first = _date_line(784_111_777)
    assert first == "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    assert _date_line(784_111_777) is first
    assert _date_line(784_111_778) == "Date: Sun, 06 Nov 1994 08:49:38 GMT\r\n"
