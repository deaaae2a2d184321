"""The contract tests find each broken promise, and pass plugins that keep all of them."""

from __future__ import annotations

import pytest

from gateway.base.errors import Misconfigured
from gateway.plugin_kit import broken, check, checks, scenarios
from tests import faulty

EXAMPLES: dict[str, dict[str, object]] = {
    "plugins.examples.address_allow_list:AddressAllowList": {"networks": ["127.0.0.0/8"]},
    "plugins.examples.prompt_size:PromptSize": {"tokens": 100},
    "plugins.examples.response_stamp:ResponseStamp": {},
    "plugins.examples.first_token_alarm:FirstTokenAlarm": {},
    "plugins.examples.prompt_patterns:PromptPatterns": {},
    "stop-words": {"words": ["forbidden"]},
}
SHIPPED = ("usage-logger", "auth", "rate-limit", "quota", "model-routing", "redact", "answer-cache", "anthropic")


@pytest.mark.parametrize(
    "use", [*SHIPPED, *EXAMPLES, "tests.faulty:Good", "tests.faulty:Answers", "tests.faulty:GoodDialect"]
)
async def test_a_good_plugin_keeps_every_promise(store_url: str, use: str) -> None:
    findings = await check(use, EXAMPLES.get(use), url=store_url)
    assert broken(findings) == []
    assert [finding.check for finding in findings] == [
        *("docstring", "settings", "hooks", "facts", "start", "request", "ends", "gives back", "steps", "explains"),
        *("edits", "streams", "dialects", "reload", "stop", "secrets"),
    ]


