"""Names of a body's fields: checked fields, and refused fields that an upstream may read in place of a checked one.

A field in another spelling (`Max_Tokens`), or under another server's name (`n_predict`), passes every check of `max_tokens`
unseen, and yet decides what an upstream generates. Such fields are refused, and so are those that order what an upstream bills
beside the tokens, or at another price for them (`UNPRICED`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gateway.base.errors import Refused

CEILINGS: Final = ("max_tokens", "max_completion_tokens")
CHECKED: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "temperature", "n", "tools", "service_tier", *CEILINGS}
)
CHECKED_OPTIONS: Final = frozenset({"include_usage"})
"""The checked fields of `stream_options`."""

COMMON: Final = CHECKED.union(
    ("top_p", "stop", "seed", "user", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    ("presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"),
    ("response_format", "reasoning_effort", "metadata", "store"),
)
"""Frequent fields of OpenAI's API: known not to be another spelling of a checked one, so that they cost nothing."""

PROTOTYPE: Final = "__proto__"
"""In JavaScript, copying this field with `Object.assign` gives the copy every field of its value (see secure-json-parse)."""

_USE_MAX_TOKENS: Final = "use 'max_tokens'"
_USE_N: Final = "use 'n'"
_USE_MODEL: Final = "name one model as 'model'"
_USE_ALL: Final = "send the whole conversation"
_USE_NONE: Final = "let the upstream choose"
_USE_TOP: Final = "write its fields at the top level"

REMEDIES: Final[Mapping[str, str]] = {
    # llama.cpp, tools/server/server-schema.cpp: `max_completion_tokens` and `max_tokens` are aliases of it, and come second.
    "n_predict": _USE_MAX_TOKENS,
    # TabbyAPI, common/sampling.py: an alias of `max_tokens`.
    "max_length": _USE_MAX_TOKENS,
    # NanoGPT, docs.nano-gpt.com, "Model Presets": replaces the output limit, as `max_tokens` does.
    "max_output_tokens": _USE_MAX_TOKENS,
    # text-generation-webui, modules/text_generation.py: the limit becomes the rest of the context, whatever `max_tokens` says.
    "auto_max_new_tokens": _USE_MAX_TOKENS,
    # Ollama, Hugging Face transformers, Anthropic's first API, Gemini, Bedrock: names of the limit in their own APIs, which
    # servers in front of them may take as they are.
    **dict.fromkeys(("num_predict", "max_new_tokens", "max_tokens_to_sample", "max_gen_len"), _USE_MAX_TOKENS),
    # llama.cpp, tools/server/server-schema.cpp: `n` is an alias of it, and comes second.
    "n_cmpl": _USE_N,
    # The same of the number of answers: transformers, Gemini, Cohere, AI21.
    **dict.fromkeys(("num_return_sequences", "candidate_count", "num_generations", "num_results"), _USE_N),
    # Ollama, Gemini, TGI, SGLang: objects with these names in them.
    **dict.fromkeys(("options", "generation_config", "parameters", "sampling_params"), _USE_TOP),
    # vLLM before V1, pull request 14356: so many answers are generated, and `n` of them are returned.
    "best_of": _USE_N,
    # OpenRouter, openrouter.ai/docs, "Model Fallbacks"; Vercel AI Gateway: models to try after `model`.
    "models": _USE_MODEL,
    # OpenRouter, npmjs.com/package/@openrouter/schemas: `fallback` lets it choose another model.
    "route": _USE_MODEL,
    # OpenRouter, openrouter.ai/docs, "Presets": stored settings, models among them.
    "preset": _USE_MODEL,
    # LiteLLM, docs.litellm.ai, "Client-Side Fallbacks"; AssemblyAI: models to try after `model`, with fields of their own.
    "fallbacks": _USE_MODEL,
    # LiteLLM, docs.litellm.ai, "Clientside LLM Credentials": a list of models, with addresses and credentials.
    "user_config": _USE_MODEL,
    # Vercel AI Gateway, vercel.com/docs/ai-gateway, "OpenAI Chat Completions Configuration": `gateway.models`.
    "providerOptions": _USE_MODEL,
    # LiteLLM merges it into the body that it sends on, over the body's own fields.
    "extra_body": _USE_TOP,
    # OpenAI's Responses API behind a bridge such as LiteLLM's: what is kept of earlier answers, also of another caller's.
    **dict.fromkeys(("previous_response_id", "conversation"), _USE_ALL),
    # LiteLLM, docs.litellm.ai, "Prompt Management": a stored prompt, and its model.
    "prompt_id": _USE_ALL,
    # SGLang, sglang/srt/entrypoints/openai/protocol.py: a conversation that it keeps; vLLM: what another engine has computed.
    **dict.fromkeys(("session_params", "kv_transfer_params"), _USE_ALL),
    # vLLM and SGLang: the id of the answer, which may be that of another caller's.
    **dict.fromkeys(("request_id", "rid"), _USE_NONE),
    # llama.cpp, tools/server/README.md: the slot whose prompt is kept.
    "id_slot": _USE_NONE,
    # SGLang, llama.cpp, LoRAX: an adapter, which is another model.
    **dict.fromkeys(("lora_path", "lora", "adapter_id"), _USE_MODEL),
}
"""Advice in place of a field that an upstream would read instead of a checked one, or before it."""

