"""The documents are served to anybody who reaches the port, rendered, with a search and links that lead on."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin

from gateway.admin.actions.action import PREFIX
from gateway.admin.actions.table import ACTIONS
from gateway.admin.pages import docs
from tests.admin.pages.conftest import House, PlainBrowser


async def test_every_document_is_served_and_every_link_leads_to_a_heading(house: House) -> None:
    browser = PlainBrowser(await house.client_of())
    status, _ = await browser.get("/docs")
    assert (status, browser.headers["Location"]) == (303, "/docs/README.md")
    pages, links = dict[str, str](), list[tuple[str, str]]()
    for name in docs.documents():
        status, text = await browser.get(f"/docs/{name}")
        assert status == 200, name
        pages[f"/docs/{name}"] = text
        article = text.partition("<article")[2].partition("</article>")[0]
        links += [(name, unescape(link)) for link in re.findall(r'<a href="([^"]+)"', article)]
    assert {"/docs/README.md", "/docs/deploy/store.md", "/docs/plugins/tutorial.md"} <= set(pages)
    assert not [path for path in pages if not path.endswith(".md")], "a file of settings may have credentials"
    for name, link in links:
        path, _, anchor = urljoin(f"/docs/{name}", link).partition("#")
        if not path.startswith("http") and not path.endswith(".yaml"):
            assert path in pages, (name, link)
            assert not anchor or f'id="{anchor}"' in pages[path], (name, link)
    assert len(links) > 70


async def test_a_search_finds_parts_by_all_of_their_words(house: House) -> None:
    browser = PlainBrowser(await house.client_of())
    status, text = await browser.get("/docs?q=Balance+TOKEN")
    assert (status, 'href="/docs/' in text.partition("parts for")[2]) == (200, True)
    _, text = await browser.get("/docs?q=reverse+proxies")
    first = re.findall(r'<h2><a href="([^"]+)"', text)[0]
    assert first == "/docs/deploy/network.md#reverse-proxies"
    assert "No document has these words" in (await browser.get("/docs?q=qqqq"))[1]
    assert "<script>alert" not in (await browser.get("/docs?q=<script>alert(1)</script>"))[1]


async def test_a_search_puts_guides_first_and_needs_no_more_than_half_of_the_words(house: House) -> None:
    browser = PlainBrowser(await house.client_of())
    _, text = await browser.get("/docs?q=cached+price")
    assert re.findall(r'<h2><a href="([^"]+)"', text)[0].startswith("/docs/gateway/docs/money.md#")
    status, text = await browser.get("/docs?q=charged+when+upstream+fails+mid+qqqq")
    assert (status, 'href="/docs/' in text.partition("parts for")[2]) == (200, True)
    parts = " ".join(" ".join(part.text.split()) for part in docs.sections())
    for found in docs.search("charge stream"):
        assert f" {found['around']}" in parts, found


async def test_each_operation_of_the_api_is_described_and_found(house: House) -> None:
    browser = PlainBrowser(await house.client_of())
    _, text = await browser.get(f"/docs/{docs.API}")
    for action in ACTIONS:
        assert f">{action.method} {PREFIX}{action.path}</h2>" in text, action.name
    part = text.partition(">POST /api/v1/accounts</h2>")[2].partition("<h2")[0]
    for told in ("Create an active account", "Scope: <code>accounts</code>", "Idempotency-Key (header)"):
        assert told in part
    assert 'Body: <a href="#newaccount">' in part and 'Answer 201: <a href="#changedaccount">' in part
    fields = text.partition('<h2 id="newaccount">')[2].partition("<h2")[0]
    assert "<td>external_id</td>" in fields and "What the account is called elsewhere" in fields
    assert f'href="/docs/{docs.API}"' in (await browser.get("/docs/README.md"))[1]
    assert f"/docs/{docs.API}#" in (await browser.get("/docs?q=POST+/api/v1/accounts"))[1]


async def test_nothing_but_documents_is_served(house: House) -> None:
    browser = PlainBrowser(await house.client_of())
    for path in ("pyproject.toml", "../gateway.yaml", "%2e%2e/gateway.yaml", "gateway/cli/usage.py", "plugins/auth.py"):
        assert (await browser.get(f"/docs/{path}", Accept="text/html"))[0] in (401, 404), path