FILE = faulty.__file__
FAULTS = {
    "NoDocstring": "docstring: say in one sentence what it does",
    "Undocumented": "settings: `unknown` is not documented",
    "Inherits": "settings: `unknown` is not documented",
    "Waits": "hooks: `on_chunk` must be `def`",
    "Blocks": "hooks: `on_request` must be `async def`",
    "TakesTooLittle": "hooks: `on_chunk` must take (self, exchange, chunk) (",
    "Misspelt": "hooks: `on_requests` is not a hook and is never called: did you mean `on_request`?",
    "NamesFacts": "facts: `requires` must be a tuple of types",
    "PromisesOnly": "facts: `provides` names facts, but there is no `on_request`",
    "NeverStarts": "start: does not start: opens must be before closes",
    "Fails": "start: does not start: RuntimeError: a bug (",
    "AssignsId": "request: `on_request` raised AttributeError: property 'id' of",
    "ReplacesHeaders": "request: `response_headers` is no mapping, but None",
    "Exits": "request: `on_request` raised RuntimeError: 'check' raised SystemExit (the answer was complete) at ",
    "NeedsOwn": "start: does not start: it requires Own, which no installed plugin provides",
    "Lacks": "request: `on_request` did not set Caller",
    "Undeclared": "request: `on_request` raised KeyError",
    "Refuses": "request: refused the request of this check (403 closed: Come back later.)",
    "ReadsEveryBody": "ends: reads the body of requests that have none",
    "EndsWithoutABeginning": "ends: `on_end` raised KeyError: <class 'tests.faulty.Own'> where replies were lost (from wait 1 on)",
    "Grows": "gives back: the size of `_seen` changed by 24 in 24 exchanges",
    "ReleasesWholeOnly": "gives back: `_running` after: a plugin below refused",
    "NeverReleases": "gives back: free slots of `_free` changed by 24 in 24 exchanges",
    "TrustsTheReply": "gives back: `gw:plugin:check:open` <id> after: the replies from wait 1 of `on_request` on were lost",
    "AsksAgain": "gives back: `gw:plugin:check:open` <id> after: the replies from wait 1 of `on_request` on were lost",
    "Believes": "request: `on_chunk` raised UnicodeDecodeError",
    "TakesToExplain": "explains: `explain` changes `gw:plugin:check:open` <id>; ",
    "CountsAgain": "steps: `request_step` changes `gw:plugin:check:{a}` again when its step is sent again: use the request's id",
    "FailsInTheStore": "request: the step of `request_step` fails: ",
    "SpreadsItsKeys": "steps: the keys of `request_step` are in several hash slots: put braces around the account in each",
    "HasBothForms": "hooks: `on_request` and `request_step` are both defined: keep one of them",
    "PlansAndCounts": "steps: RuntimeError: planned twice, where a step is planned or sent twice",
    "ExplainsAnother": "explains: `explain` raised Refused: Never., where `on_request` passes",
    "ExplainsWithoutItsFact": "explains: `explain` does not set Own",
    "EditsUndeclared": "request: `on_request` raised GatewayError: 'check' changes the request without declaring it",
    "EditsNowhere": "hooks: `edits = True` is declared, but there is no `on_request`",
    "EditsBadly": "request: `on_request` raised GatewayError: 'check' makes a request that is not valid: 'messages' is required",
    "EditsLate": "request: `on_response` raised GatewayError: a plugin changes the request outside of `on_request`",
    "ExplainsNoEdit": "edits: `explain` changes nothing, `on_request` seed",
    "CountsUndeclared": "edits: `on_request` reads `max_tokens` of the body: say `counts = True`",
    "StopsWithText": "request: `on_chunk` raised TypeError: an exchange is stopped with a Refused, not with 'enough'",
    "ReadsOnlyStreams": "streams: `on_response` raised KeyError: 'delta' for an answer that is not streamed: {",
    "AnswersHalf": "streams: the events of its reply end before the answer is whole",
    "AnswersText": "streams: the events of its reply are str: they must be bytes",
    "AnswersAndFails": "streams: the events of its reply raised ZeroDivisionError",
    "AnswersAndStays": "streams: the events of its reply were not closed within",
    "AnswersAFunction": "request: `on_request` raised TypeError: events is an async iterator, not method",
    "Once": "reload: a second instance beside the first one: OSError: the port is taken",
    "ChangesEachPiece": "streams: `on_delta` makes other texts where the events of an answer end elsewhere: hold back the end",
    "HoldsAllBack": "streams: `on_delta` raised ValueError: `on_delta` holds back more than 65536 characters",
    "ShowsItsKey": "secrets: `repr` shows `api_key`",
    "AnswersADict": "request: `on_request` raised TypeError: `on_request` of 'check' returned a dict: return a Reply, or None (",
    "PlansADict": "request: `request_step` raised TypeError: dict was returned in place of a Step",
    "ReturnsAChunk": "request: `on_chunk` returns a bytes, which is ignored: return nothing (",
    "RefusesInEnd": "request: `on_end` returns a Refused, which is ignored: return nothing (",
    "ExplainsInNumbers": "explains: `explain` returns an int: return a sentence, or None",
    "RequiresAType": "facts: `requires` must be a tuple of types, such as `(Caller,)`",
    "ProvidesADialect": "facts: `dialects` must be a tuple of classes, such as `(Messages,)`",
    "RepeatsACoroutine": "start: does not start: TypeError: every: give the function without calling it, as in",
    "ForgetsToAwaitTheBody": "request: `on_request` raised AttributeError: 'coroutine' object has no attribute 'model' ",
    "SendsABadHeader": "request: the response header 'x-note' cannot be sent: a name is a token, and a value has no control",
    "SendsAnId": "request: the response header 'X-Request-Id' cannot be sent: the gateway writes its own",
    "SendsANumber": "request: the response header 'x-tries' is not text: 1",
    "PrintsTheToken": "secrets: the log, the output or `repr` shows the caller's credential",
    "LogsTheTokenByItself": "secrets: the log, the output or `repr` shows the caller's credential",
    "CountsInTwoKinds": "start: does not start: metric `sluicegate_plugin_check_seen` is a counter already",
    "AssignsTheCharge": "request: `on_end` raised AttributeError: property 'charge_micros' of ",
    "WritesTheBody": "request: `on_request` raised TypeError: 'mappingproxy' object does not support item assignment",
    "EditsWithNoNumber": "request: `on_request` raised GatewayError: 'check' makes a request that is not valid: `temperature` ",
    "AuthOfNoKind": "dialects: dialect `plain`: must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`",
    "AuthIsNone": "dialects: dialect `plain`: `auth` must be `bearer`, `header NAME` or `query NAME`, and is None",
    "AsksInText": "dialects: dialect `plain`: `request` returns a str: it must return the body as bytes",
    "ForgetsTheLimit": "dialects: dialect `plain`: `request` does not send `chat.max_tokens`",
    "HasNoReader": "dialects: dialect `plain`: `reader` returns None: it must return an AnswerReader",
    "ReadsDicts": "dialects: dialect `plain`: `read` gives a dict: it must give an AnswerDelta",
    "KnowsItAll": "dialects: dialect `plain`: `read` raised KeyError: 'ping' (",
    "ErrorOfText": "dialects: dialect `plain`: `error` returns 'oops': it must return the status, and the body as bytes",
    "ExitsInStop": f"stop: `stop` raised SystemExit: 3 ({FILE}, line ",
    "FailsInStop": f"stop: `stop` raised RuntimeError: a bug ({FILE}, line ",
    "LogsTheToken": "secrets: the log, the output or `repr` shows the caller's credential",
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_promise_is_found_and_no_other_check_fails(store_url: str, name: str) -> None:
    found = broken(await check(f"tests.faulty:{name}", url=store_url))
    assert [text.startswith(FAULTS[name]) for text in found] == [True], found


async def test_the_names_of_what_a_plugin_takes_are_listed() -> None:
    (found,) = [finding.text for finding in await check("tests.faulty:Good") if finding.check == "gives back"]
    assert found == "`gw:plugin:check:open` <id>, free slots of `_free`, the size of `_open`"


async def test_a_hook_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "HOOK_TIMEOUT_S", 0.01)
    (found,) = broken(await check("tests.faulty:Hangs"))
    assert found.startswith(f"request: `on_end` did not end within 0.01 s (the answer was complete) at {FILE}, line ")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NeverEndsItsStart", "start: does not start: `start` did not end within 0.01 s "),
        ("NeverEndsItsStop", "stop: `stop` did not end within 0.01 s "),
    ],
)
async def test_a_start_or_stop_that_never_ends_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setattr(checks, "START_LIMIT_S" if "start" in expected else "STOP_LIMIT_S", 0.01)
    (found,) = broken(await check(f"tests.faulty:{name}"))
    assert found.startswith(f"{expected}({FILE}, line ")


