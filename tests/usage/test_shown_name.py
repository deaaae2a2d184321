"""Names that callers made up are kept in a form that can be shown, and nothing of what may be a secret."""

from __future__ import annotations

import base64
import secrets
import uuid

import pytest

from gateway.store.token_format import TokenCodec
from gateway.usage.record import MOST, shown_name

NAMES = (
    *(
        "gpt-4oo",
        "gpt-4o-mini-2024-07-18",
        "chatgpt-4o-latest",
        "o1-preview",
        "gpt 4o mini",
        "GPT4o",
        "gpt-3.5-turbo-16k-0613",
    ),
    *("claude-3-5-sonnet-20241022", "claude-3-5-sonnet@20240620", "anthropic.claude-3-haiku-20240307-v1:0"),
    *(
        "us.meta.llama3-2-90b-instruct-v1:0",
        "meta-llama/Llama-3.3-70B-Instruct-Turbo",
        "Meta-Llama-3.1-405B-Instruct-FP8",
    ),
    *("mistralai/Mixtral-8x22B-Instruct-v0.1", "TheBloke/Mixtral-8x7B-Instruct-v0.1-GGUF:Q4_K_M", "open-mixtral-8x7b"),
    *("nous-hermes2-mixtral-8x7b-dpo-q4_K_M", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "DeepSeek-V3.2-Exp"),
    *("Qwen/Qwen2.5-VL-72B-Instruct-AWQ", "Qwen3-235B-A22B-Thinking-2507-FP8", "accounts/fireworks/models/deepseek-v3"),
    *(
        "ft:gpt-4o-mini-2024-07-18:my-org:support:AbCdEf12",
        "gemini-2.5-flash-lite-preview-06-17",
        "grok-4-fast-reasoning",
    ),
    *(
        "@cf/meta/llama-3.1-8b-instruct-fp8",
        "moonshotai/kimi-k2-instruct-0905",
        "text-embedding-3-large",
        "tokenizer-1",
    ),
    *("modèle-français", "模型-1", "g\u0440t-4o", "sk", "hf", "key"),
)


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_model_is_shown_as_it_was_sent(name: str) -> None:
    assert shown_name(name) == name


def made() -> list[str]:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    long = "".join(secrets.choice(alphabet) for _ in range(48))
    return [
        TokenCodec(b"0123456789abcdef").make("alice")[1],
        f"sk-proj-{secrets.token_urlsafe(48)}",
        f"sk-ant-api03-{secrets.token_urlsafe(60)}-AA",
        f"gsk_{long}",
        f"hf_{long[:34]}",
        f"AIza{secrets.token_urlsafe(26)}",
        f"AKIA{secrets.token_hex(8).upper()}",
        f"ghp_{long[:36]}",
        f"xai-{long}",
        secrets.token_hex(16),
        secrets.token_hex(32),
        str(uuid.uuid4()),
        str(uuid.uuid4()).replace("-", ""),
        # Marks cut it into words, and short words are shown: as many as chance gives is the subject of the test below.
        base64.b64encode(secrets.token_bytes(32), b"xy").decode(),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        f"Bearer {secrets.token_hex(8)}",
        f"gpt-4o {long}",
        "https://user:hunter2@host/v1",
        "api_key=hunter2",
        "password: hunter2",
    ]


@pytest.mark.parametrize("number", range(len(made())))
def test_nothing_of_a_secret_is_shown(number: int) -> None:
    for _ in range(20):
        text = made()[number]
        assert shown_name(text) == f"(hidden: {len(text)} characters that may be a secret)"


@pytest.mark.parametrize("random_bytes", [16, 24, 32])
def test_random_text_with_marks_between_its_letters_is_hidden_but_for_a_few_of_a_hundred(random_bytes: int) -> None:
    shown = [text for _ in range(2000) if shown_name(text := secrets.token_urlsafe(random_bytes)) == text]
    assert len(shown) <= 80, shown[:5]


def test_what_is_not_seen_is_escaped_and_a_long_name_is_cut() -> None:
    assert shown_name("gpt\x00-4\x1b[31m\u202eo\u200b\n\u0085") == r"gpt\x00-4\x1b[31m\u202eo\u200b\n\x85"
    assert shown_name("") == ""
    assert len(shown_name("ab " * 1_000_000)) == MOST
    assert len(shown_name("\u202e" * 500)) == MOST
