"""The head of the requests to a channel, and the shipped examples of providers that need more than an address and a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.chain import loading
from gateway.config.channel import Channel
from gateway.config.document import shipped
from gateway.config.schema import load
from gateway.operations.operation import SERVED, Operation
from gateway.proxy.pool import Endpoint
from gateway.proxy.scheduler import Turns
from gateway.store.channels import CredentialStates
from plugins.anthropic import Messages

KEYS = ("AZURE_OPENAI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "DATABRICKS_TOKEN", "ANTHROPIC_API_KEY")
ENVIRONMENT = dict.fromkeys(KEYS, "key-of-the-provider") | {"CLOUDFLARE_AI_TOKEN": "token-of-cloudflare"}
COMMON = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "sluicegate"}

EXAMPLES: dict[str, tuple[str, dict[str, str]]] = {
    "azure": (
        "/openai/deployments/gpt-4o-mini/chat/completions?api-version=2024-10-21",
        {"host": "my-resource.openai.azure.com", "api-key": "key-of-the-provider"},
    ),
    "openrouter": (
        "/api/v1/chat/completions",
        {
            **{"host": "openrouter.ai", "authorization": "Bearer key-of-the-provider"},
            **{"http-referer": "https://chat.example.com", "x-openrouter-title": "Example Chat"},
        },
    ),
    "cloudflare": (
        "/v1/0123456789abcdef0123456789abcdef/my-gateway/compat/chat/completions",
        {
            **{"host": "gateway.ai.cloudflare.com", "authorization": "Bearer key-of-the-provider"},
            **{"cf-aig-authorization": "Bearer token-of-cloudflare", "cf-aig-collect-log-payload": "false"},
            **{"cf-aig-skip-cache": "true", "cf-aig-metadata": '{"service": "sluicegate"}'},
        },
    ),
    "databricks": (
        "/serving-endpoints/chat/completions",
        {
            **{"host": "my-workspace.cloud.databricks.com", "authorization": "Bearer key-of-the-provider"},
            "user-agent": "example_sluicegate/1.0",
        },
    ),
    "anthropic": (
        "/v1/messages",
        {"host": "api.anthropic.com", "x-api-key": "key-of-the-provider", "anthropic-version": "2023-06-01"},
    ),
}


async def head(
    channel: Channel, dialect: Messages | None = None, credential: str = "", operation: Operation = Operation.CHAT
) -> tuple[str, dict[str, str]]:
    """Return the path and the headers of a request."""
    endpoint = Endpoint(channel, Turns(), CredentialStates(), dialect)
    try:
        (message,) = endpoint.message(SERVED[operation], [b"{}"], credential, "text/event-stream", "")
    finally:
        await endpoint.close()
    start, *lines = bytes(message).decode("latin-1").partition("\r\n\r\n")[0].split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), "a header is there twice"
    assert (headers.pop("accept"), headers.pop("content-length")) == ("text/event-stream", "2")
    method, path, version = start.split(" ")
    assert (method, version) == ("POST", "HTTP/1.1")
    return path, headers


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_shipped_examples_send_what_the_provider_asks_for(name: str) -> None:
    loaded = load(shipped(f"examples/{name}.yaml"), ENVIRONMENT)
    chain = loading.build(loaded)
    (channel,) = loaded.config.channels.values()
    dialect = chain.dialects.get(channel.dialect or "")
    assert dialect is None or isinstance(dialect, Messages)
    path, headers = EXAMPLES[name]
    assert await head(channel, dialect, "key-of-the-provider") == (path, {**COMMON, **headers})
    assert channel.request_in_words
    assert "key-of-the-provider" in channel.scrubbed


def test_every_example_is_tried() -> None:
    assert {path.stem for path in Path(shipped("examples")).glob("*.yaml")} == {*EXAMPLES, "agents"}


async def test_the_example_for_agents_sends_each_operation_to_its_path_with_the_credential_in_its_place() -> None:
    channels = load(shipped("examples/agents.yaml"), ENVIRONMENT).config.channels
    for name, operation, path, place in (
        ("anthropic", Operation.MESSAGES, "/v1/messages", ("x-api-key", "key-of-the-provider")),
        ("anthropic", Operation.MESSAGE_TOKENS, "/v1/messages/count_tokens", ("x-api-key", "key-of-the-provider")),
        ("openai", Operation.RESPONSES, "/v1/responses", ("authorization", "Bearer key-of-the-provider")),
        ("openai", Operation.EMBEDDINGS, "/v1/embeddings", ("authorization", "Bearer key-of-the-provider")),
    ):
        assert operation.value in channels[name].operations
        sent, headers = await head(channels[name], None, "key-of-the-provider", operation)
        assert (sent, headers[place[0]]) == (path, place[1])


async def test_a_credential_in_the_query_is_encoded() -> None:
    channel = Channel(
        "http://h:8080/v1", api_keys=("a/b+c=d&e", "other"), auth="query key", query={"v": "\u00e4 1", "w": ""}
    )
    path, headers = await head(channel, credential="a/b+c=d&e")
    assert path == "/v1/chat/completions?v=%C3%A4%201&w=&key=a%2Fb%2Bc%3Dd%26e"
    assert headers == {**COMMON, "host": "h:8080"}
    assert (await head(channel, credential="other"))[0].endswith("&key=other")


async def test_a_channel_without_a_credential_sends_none() -> None:
    for auth in (None, "bearer", "header x-key", "query key"):
        assert await head(Channel("http://h/v1", auth=auth)) == ("/v1/chat/completions", {**COMMON, "host": "h"})


async def test_the_headers_of_a_channel_replace_those_of_its_dialect() -> None:
    channel = Channel("http://h/v1", api_key="k", dialect="anthropic", headers={"Anthropic-Version": "2099-01-01"})
    _, headers = await head(channel, Messages(), "k")
    assert headers == {**COMMON, "host": "h", "x-api-key": "k", "anthropic-version": "2099-01-01"}


async def test_a_proxy_gets_the_whole_address() -> None:
    channel = Channel("http://h/v1", query={"a": "b"}, proxy="http://u:p@proxy:1")
    path, headers = await head(channel)
    assert path == "http://h/v1/chat/completions?a=b"
    assert headers["proxy-authorization"].startswith("Basic ")
