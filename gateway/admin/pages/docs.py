"""The documents, rendered, with a search. Who may look: anybody who reaches the port, since they have nothing of this gateway.

They are in the package, or in a checkout at its top. Addresses are those of the files, so that the links between them lead on.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiohttp import web
from markdown_it import MarkdownIt
from markupsafe import Markup

from gateway.admin.actions.table import ACTIONS
from gateway.admin.http.openapi import described
from gateway.admin.pages.view import context_of, render
from gateway.base.errors import Refused

DOCS: Final = "/docs"
FIRST: Final = "README.md"
FOR_CALLERS: Final = "gateway/docs/callers.md"
"""The document that callers see at a port of their own."""
_PACKAGE: Final = Path(str(files("gateway")))
FOLDERS: Final = (_PACKAGE / "book", _PACKAGE.parent)
"""Where a wheel has what is in no package; and the folder of the packages, which is the top of a checkout."""
# No YAML: in a checkout, files with an operator's credentials may be beside those that were shipped.
NAMES: Final = (FIRST, "gateway/docs/*.md", "deploy/*.md", "plugins/*.md", "CHANGELOG.md")
API: Final = "gateway/docs/api.md"
"""The reference of the operator's API, which is in no file."""
REFERENCES: Final = (API, "plugins/REFERENCE.md", "CHANGELOG.md")
"""What a search puts after the guides."""
MOST: Final = 30
AROUND: Final = 120
"""Characters on each side of what is found."""


class DocumentPart(NamedTuple):
    """A part of a document that the search finds: its address and title, and its text."""

    address: str
    title: str
    text: str


@cache
def documents() -> dict[str, str]:
    """Return the texts of the documents by their names."""
    found: dict[str, Path] = {}
    for folder in reversed(FOLDERS):
        for pattern in NAMES if folder.exists() else ():
            found |= {path.relative_to(folder).as_posix(): path for path in sorted(folder.glob(pattern))}
    return {name: path.read_text(encoding="utf-8") for name, path in found.items()} | {API: reference()}


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as links name it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@cache
def rendered(name: str, alone: bool = False) -> Markup:
    """Return a document as HTML, with links to the others unless it is `alone`."""
    text = documents()[name]
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    if not name.endswith(".md"):
        text = f"# {name}\n\n```\n{text}\n```\n"
    tokens = markdown.parse(re.sub(r"(?m)^<.*>$", "", text))
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[number + 1].content))
        for child in token.children or ():
            if child.type == "link_open" and not _leads_on(name, str(child.attrGet("href")), alone):
                del child.attrs["href"]
    html = re.sub(r"<(pre|table)>", r'<\1 tabindex="0">', markdown.renderer.render(tokens, markdown.options, {}))
    return Markup(html)  # noqa: S704 - of files of ours, without HTML


def _leads_on(name: str, link: str, alone: bool) -> bool:
    """Return whether a link of a document leads to somewhere that is served, or elsewhere."""
    path = link.partition("#")[0]
    if not path or "://" in path:
        return True
    return not alone and posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) in documents()


@cache
def sections() -> list[DocumentPart]:
    """Return the parts of all documents."""
    return [part for name in documents() for part in _parts(name)]


def _parts(name: str) -> Iterator[DocumentPart]:
    text = documents()[name]
    title, found = name, re.split(r"(?m)^#{1,4} (.+)$", text) if name.endswith(".md") else ["", name, text]
    for heading, body in zip(found[1::2], found[2::2], strict=True):
        title = heading if title == name else title
        yield DocumentPart(f"{DOCS}/{name}#{anchor(heading)}", heading, body)


def search(text: str) -> list[dict[str, Any]]:
    """Return the parts that have at least half of the words of a text: those that have most of them first, guides
    before references, then those whose heading has one, then those that have them most often."""
    words = list(dict.fromkeys(text.casefold().split()))[:10]
    found = []
    for part in sections() if words else ():
        body, title = part.text.casefold(), part.title.casefold()
        had = [word for word in words if word in body or word in title]
        if had and 2 * len(had) >= len(words):
            often = sum(1000 * (word in title) + body.count(word) for word in had)
            is_reference = part.address.removeprefix(f"{DOCS}/").startswith(REFERENCES)
            place = max(0, body.find(had[0]) - AROUND)
            begin = place and part.text.find(" ", place) + 1
            around = " ".join(part.text[begin : place + 2 * AROUND].split())
            rank = (-len(had), is_reference, -often)
            found.append((rank, {"address": part.address, "title": part.title, "around": around}))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])[:MOST]]


async def show(request: web.Request) -> web.StreamResponse:
    """Show a document, or what a search finds."""
    name, asked = request.match_info.get("name", ""), request.query.get("q", "").strip()[:200]
    if not name and not asked:
        raise web.HTTPSeeOther(f"{DOCS}/{FIRST}")
    if name and name not in documents():
        raise Refused(404, "not_found", "There is no such document.")
    context = {"name": name, "names": list(documents()), "asked": asked, "found": search(asked) if asked else []}
    return render(request, "docs.html", context_of(request) | context | {"text": rendered(name) if name else ""})


async def show_for_callers(request: web.Request) -> web.StreamResponse:
    """Show the document for callers, without a way to the others."""
    context = {"name": FOR_CALLERS, "names": [], "text": rendered(FOR_CALLERS, alone=True)}
    return render(request, "docs.html", context_of(request) | context)


def reference() -> str:
    """Return the reference of the operator's API as Markdown, made from its OpenAPI document.

    It has the operations by their subject, then the structures that they take and return.
    """
    document = described(ACTIONS)
    lines = ["# Reference of the operator's API", "", document["info"]["description"], ""]
    lines += ["It is made from `/openapi.json`, which programs read.", ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", "", operation.get("description", operation["summary"]), ""]
            parameters = operation.get("parameters", ())
            rows = ((f"{each['name']} ({each['in']})", each.get("required", False), each) for each in parameters)
            lines += _table("Parameter", rows)
            if "requestBody" in operation:
                lines += [f"Body: {_body(operation['requestBody'])}.", ""]
            success = next(iter(operation["responses"].items()))
            lines += [f"Answer {success[0]}: {_body(success[1]) or 'nothing'}.", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"## {name}", "", " ".join(schema.get("description", "").split()), ""]
        if "enum" in schema:
            lines += [f"One of {_kind(schema)}.", ""]
        needed = schema.get("required", ())
        fields = schema.get("properties", {}).items()
        lines += _table("Field", ((field, field in needed, {"schema": each} | each) for field, each in fields))
    return "\n".join(lines)


def _table(title: str, rows: Iterable[tuple[str, bool, dict[str, Any]]]) -> Iterator[str]:
    cells = []
    for name, needed, each in rows:
        text = " ".join(each.get("description", "").split()).replace("|", r"\|")
        cells.append(f"| {name}{' *' if needed else ''} | {_kind(each['schema'])} | {text} |")
    yield from (f"| {title} (* is required) | Type | |", "|---|---|---|", *cells, "") if cells else ()


def _body(answer: dict[str, Any]) -> str:
    return ", ".join(f"{_kind(each['schema'])}, {name}" for name, each in answer.get("content", {}).items())


def _kind(schema: dict[str, Any]) -> str:
    """Return the type that a schema gives, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "any value")
    return f"{kind} of {_kind(schema['items'])}" if "items" in schema else str(kind)
