"""Pages run nothing that somebody else wrote, come from one host alone, and are small."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest

from gateway.admin.actions import accounts, tokens
from gateway.admin.actions.accounts import NewAccount
from gateway.admin.actions.action import PREFIX
from gateway.admin.actions.table import ACTIONS
from gateway.admin.actions.tokens import NewToken
from gateway.admin.pages import docs
from gateway.admin.pages.view import count, money, share, span
from gateway.domain.exchange import Outcome
from tests.admin.pages.conftest import House, PlainBrowser
from tests.records import arrival, end, usage_database

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
LARGEST = 100 * 1024


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


async def pages_of(house: House) -> tuple[PlainBrowser, list[str]]:
    """Fill the store and the log with hostile texts, and return who looks and where these are shown."""
    local_client = house.local_client()
    await accounts.create(local_client, body=NewAccount(id="alice", external_id=HOSTILE))
    await tokens.create(local_client, "alice", body=NewToken(name=HOSTILE, models=(HOSTILE[:40],)))
    await local_client.store.wallet.credit("alice", "t", 5_000_000)
    await local_client.store.wallet.adjust("alice", "u", -5, HOSTILE)
    await local_client.store.channels.set_enabled("up", False, by=HOSTILE, reason=HOSTILE)
    rows = usage_database(local_client.store.usage.folder)
    hostile = end(
        arrival(),
        account="alice",
        model=HOSTILE,
        requested_model=HOSTILE,
        channel=HOSTILE,
        outcome=Outcome.UPSTREAM_FAILED,
        error_code=HOSTILE,
        upstream_usage=HOSTILE,
        upstream_request_id=HOSTILE,
        unavailable={HOSTILE: HOSTILE},
    )
    rows.write([hostile, *(end(arrival(), account="alice") for _ in range(60))])
    rows.close()
    paths = [
        "/",
        "/requests",
        f"/requests/{hostile.id}",
        "/accounts",
        "/accounts/alice",
        "/channels",
        "/audit",
        "/alerts",
    ]
    paths += ["/money?by=day&by=account&by=model&by=channel", "/configuration"]
    return await house.browser(), paths


async def test_nothing_that_somebody_wrote_becomes_an_element(house: House) -> None:
    browser, paths = await pages_of(house)
    quoted = "/requests?account=%3Cscript%3Ealert(1)%3C/script%3E%22onfocus=x&model=%22%3E%3Cimg%20src=x%3E"
    for path in (
        *paths,
        quoted,
        "/accounts?q=%22%3E%3Cscript%3E",
        "/audit?actor=%22%3E%3Cb%3E",
        "/accounts/%3Cscript%3E",
    ):
        status, text = await browser.get(path)
        elements = Elements(text).found
        assert status in (200, 404), path
        assert "{{" not in text.replace("{{7*7}}", ""), path
        for tag, attributes in elements:
            assert not any(name.startswith("on") or name == "style" for name in attributes), (path, tag)
            assert tag not in ("iframe", "object", "embed", "base", "style"), path
            if tag == "script":
                assert str(attributes.get("src")).startswith("/static/"), path
            if tag == "img":
                assert str(attributes["src"]).startswith("/static/"), path
            for name in ("src", "href", "action", "formaction"):
                assert not re.match(r"(?i)\s*(javascript|data|https?|//)", attributes.get(name) or ""), (path, tag)


async def test_every_page_says_what_a_browser_may_do_and_is_small(house: House) -> None:
    browser, paths = await pages_of(house)
    whole = 0
    for path in paths:
        status, text = await browser.get(path)
        assert status == 200, path
        policy = browser.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (browser.headers["Cache-Control"], browser.headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
        assert browser.headers["Referrer-Policy"] == "same-origin"
        size = len(text.encode())
        for address in set(re.findall(r'(?:src|href)="(/static/[^"]+)"', text)):
            async with browser.client.get(address) as response:
                assert response.status == 200
                assert "immutable" in response.headers["Cache-Control"]
                size += len(await response.read())
        whole = max(whole, size)
        assert size < LARGEST, path
    assert whole > 10_000


async def test_every_page_has_its_landmarks_and_names_its_fields(house: House) -> None:
    browser, paths = await pages_of(house)
    for path in paths:
        _, text = await browser.get(path)
        elements = Elements(text).found
        tags = [tag for tag, _ in elements]
        assert [tags.count(tag) for tag in ("main", "header", "h1")] == [1, 1, 1], path
        assert text.index("<title>") < text.index("<body"), path
        assert dict(elements[0][1]) == {"lang": "en"}
        assert 'href="#main"' in text
        assert text.count('aria-current="page"') == 1, path
        for tag, attributes in elements:
            if tag in ("table", "tr", "td", "thead", "tbody", "th"):
                assert attributes.get("role") in ("table", "row", "cell", "rowgroup", "columnheader"), (path, tag)
        ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
        assert len(ids) == len(set(ids)), path


@pytest.mark.parametrize("name", ["..%2fpages.py", "%2e%2e/pages.py", "style.css%00", "nothing.css", "../rendering.py"])
async def test_only_the_files_beside_the_pages_are_served(house: House, name: str) -> None:
    browser = PlainBrowser(await house.client_of())
    assert (await browser.get(f"/static/{name}"))[0] in (401, 404)


def test_numbers_are_as_people_read_them() -> None:
    assert str(money(1_234_500_000)) == '<span class="money">1,234.50<i aria-hidden="true">0000</i></span>'
    assert str(money(-500_001)) == '<span class="money below">\u22120.500001<i aria-hidden="true"></i></span>'
    assert "unknown" in money(None)
    assert [count(1234567), count(None)] == ["1,234,567", ""]
    assert [span(None), span(0), span(999), span(1500), span(90_000)] == ["", "0 ms", "999 ms", "1.5 s", "1.5 min"]
    assert [share(0), share(0.005)] == ["0 %", "0.5 %"]


def test_the_workers_need_no_template_engine() -> None:
    code = "import sys, gateway.serve.serve, gateway.runtime.worker; print({'jinja2', 'aiohttp_session'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


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
