"""What a caller is told about paths that are not served."""

from __future__ import annotations

import pytest

from gateway.operations.operation import Operation
from gateway.server.routes import KNOWN_PATHS, misdirected, operation_of


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions/chat/completions", "/chat/completions"),
        ("/v1/chat/completions/models", "/chat/completions"),
        ("/v1/chat/completions/v1/chat/completions", "/chat/completions"),
        ("/v1/chat/completions/responses", "/chat/completions"),
        ("/v1/chat/chat/completions", "/chat"),
        ("/v1/models/chat/completions", "/models"),
        ("/chat/completions/chat/completions", "/chat/completions"),
    ],
)
def test_a_base_address_with_the_path_of_a_request_is_told_what_to_remove(path: str, more: str) -> None:
    refused = misdirected("POST", path)
    assert (refused.status, refused.code) == (404, "unknown_path")
    assert refused.message.endswith(f"Remove {more} from the end of the base address.")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/chatcmpl-1", "/v1/chatter/completions", "/v1/chat/completions2"]
)
def test_a_path_that_only_begins_alike_is_unknown(path: str) -> None:
    assert misdirected("POST", path).message.startswith(f"There is no {path} here. Known here: ")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/images/variations", ""),
        ("/v1/messages/batches", ""),
        ("/v1/embeddings/1", ""),
        ("/v1/audio/voices", ""),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_api_is_told_what_is_served(method: str, path: str, said: str) -> None:
    refused = misdirected(method, path)
    assert (refused.status, refused.code) == (404, "unknown_path")
    assert said in refused.message
    assert refused.message.endswith(KNOWN_PATHS)


def test_clients_of_responses_go_on_without_a_websocket() -> None:
    refused = misdirected("GET", "/v1/responses")
    assert (refused.status, refused.code) == (426, "upgrade_required")


@pytest.mark.parametrize(
    ("method", "path", "stored"),
    [
        ("GET", "/v1/responses/resp_1", "resp_1"),
        ("HEAD", "/v1/responses/resp_1", "resp_1"),
        ("DELETE", "/v1/responses/resp_1", "resp_1"),
        ("GET", "/v1/responses/resp_1/input_items", "resp_1/input_items"),
        ("POST", "/v1/responses/resp_1/cancel", "resp_1/cancel"),
        ("POST", "/v1/responses/resp_1", ""),
        ("DELETE", "/v1/responses/resp_1/input_items", ""),
        ("GET", "/v1/responses/resp_1/cancel", ""),
        ("GET", "/v1/responses/compact", ""),
        ("GET", "/v1/responses/..", ""),
        ("GET", "/v1/responses/../models", ""),
        ("GET", "/v1/responses/a%2Fb", ""),
        ("GET", "/v1/responses/", ""),
    ],
)
def test_an_answer_that_is_kept_has_a_path(method: str, path: str, stored: str) -> None:
    found = (Operation.STORED_RESPONSES, stored) if stored else (Operation.MISDIRECTED, "")
    assert operation_of(method, path) == found


def test_a_slash_at_the_end_is_named() -> None:
    assert misdirected("POST", "/v1/chat/completions/").message == "Remove the slash at the end of the path."


def test_a_model_may_be_called_like_an_api() -> None:
    assert operation_of("GET", "/v1/models/embeddings")[1] == "embeddings"