UNPRICED: Final = frozenset(
    (
        # OpenAI, Azure OpenAI, xAI, Perplexity: a search for each answer, also where the object is empty.
        "web_search_options",
        # OpenAI, OpenRouter, Gemini: sounds and pictures in the answer, whose tokens are dearer.
        *("modalities", "image_config"),
        # OpenAI: what its cache keeps for longer is dearer to write.
        *("prompt_cache_retention", "prompt_cache_options"),
        # OpenRouter: searches and the reading of files; which of its providers serve, also the dearest.
        *("plugins", "provider"),
        # xAI: searches, billed by the source; an answer that is fetched elsewhere, where nothing meters it.
        *("search_parameters", "deferred"),
        # Azure OpenAI: searched documents, which become part of the prompt; the reading of pictures.
        *("data_sources", "enhancements"),
        # Gemini, ai.google.dev/gemini-api/docs/openai: a stored prompt that is read before this one.
        *("google", "cached_content"),
        # Groq: models and tools of its compound systems.
        "compound_custom",
        # vLLM: how many tokens a picture or a film becomes; a template that may repeat the prompt.
        *("mm_processor_kwargs", "media_io_kwargs", "chat_template"),
        # Anthropic's API behind a translation: faster or local models, containers, tools of other servers.
        *("speed", "inference_geo", "container", "mcp_servers"),
        # Alibaba Cloud Model Studio, Baidu Qianfan: searches and a code interpreter.
        *("enable_search", "search_options", "enable_code_interpreter", "web_search"),
    )
)
"""Fields that change what an upstream bills: no setting of a model has a price for them."""
ORDERS_NOTHING: Final[tuple[object, ...]] = (None, False, [], ["text"], "standard", "in_memory", "in-memory")
"""Values with which none of these fields orders anything."""
MAY_ALLOW: Final = (*REMEDIES, *sorted(UNPRICED), "tools", "service_tier", "cache_control", "context_management")
"""Fields that an operator may allow."""

_LETTERS_I: Final = str.maketrans("\u0130\u0131", "ii")


def fold(name: str) -> str:
    """Return a form that is the same for all names that a JSON decoder may take for one another.

    Go, Jackson (if told to), Json.NET and others ignore case; fastjson and Go's json/v2 also `_` and `-`; Java takes a
    dotless i for an i; decoders in C may end a name at its first NUL. NFKC covers full-width letters and ligatures. Spaces, and
    what is not printed, are left out: a lenient reader strips them, and no field has them. Readers of forms take `n[]` and `n[0]`
    for `n`.
    """
    if "\0" in name:
        name = name.partition("\0")[0]
    name = name.replace("_", "").replace("-", "")
    if not name.isalnum():
        name = "".join(filter(str.isprintable, name)).replace(" ", "")
        name = name.partition("[")[0] or name
    return name if len(name) > _LONGEST else fold_case(name)


def fold_case(name: str) -> str:
    """Return a form that is the same for all names that differ only in case, or in what Unicode calls compatible."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name.translate(_LETTERS_I)).casefold())


_LONGEST: Final = max(len(name.replace("_", "")) for name in (*CHECKED, *CHECKED_OPTIONS, *REMEDIES, *UNPRICED))
"""A longer name cannot become one of these: no character is dropped after the separators."""
_FOLDED_OPTIONS: Final = {fold(name): name for name in CHECKED_OPTIONS}


class FieldNames:
    """The names that matter in the bodies of one operation.

    `common`: frequent fields, those that are `checked` among them. `remedies`: advice in place of a field that is refused.
    `unpriced`: fields that change what an upstream bills.
    """

    __slots__ = ("common", "folded", "remedies", "unpriced")

    def __init__(
        self, checked: Iterable[str], common: Iterable[str], remedies: Mapping[str, str], unpriced: Iterable[str]
    ) -> None:
        self.common = frozenset(common).union(checked)
        self.remedies = remedies
        self.unpriced = frozenset(unpriced)
        self.folded = {fold(name): name for name in (*checked, *remedies, *self.unpriced)}


CHAT: Final = FieldNames(CHECKED, COMMON, REMEDIES, UNPRICED)


def check_names(top: Mapping[str, msgspec.Raw], allowed: frozenset[str], names: FieldNames = CHAT) -> None:
    """Raise `Refused` for a top-level field with a remedy or without a price, unless it is `allowed`, and for another spelling."""
    for name in top:
        if name in names.common or name in allowed:
            continue
        known = names.folded.get(fold(name), "")
        if known in names.remedies:
            text = f"upstreams may read it in place of a field that is checked: {names.remedies[known]} instead"
            raise _refusal(name, "", text)
        if known not in names.unpriced:
            _check_spelling(name, known, "")
        elif msgspec.json.decode(top[name]) not in ORDERS_NOTHING:
            raise unpriced(ascii(name[:64])[1:-1], "leave it out")


def check_option_names(names: Iterable[str]) -> None:
    """Raise `Refused` for a field of `stream_options` that an upstream may read in place of a checked one."""
    for name in names:
        if name not in CHECKED_OPTIONS:
            _check_spelling(name, _FOLDED_OPTIONS.get(fold(name), ""), "stream_options.")


def _check_spelling(name: str, known: str, prefix: str) -> None:
    if known:
        raise _refusal(name, prefix, f"some upstreams take it for '{prefix}{known}': use that name")
    if name == PROTOTYPE:
        raise _refusal(name, prefix, "it changes other fields in upstreams that run JavaScript: leave it out")


def unpriced(name: str, remedy: str) -> Refused:
    """Return the error for a field that changes what the upstream bills, by an amount that this gateway has no price for."""
    text = f"'{name}' is not accepted, since it changes what the upstream bills, and this model has no price for that"
    return Refused(400, "unpriced_option", f"{text}: {remedy}.", param=name)


def _refusal(name: str, prefix: str, reason: str) -> Refused:
    shown = prefix + ascii(name[:64])[1:-1]
    return Refused(400, "invalid_request", f"'{shown}' is not accepted, since {reason}.", param=shown)
