"""Usage as upstreams send it, with the price that each publishes and what the two come to.

`usage` is the object as the upstream's documentation shows it, or as it was recorded from the upstream (`recorded`); `made` are
numbers of ours in the documented shape. `parts` is the bill by hand: tokens, and the price of a million of them.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Final

import msgspec

Part = tuple[int, str]


class Bill(msgspec.Struct, frozen=True):
    """One answered request of an upstream. `place`: where in the last event the usage is; `stated`: the cost that it states."""

    upstream: str
    source: str
    usage: str
    published: str
    price: str
    parts: tuple[Part, ...]
    micros: int
    request: str = "0"
    stated: int | None = None
    place: str = "usage"

    @property
    def exact(self) -> Decimal:
        """Return the sum of the parts in micros, before it is rounded up."""
        tokens = sum((count * Decimal(price) for count, price in self.parts), Decimal(0))
        return tokens + Decimal(self.request) * 1_000_000

    def event(self) -> bytes:
        """Return the event that has the usage."""
        told = f'"usage":{self.usage}'
        choice = '{"index":0,"delta":{},"finish_reason":"stop"%s}'
        bodies = {
            "usage": f'"choices":[],{told}',
            "choice": f'"choices":[{choice % f",{told}"}]',
            "x_groq": f'"choices":[{choice % ""}],"x_groq":{{"id":"req_1",{told}}}',
        }
        return f'data: {{"id":"1","object":"chat.completion.chunk",{bodies[self.place]}}}\n\n'.encode()


def _recorded(file: str) -> str:
    return f"recorded: github.com/charmbracelet/fantasy v0.41.2, providertests/testdata/{file}"


OPENAI: Final = "https://developers.openai.com/api/docs/pricing"
BILLS: Final = (
    Bill(
        "OpenAI, gpt-4o",
        "documented: https://platform.openai.com/docs/guides/prompt-caching",
        '{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{"cached_tokens":1920},'
        '"completion_tokens_details":{"reasoning_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}',
        OPENAI,
        "input: 2.50, cached_input: 1.25, output: 10.00",
        ((86, "2.5"), (1920, "1.25"), (300, "10")),
        5615,
    ),
    Bill(
        "OpenAI, gpt-5.6, which bills what it writes to its cache",
        "made, in the shape of https://developers.openai.com/api/docs/guides/prompt-caching",
        '{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{"cached_tokens":0,'
        '"cache_write_tokens":1920},"completion_tokens_details":{"reasoning_tokens":128}}',
        OPENAI,
        "input: 5, cached_input: 0.5, cache_write: 6.25, output: 30, "
        "tiers: [{above: 272000, input: 10, cached_input: 1, cache_write: 12.5, output: 45}]",
        ((86, "5"), (1920, "6.25"), (300, "30")),
        21_430,
    ),
    Bill(
        "Azure OpenAI, o1-2024-12-17",
        "documented: https://learn.microsoft.com/azure/ai-foundry/openai/how-to/prompt-caching",
        '{"completion_tokens":1518,"prompt_tokens":1566,"total_tokens":3084,"completion_tokens_details":{"audio_tokens":null,'
        '"reasoning_tokens":576},"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":1408}}',
        "https://prices.azure.com/api/retail/prices (eastus)",
        "input: 15, cached_input: 7.5, output: 60",
        ((158, "15"), (1408, "7.5"), (1518, "60")),
        104_010,
    ),
    Bill(
        "DeepSeek, deepseek-chat",
        "made, in the shape of https://api-docs.deepseek.com/api/create-chat-completion",
        '{"completion_tokens":296,"completion_tokens_details":{"reasoning_tokens":3},"prompt_cache_hit_tokens":1408,'
        '"prompt_cache_miss_tokens":218,"prompt_tokens":1626,"prompt_tokens_details":{"cached_tokens":1408},"total_tokens":1922}',
        "https://api-docs.deepseek.com/quick_start/pricing (V3.2)",
        "input: 0.28, cached_input: 0.028, output: 0.42",
        ((218, "0.28"), (1408, "0.028"), (296, "0.42")),
        225,
    ),
    Bill(
        "xAI, grok-4-fast: reasoning is in the total alone",
        _recorded("TestOpenAICompatibleCommon/xai-grok-4-fast/multi_tool.yaml"),
        '{"prompt_tokens":670,"completion_tokens":25,"total_tokens":739,"prompt_tokens_details":{"text_tokens":670,'
        '"audio_tokens":0,"image_tokens":0,"cached_tokens":618},"completion_tokens_details":{"reasoning_tokens":44,'
        '"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0},"num_sources_used":0,'
        '"cost_in_usd_ticks":758000}',
        "https://docs.x.ai/docs/models (grok-4-fast)",
        "input: 0.20, cached_input: 0.05, output: 0.50",
        ((52, "0.2"), (618, "0.05"), (69, "0.5")),
        76,
        stated=76,
    ),
    Bill(
        "xAI, grok-3-mini: reasoning is in the total alone",
        _recorded("TestOpenAICompatibleThinking/xai-grok-3-mini/thinking-streaming.yaml"),
        '{"prompt_tokens":331,"completion_tokens":11,"total_tokens":613,"prompt_tokens_details":{"text_tokens":331,'
        '"audio_tokens":0,"image_tokens":0,"cached_tokens":330},"completion_tokens_details":{"reasoning_tokens":271,'
        '"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0},"num_sources_used":0,'
        '"cost_in_usd_ticks":1660500}',
        "https://docs.x.ai/docs/models (grok-3-mini)",
        "input: 0.30, cached_input: 0.075, output: 0.50",
        ((1, "0.3"), (330, "0.075"), (282, "0.5")),
        167,
        stated=167,
    ),
    Bill(
        "xAI, grok-4.20, a prompt that reaches the second tier",
        "made, in the shape of https://docs.x.ai/developers/advanced-api-usage/prompt-caching/usage-and-pricing",
        '{"prompt_tokens":200000,"completion_tokens":1000,"total_tokens":201500,"prompt_tokens_details":{"text_tokens":200000,'
        '"audio_tokens":0,"image_tokens":0,"cached_tokens":150000},"completion_tokens_details":{"reasoning_tokens":500}}',
        "https://docs.x.ai/developers/models/grok-4.20-0309: from 200k prompt tokens on, for all tokens",
        "input: 1.25, cached_input: 0.20, output: 2.50, "
        "tiers: [{above: 199999, input: 2.50, cached_input: 0.40, output: 5.00}]",
        ((50_000, "2.5"), (150_000, "0.4"), (1500, "5")),
        192_500,
    ),
    Bill(
        "Groq, gpt-oss-120b",
        "documented: https://console.groq.com/docs/prompt-caching",
        '{"queue_time":0.026959759,"prompt_tokens":4641,"prompt_time":0.009995497,"completion_tokens":1817,'
        '"completion_time":5.57691751,"total_tokens":6458,"total_time":5.586913007,"prompt_tokens_details":{"cached_tokens":4608}}',
        "https://groq.com/pricing",
        "input: 0.15, cached_input: 0.075, output: 0.60",
        ((33, "0.15"), (4608, "0.075"), (1817, "0.6")),
        1441,
        place="x_groq",
    ),
    Bill(
        "Mistral, mistral-large-3",
        "made, in the shape of https://docs.mistral.ai/studio-api/conversations/advanced/prompt-caching",
        '{"prompt_tokens":1042,"total_tokens":1129,"completion_tokens":87,"num_cached_tokens":1024,'
        '"prompt_tokens_details":{"cached_tokens":1024}}',
        "https://docs.mistral.ai/models/mistral-large-3-25-12, cached tokens at 10 %",
        "input: 0.50, cached_input: 0.05, output: 1.50",
        ((18, "0.5"), (1024, "0.05"), (87, "1.5")),
        191,
    ),
    Bill(
        "OpenRouter, z-ai/glm-5-turbo",
        _recorded("TestOpenRouterCommon/glm/multi_tool_streaming.yaml"),
        '{"prompt_tokens":358,"completion_tokens":46,"total_tokens":404,"cost":0.00036784,"is_byok":false,'
        '"prompt_tokens_details":{"cached_tokens":256,"cache_write_tokens":0,"audio_tokens":0,"video_tokens":0},'
        '"cost_details":{"upstream_inference_cost":0.00036784,"upstream_inference_prompt_cost":0.00018384,'
        '"upstream_inference_completions_cost":0.000184},"completion_tokens_details":{"reasoning_tokens":11}}',
        "https://openrouter.ai/z-ai/glm-5-turbo",
        "input: 1.20, cached_input: 0.24, output: 4.00",
        ((102, "1.2"), (256, "0.24"), (46, "4")),
        368,
        stated=368,
    ),
    Bill(
        "OpenRouter, x-ai/grok-4.1-fast",
        _recorded("TestOpenRouterCommon/grok/multi_tool_streaming.yaml"),
        '{"prompt_tokens":526,"completion_tokens":190,"total_tokens":716,"cost":0.00017725,"is_byok":false,'
        '"prompt_tokens_details":{"cached_tokens":153,"cache_write_tokens":0,"audio_tokens":0,"video_tokens":0},'
        '"completion_tokens_details":{"reasoning_tokens":165}}',
        "https://openrouter.ai/x-ai/grok-4.1-fast",
        "input: 0.20, cached_input: 0.05, output: 0.50",
        ((373, "0.2"), (153, "0.05"), (190, "0.5")),
        178,
        stated=178,
    ),
    Bill(
        "Together, gpt-oss-120b, without a price for cached tokens",
        "made, in the shape of https://docs.together.ai/reference/chat-completions-1",
        '{"prompt_tokens":1000,"completion_tokens":200,"total_tokens":1200,"cached_tokens":512}',
        "https://www.together.ai/pricing",
        "input: 0.15, output: 0.60",
        ((1000, "0.15"), (200, "0.6")),
        270,
    ),
    Bill(
        "Moonshot, kimi-k2.5, in the choice",
        "made, in the shape of https://platform.moonshot.ai/docs/api/chat",
        '{"prompt_tokens":1226,"completion_tokens":131,"total_tokens":1357,"cached_tokens":1024}',
        "https://platform.moonshot.ai/docs/guide/kimi-k2-5-quickstart",
        "input: 0.60, cached_input: 0.10, output: 3.00",
        ((202, "0.6"), (1024, "0.1"), (131, "3")),
        617,
        place="choice",
    ),
    Bill(
        "Gemini's OpenAI dialect, gemini-2.5-flash: thinking is in the total alone",
        "recorded: the numbers of github.com/mozilla-ai/any-llm issue 1290, in the shape of ai.google.dev/gemini-api/docs/openai",
        '{"completion_tokens":198,"prompt_tokens":20,"total_tokens":623}',
        "https://ai.google.dev/gemini-api/docs/pricing",
        "input: 0.30, cached_input: 0.03, output: 2.50",
        ((20, "0.3"), (603, "2.5")),
        1514,
    ),
    Bill(
        "Anthropic's OpenAI dialect, claude-haiku-4.5",
        "made, in the shape of https://platform.claude.com/docs/en/api/openai-sdk, which has no details",
        '{"completion_tokens":43,"prompt_tokens":866,"total_tokens":909,"completion_tokens_details":null,'
        '"prompt_tokens_details":null}',
        "https://platform.claude.com/docs/en/about-claude/pricing",
        "input: 1, cached_input: 0.10, cache_write: 1.25, output: 5",
        ((866, "1"), (43, "5")),
        1081,
    ),
    Bill(
        "Anthropic's own names, claude-sonnet-4.5, as some gateways pass them on",
        "documented: https://platform.claude.com/docs/en/build-with-claude/prompt-caching",
        '{"cache_creation_input_tokens":188086,"cache_read_input_tokens":0,"input_tokens":21,"output_tokens":393}',
        "https://platform.claude.com/docs/en/about-claude/pricing",
        "input: 3, cached_input: 0.30, cache_write: 3.75, output: 15, "
        "tiers: [{above: 200000, input: 6, cached_input: 0.60, cache_write: 7.50, output: 22.50}]",
        ((21, "3"), (188_086, "3.75"), (393, "15")),
        711_281,
    ),
    Bill(
        "Alibaba Model Studio, qwen3-coder-plus, explicit cache",
        "made, in the shape of https://www.alibabacloud.com/help/en/model-studio/context-cache",
        '{"prompt_tokens":1622,"completion_tokens":104,"total_tokens":1726,"prompt_tokens_details":{"cached_tokens":0,'
        '"cache_creation_input_tokens":1605,"cache_creation":{"ephemeral_5m_input_tokens":1605},"cache_type":"ephemeral"}}',
        "https://www.alibabacloud.com/help/en/model-studio/models, creation at 125 %, hits at 10 %",
        "input: 1, cached_input: 0.10, cache_write: 1.25, output: 5, "
        "tiers: [{above: 32000, input: 1.80, cached_input: 0.18, cache_write: 2.25, output: 9}]",
        ((17, "1"), (1605, "1.25"), (104, "5")),
        2544,
    ),
    Bill(
        "Perplexity, sonar-pro, with a price of the request",
        "documented: https://docs.perplexity.ai/changelog/changelog (July 2025)",
        '{"prompt_tokens":8,"completion_tokens":439,"total_tokens":447,"search_context_size":"low",'
        '"cost":{"input_tokens_cost":2.4e-05,"output_tokens_cost":0.006585,"request_cost":0.006,"total_cost":0.012609}}',
        "https://docs.perplexity.ai/getting-started/pricing (low search context)",
        "input: 3, output: 15, request: 0.006",
        ((8, "3"), (439, "15")),
        12_609,
        request="0.006",
        stated=12_609,
    ),
    Bill(
        "Z.ai, glm-4.7",
        "recorded usage of glm-4.7-flash: "
        + _recorded("TestOpenAICompatibleCommon/zai-glm-4-7-flash/multi_tool_streaming.yaml"),
        '{"prompt_tokens":395,"completion_tokens":79,"total_tokens":474,"prompt_tokens_details":{"cached_tokens":251},'
        '"completion_tokens_details":{"reasoning_tokens":41}}',
        "https://docs.z.ai/guides/overview/pricing",
        "input: 0.60, cached_input: 0.11, output: 2.20",
        ((144, "0.6"), (251, "0.11"), (79, "2.2")),
        288,
    ),
    Bill(
        "DeepInfra, Llama-3.3-70B-Instruct-Turbo",
        "made, in the shape of https://deepinfra.com/docs/openai_api",
        '{"prompt_tokens":15,"completion_tokens":16,"total_tokens":31,"estimated_cost":6.62e-06}',
        "https://deepinfra.com/pricing",
        "input: 0.10, output: 0.32",
        ((15, "0.1"), (16, "0.32")),
        7,
        stated=7,
    ),
    Bill(
        "vLLM with --enable-prompt-tokens-details",
        "made, in the shape of https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        '{"prompt_tokens":137,"total_tokens":190,"completion_tokens":53,"prompt_tokens_details":{"cached_tokens":128}}',
        "the operator's own",
        "input: 0.10, cached_input: 0.01, output: 0.30",
        ((9, "0.1"), (128, "0.01"), (53, "0.3")),
        19,
    ),
    Bill(
        "llama.cpp",
        _recorded("TestOpenAICompatibleCommon/llama-cpp-gpt-oss/simple_streaming.yaml"),
        '{"completion_tokens":57,"prompt_tokens":84,"total_tokens":141}',
        "the operator's own",
        "input: 0.10, cached_input: 0.01, output: 0.30",
        ((84, "0.1"), (57, "0.3")),
        26,
    ),
)
"""At least one of each upstream whose dialect differs."""

assert all(json.loads(bill.usage) for bill in BILLS)