async def test_a_secret_setting_in_the_log_is_found() -> None:
    assert broken(await check("tests.faulty:LogsItsKey", {"api_key": "sesame-4711"})) == [
        "secrets: the log shows `api_key`"
    ]


@pytest.mark.parametrize("url", ["http://127.0.0.1:7899/mod", "https://example.com/?page=2"])
async def test_an_address_may_be_shown(url: str) -> None:
    assert broken(await check("tests.faulty:ShowsAnAddress", {"url": url})) == []


@pytest.mark.parametrize(
    "url", ["redis://:secret@h/0", "https://key@h/1", "https://h/?key=secret", "host=h password=x"]
)
async def test_an_address_with_credentials_may_not_be_shown(url: str) -> None:
    (found,) = broken(await check("tests.faulty:ShowsAnAddress", {"url": url}))
    assert found == "secrets: `repr` shows `url`: define a `__repr__` without it"


async def test_a_plugin_may_have_a_redis_of_its_own(
    store_url: str,
) -> None:
    assert broken(await check("tests.faulty:OwnRedis", {"url": store_url})) == []


async def test_a_body_stands_in_for_that_of_the_check() -> None:
    body = {"messages": [{"role": "user", "content": "a banana"}]}
    assert broken(await check("tests.faulty:FailsAtAWord")) == []
    (found,) = broken(await check("tests.faulty:FailsAtAWord", body=body))
    assert found.startswith("streams: `on_delta` raised ZeroDivisionError")
    (found,) = broken(await check("tests.faulty:ReadsEveryBody", body={"messages": 5}))
    assert "refused the request of this check (400 " in found


async def test_a_header_stands_in_for_the_token() -> None:
    (found,) = broken(await check("auth", headers={"Authorization": "Bearer sesame-4711"}))
    assert found.startswith("request: refused the request of this check (401 token_invalid: ")


async def test_an_unknown_plugin_or_setting_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no `Nobody`"):
        await check("tests.faulty:Nobody")
    with pytest.raises(Misconfigured, match="most: must be a whole number"):
        await check("tests.faulty:Good", {"most": "many"})


async def test_a_step_that_is_kept_for_all_requests_is_found(
    store_url: str,
) -> None:
    found = broken(await check("tests.faulty:KeepsItsStep", url=store_url))
    assert any("make a new one for each request" in str(line) for line in found), found
