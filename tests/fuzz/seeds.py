"""What the fuzzers begin with and cut up: for each parser of ours, inputs that reach its corners, findings included."""

from __future__ import annotations

BODY = [
    b'{"model":"words","messages":[{"role":"user","content":"hi"}],"stream":true}',
    b'{"model":"a","model":"b","messages":[{"role":"user"}],"stream":false,"stream":true,"mod\\u0065l":"c"}',
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stream":true,"max_tokens":5,"n":2}',
    (
        b'{"stream_options":{"include_usage":true,"include_usage":null,"x":[1,2.5e-3,-0]},"stream'
        b'":true,"model":"m","messages":[{"role":""}]}'
    ),
    '{"model":"\u00e9\U0001f600","messages":[{"role":"\\ud83d\\ude00"}],"stream":true,"temperature":1e308}'.encode(),
    b'\xef\xbb\xbf{"a":' + b"[" * 99 + b"]" * 99 + b"}",
]
BODY_PIECES = [
    *(
        *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\x00", b"\xff", b"\xc3"),
        *(b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    ),
    *(
        *(b"null", b"true", b"false", b"NaN", b"Infinity", b"-", b"0", b"1e999"),
        b"1" * 30,
        *(b"0.1", b"\\u0000", b"\\ud800", b"\\u0065"),
    ),
    *(
        *(b'"stream":true', b'"stream":1', b'"model":"x"', b'"messages":[]', b'"max_tokens":1', b'"n":-1'),
        b'"stream_options":{}',
    ),
    *(b"[" * 120, b"]" * 120, b'{"a":' * 120, b"}" * 120, b"//", b"/**/", b"'"),
]

SSE = [
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\ndata: [DONE]\n\n',
    (
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata: {"choices":[],"usage'
        b'":{"prompt_tokens":1,"completion_tokens":2}}\r\n\r\n'
    ),
    b': comment\r\rid: 1\revent: error\rdata: {"error":{"message":"x"}}\r\r',
    b'data: {"x_groq":{"usage":{"prompt_tokens":1,"completion_tokens":2}},"choices":[{"finish_reason":"length"}]}\n\n',
    b'\xef\xbb\xbfdata: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata:\ndata: x\n\n\n\n',
]
SSE_PIECES = [
    *(
        *(b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r", b"data:", b"data: ", b"event: error\n"),
        *(b": ping", b"id", b"[DONE]"),
    ),
    *(
        *(b'{"error":1}', b'"usage"', b'"finish_reason":""', b'{"choices":[]}', b"\xef\xbb\xbf", b"\x00", b"\xff"),
        *(b"\x85", b"\x0b", b"\x1c"),
    ),
    *(
        b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
        b"data: {}\n\n",
        b"data: {}\r\n\r\n" * 40,
        b'data: {"choices":[{"index":0}]}\n\n' * 3,
        b'data: {"choices":[{"index":0}]}\r\n\r\n' * 3,
        b": ping\n\n" * 9,
        b":\r\n\r\n" * 9,
        b"\n" * 99,
        b"\r" * 99,
        b"x" * 70,
        b"[" * 2000,
    ),
]

DOCUMENT = [
    (
        b'listen: 127.0.0.1:8080\nchannels:\n  a: {base_url: https://x/v1, api_key: "${KEY}'
        b'"}\nmodels:\n  m: {free: true, channels: [a]}\n'
    ),
    b'listen: ${KEY}127.0.0.1:8080\nchannels:\n  a: {base_url: https://x/v1, api_key: "${KEY}"}\n',
    b'groups:\n  default:\n    models: ["*"]\n    ratio: 1.50\nplugins:\n  - use: auth\n    with: {wrong_tokens_per_minute: 6}\n',
    b"a: &x [1, 2]\nb: *x\nc: !!python/object/apply:os.system [id]\n",
    b"? [complex, key]\n: value\n<<: {a: 1}\n--- \n... \n%YAML 1.1\n",
    b"port: {max_head: 0x10, drain: 1_000, idle_timeout: 1:30, allow_non_streaming: yes}\ndata: |\n  folded\n  text\n",
]
DOCUMENT_PIECES = [
    *(
        *(b"\n", b" ", b"  ", b"\t", b": ", b"- ", b"{", b"}", b"[", b"]", b",", b"#", b"|", b">", b"&a", b"*a"),
        *(b"!!str ", b"'", b'"', b"? "),
    ),
    *(
        *(b"${KEY}", b"${", b"${}", b"${NO}", b"$", b"---\n", b"...\n", b"%TAG ! x\n", b"\x00", b"\xff"),
        *(b"\xe2\x80\xa8", b"\x85", b"\xef\xbb\xbf", b"\\x41"),
    ),
    *(
        *(b"~", b"null", b"yes", b"1e3", b".inf", b".nan", b"0o7", b"1_0", b"2020-01-01"),
        b"[" * 40,
        b"a: " * 3,
        *(b"=", b"<<: ", b"\r"),
    ),
    *(
        *(b"listen: ", b"channels:\n", b"models:\n", b"plugins:\n", b"groups:\n", b"demo: ", b"port: "),
        *(b"  a: {base_url: http://h}\n", b"api_key: "),
    ),
]

TOKEN = [
    b"Bearer sk-tester-abcdefgh-0123456789abcdefghijklmnopqr",
    *(b"Bearer ", b"bearer sk-", b"Basic eDp5", b"", b"sk-a-b-c"),
]
TOKEN_PIECES = [
    *(b" ", b"\t", b"-", b"sk-", b"Bearer", b"\x00", b"\xc3\xa9", b"0", b"Z", b"*", b"{", b"\r\n"),
    b"x" * 600,
    "\u0130".encode(),
]
