"""The audit log is read on a page by who may, with what was before and after."""

from __future__ import annotations

from tests.admin.pages.conftest import House


async def test_changes_are_listed_with_their_details_and_searched(house: House) -> None:
    visitor = await house.visitor()
    await visitor.post("/accounts", id="alice", group="default", external_id="<i>x</i>")
    await visitor.post("/accounts", id="alice", group="default")
    status, text = await visitor.get("/audit")
    assert status == 200
    for part in ("accounts.create", "page of alice", "exists", "done", "&lt;i&gt;x&lt;/i&gt;", "links.create"):
        assert part in text, part
    _, text = await visitor.get("/audit?operation=links")
    assert ("links.create" in text, "accounts.create" in text) == (True, False)
    assert "No change fits this search" in (await visitor.get("/audit?actor=nobody"))[1]
