"""Names that people give to tokens, links and accounts.

They are shown in lists and in the audit log, where one must not look like another line.
"""

from __future__ import annotations

from gateway.errors import Refused
from gateway.tools.plain_text import is_one_line


def check_name(name: str, param: str = "name") -> None:
    """Raise `Refused` (400) for a name with line ends or with characters that change how a line looks."""
    if not is_one_line(name):
        what = "A name" if param == "name" else "An external id"
        raise Refused(400, "invalid_request", f"{what} has no control characters and no line ends.", param=param)
