"""The API does what the table of operations says, for who may do it, and refuses everything else in words."""

from __future__ import annotations

from tests.admin.http.conftest import TOKEN, Client, call


async def test_a_management_token_does_what_its_scopes_say_and_nothing_after_it_is_revoked(api: Client) -> None:
    status, made = await call(api, "POST", "/management-tokens", {"name": "the shop", "scopes": ["accounts"]})
    text = made["token"]
    assert (status, made["scopes"]) == (201, ["accounts"])
    assert (await call(api, "POST", "/accounts", {"id": "bob"}, text))[0] == 201
    for method, path in (
        ("GET", "/accounts"),
        ("GET", "/management-tokens"),
        ("DELETE", f"/management-tokens/{made['id']}"),
        ("POST", "/accounts/bob/credits"),
    ):
        status, refused = await call(api, method, path, {"no": "body of it"} if method == "POST" else None, text)
        assert (status, refused["error"]["code"]) == (403, "scope_missing")
    assert (await call(api, "DELETE", f"/management-tokens/{made['id']}"))[0] == 204
    assert (await call(api, "POST", "/accounts", {"id": "carol"}, text))[0] == 401


async def test_nobody_gets_in_without_a_token(api: Client) -> None:
    for token in ("", "wrong", "sk-mgmt-000000000000-guessed", TOKEN[:-1]):
        assert (await call(api, "GET", "/accounts", None, token))[0] == 401


async def test_no_answer_may_be_run_framed_or_kept_by_a_browser(api: Client) -> None:
    for path in ("/healthz", "/api/v1/accounts", "/nothing"):
        async with api.get(path) as response:
            assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert (response.headers["X-Content-Type-Options"], response.headers["Cache-Control"]) == (
                "nosniff",
                "no-store",
            )
