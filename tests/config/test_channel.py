"""What a channel's settings mean."""

from __future__ import annotations

import pytest

from gateway.config.channel import Channel


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://API.OpenAI.com:443/v1", "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://firm.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://openai.azure.com.example/v1", "max_tokens"),
        ("https://notapi.openai.com/v1", "max_tokens"),
        ("https://openrouter.ai/api/v1", "max_tokens"),
        ("http://127.0.0.1:8000/v1", "max_tokens"),
        ("http://[::1]:8000/v1", "max_tokens"),
    ],
)
def test_the_name_of_the_ceiling_depends_on_the_host_unless_it_is_given(base_url: str, name: str) -> None:
    assert Channel(base_url).ceiling_name == name
    assert Channel(base_url, ceiling_field="max_tokens").ceiling_name == "max_tokens"
    assert Channel(base_url, ceiling_field="max_completion_tokens").ceiling_name == "max_completion_tokens"
