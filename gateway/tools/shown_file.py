"""A configuration file as it may be shown: line by line, with everything hidden that may be a secret.

1. **What the file has as `${NAME}` or `${file:PATH}` is shown so**, never with what it stands for.
2. **Of settings that may hold a credential, and of plugins' settings, only references, numbers and switches are shown.** A text
   may be a secret: what it is for, only the plugin knows.
3. Of a comment, words are hidden that look like a key; and what is hidden in one place is hidden in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from gateway.config.document import Document, KeyPath
from gateway.usage.shown_name import shown_name

HIDDEN: Final = "(hidden)"
SECRET: Final = re.compile(r"(^|_)(secret|password|passphrase|token|key|pin|code)$", re.IGNORECASE)
"""Names of settings that are secrets, also where they are numbers."""
SETTINGS: Final = ("redis", "clickhouse", "webhook", "api_key", "api_keys", "proxy", "headers", "query", "set", "with")
"""Settings that may hold a credential, themselves or in what is below them."""
OF_ANY_KIND: Final = ("headers", "query", "set", "with")
"""Those that may as well have a name that is no secret, and which is at other places, too."""
MIN_REPEATED: Final = 6
"""Characters of a secret from which on it is hidden wherever it is."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REFERENCES: Final = re.compile(r"(\$\{[^}\n]*\})+")
_WORD: Final = re.compile(r"\S+")


def shown_lines(document: Document) -> list[str]:
    """Return the lines of a file that was accepted."""
    text = document.raw.decode("utf-8-sig")
    spans = sorted(_secrets(yaml.compose(text, Loader=_Loader), ()))
    texts = {value for *_, value in spans if len(value) >= MIN_REPEATED}
    parts, at = [], 0
    for first, last, _ in spans:
        parts += [text[at:first], HIDDEN, "\n" * text.count("\n", first, last)]
        at = last
    shown = document.hide("".join([*parts, text[at:]]))
    for value in sorted(texts, key=len, reverse=True):
        shown = shown.replace(value, HIDDEN)
    return [_comment_cleaned(line) for line in shown.splitlines()]


def _secrets(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[int, int, str]]:
    """Yield where the texts begin and end that are not shown, with what is to be hidden everywhere, or an empty text."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _secrets(value, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _secrets(value, (*path, index))
    elif isinstance(node, yaml.ScalarNode) and _is_secret(node, path):
        everywhere = not any(step in OF_ANY_KIND for step in path) or shown_name(node.value).startswith(HIDDEN[:-1])
        yield node.start_mark.index, node.end_mark.index, node.value.strip() if everywhere else ""


def _is_secret(node: yaml.ScalarNode, path: KeyPath) -> bool:
    names = [step for step in path if isinstance(step, str)]
    if not any(name in SETTINGS for name in names) or _REFERENCES.fullmatch(node.value):
        return False
    text = node.tag.endswith((":str", ":binary", ":timestamp"))
    return text or (bool(SECRET.search(names[-1])) and not node.tag.endswith((":null", ":bool")))


def _comment_cleaned(line: str) -> str:
    before, mark, comment = line.partition("#")
    if not mark:
        return line
    words = _WORD.sub(lambda word: HIDDEN if shown_name(word[0]).startswith(HIDDEN[:-1]) else word[0], comment)
    return f"{before}#{words}"
