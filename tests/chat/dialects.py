"""Errors as upstreams send them: from their documentation, their code and reports of their users."""

from __future__ import annotations

from typing import Final

MESSAGE: Final = "the model fell over"

DIALECTS: Final[dict[str, tuple[str, bool]]] = {
    # Whose: the data of the event or the body, and whether client libraries raise on the event as it is.
    "OpenAI": (
        '{"error":{"message":"the model fell over","type":"server_error","param":null,"code":"server_error"}}',
        True,
    ),
    "Azure OpenAI": ('{"error":{"code":"429","message":"the model fell over"}}', True),
    "Azure API Management": ('{"statusCode":429,"message":"the model fell over"}', False),
    "Anthropic": ('{"type":"error","error":{"type":"overloaded_error","message":"the model fell over"}}', True),
    "Mistral": (
        '{"object":"error","message":"the model fell over","type":"service_error","param":null,"code":"1300"}',
        False,
    ),
    "Groq": (
        '{"error":{"message":"the model fell over","type":"invalid_request_error","code":"tool_use_failed",'
        '"failed_generation":"{}","status_code":400}}',
        True,
    ),
    "Together": ('{"error":{"message":"the model fell over","type":"server_error","param":null,"code":null}}', True),
    "Fireworks": ('{"error":{"object":"error","type":"internal_server_error","message":"the model fell over"}}', True),
    "DeepSeek": ('{"error":{"message":"the model fell over","type":"unknown_error","param":null,"code":"x"}}', True),
    "OpenRouter": (
        '{"id":"gen-1","error":{"code":502,"message":"the model fell over"},"choices":[{"index":0,'
        '"delta":{"content":""},"finish_reason":"error"}]}',
        False,
    ),
    "Perplexity": ('{"error":{"message":"the model fell over","type":"internal_error","code":500}}', False),
    "Cohere": ('{"message":"the model fell over"}', False),
    "xAI": ('{"code":"Some resource has been exhausted","error":"the model fell over"}', False),
    "Google": ('[{"error":{"code":503,"message":"the model fell over","status":"UNAVAILABLE"}}]', False),
    "Google, one": ('{"error":{"code":503,"message":"the model fell over","status":"UNAVAILABLE"}}', False),
    "vLLM": (
        '{"object":"error","message":"the model fell over","type":"BadRequestError","param":null,"code":400}',
        False,
    ),
    "vLLM, recent": (
        '{"error":{"message":"the model fell over","type":"InternalServerError","param":null,"code":500}}',
        False,
    ),
    "SGLang": (
        '{"error":{"object":"error","message":"the model fell over","type":"BadRequest","param":null,"code":400}}',
        False,
    ),
    "TGI": ('{"error":"the model fell over","error_type":"overloaded"}', False),
    "TGI, recent": ('{"error":{"message":"the model fell over","http_status_code":422}}', True),
    "llama.cpp": ('{"error":{"code":500,"message":"the model fell over","type":"server_error"}}', False),
    "Ollama": ('{"error":{"message":"the model fell over","type":"api_error","param":null,"code":null}}', True),
    "Ollama, native": ('{"error":"the model fell over"}', False),
    "LM Studio": ('{"error":{"message":"the model fell over"}}', True),
    "LiteLLM": ('{"error":{"message":"the model fell over","type":"None","param":"None","code":"500"}}', True),
    "mlx-lm": ('{"error":"the model fell over"}', False),
    "FastAPI": ('{"detail":"the model fell over"}', False),
    "FastAPI, validation": ('{"detail":[{"loc":["body"],"msg":"the model fell over","type":"value_error"}]}', False),
    "Cloudflare": (
        '{"success":false,"errors":[{"code":3040,"message":"the model fell over"}],"messages":[],"result":null}',
        False,
    ),
    "Bedrock": ('{"message":"the model fell over"}', False),
    "DashScope": ('{"code":"InvalidParameter","message":"the model fell over","request_id":"r"}', False),
    "Qianfan": ('{"error_code":336003,"error_msg":"the model fell over"}', False),
    "no choices": ('{"id":"c","choices":null,"message":"the model fell over"}', False),
}

NOT_ERRORS: Final = {
    "an empty string": '{"id":"c","error":"","choices":[{"index":0,"delta":{"content":"a"}}]}',
    "an empty object": '{"id":"c","error":{},"choices":[{"index":0,"delta":{"content":"a"}}]}',
    "zero": '{"id":"c","error":0,"choices":[{"index":0,"delta":{"content":"a"}}]}',
    "null": '{"id":"c","error":null,"choices":[{"index":0,"delta":{"content":"a"}}]}',
    "false": '{"id":"c","error":false,"choices":[{"index":0,"delta":{"content":"a"}}]}',
    "other fields beside content": (
        '{"code":0,"message":"Success","detail":"x","errors":[1],"choices":[{"index":0,"delta":{"content":"a"}}]}'
    ),
    "an object named error beside content": '{"object":"error","choices":[{"index":0,"delta":{"content":"a"}}]}',
    "no choices yet": '{"id":"c","choices":[],"prompt_filter_results":[]}',
    "neither choices nor a message": '{"id":"c","object":"chat.completion.chunk","message":""}',
    "an empty error without choices": '{"id":"c","error":{},"errors":[],"detail":null}',
    "an event of another API": '{"type":"message_start","message":{"id":"m","role":"assistant","content":[]}}',
    "nothing": "{}",
    "an empty list": "[]",
}
