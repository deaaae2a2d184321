"""What a channel may add to its requests: a mistake is one line with its place, and no secret is shown anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.chain import loading
from gateway.config.channel import BEARER, MAX_BYTES, Channel, CredentialPlace, Fixed, auth_of, credential_warnings
from gateway.config.schema import Loaded, load
from tests.whole.conftest import CHAIN

URL = "https://h/v1"
SECRET = "s3cret/of+the=house"
HEAD = "channels:\n  a:\n    base_url: https://h/v1\n"
FRAMING = "it says how the request is framed or to whom it goes, which the gateway writes itself; leave it out"
OWN = "the gateway writes it for each request; leave it out"
WRITES = "`auth` sends the credential in it; give that as `api_key`, or say by `auth:` where else it goes"
VALUE = "the value of a header is visible ASCII on one line, without spaces around it"
CEILING = "the gateway sends the limit that a request is priced by; lower `max_output_tokens` of the model instead"
DIGITS = "in plain digits (at most 15), or in quotes if it is a name"
IN_PLACE = "upstreams may read it in place of a field by which a request is checked and priced"

WRONG = {
    "    headers:\n      X-A: b\n      Host: other": f"6: channels.a.headers.Host: {FRAMING}",
    "    headers: {content_length: '3'}": f"4: channels.a.headers.content_length: {FRAMING}",
    "    headers: {Transfer-Encoding: chunked}": f"4: channels.a.headers.Transfer-Encoding: {FRAMING}",
    "    headers: {Connection: close}": f"4: channels.a.headers.Connection: {FRAMING}",
    "    headers: {TE: trailers}": f"4: channels.a.headers.TE: {FRAMING}",
    "    headers: {accept: text/html}": f"4: channels.a.headers.accept: {OWN}",
    "    headers: {traceparent: '00'}": f"4: channels.a.headers.traceparent: {OWN}",
    "    headers: {Proxy-Authorization: x}": "4: channels.a.headers.Proxy-Authorization: "
    "write the user and the password into `proxy`",
    "    headers: {authorization: x}": f"4: channels.a.headers.authorization: {WRITES}",
    "    auth: header x-key\n    api_key: k\n    headers: {X_Key: x}": f"6: channels.a.headers.X_Key: {WRITES}",
    '    headers: {X-A: "a\\r\\nHost: b"}': f"4: channels.a.headers.X-A: {VALUE}",
    '    headers: {X-A: "a\\nb"}': f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {X-A: ' a'}": f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {X-A: ''}": f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {X-A: \u00e9}": f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {'X A': b}": "4: channels.a.headers.X A: the name of a header is of letters, digits and -, without spaces",
    "    headers: {'X-A: b\\r\\nC': b}": "4: channels.a.headers.X-A: b\\r\\nC: "
    "the name of a header is of letters, digits and -, without spaces",
    "    headers: {X-A: b, x_a: c}": "4: channels.a.headers.x_a: upstreams take it for `X-A`, which is given, too; keep one",
    "    headers: {X-A: 1}": "4: channels.a.headers: must be text, not a whole number; put it in quotes",
    "    headers: [X-A]": "4: channels.a.headers: must be a mapping, not a list",
    f"    headers: {{X-A: {'x' * MAX_BYTES}}}": f"4: channels.a.headers: is longer than {MAX_BYTES} bytes",
    "    auth: basic": "4: channels.a.auth: must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`",
    "    auth: header": "4: channels.a.auth: must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`",
    "    auth: header Host": f"4: channels.a.auth: the header Host cannot carry a credential: {FRAMING}",
    "    auth: query a b": "4: channels.a.auth: must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`",
    "    query: {'a b': c}": "4: channels.a.query.a b: the name of a parameter is visible ASCII",
    '    query: {a: "b\\nc"}': "4: channels.a.query.a: the value of a parameter has no control characters",
    "    auth: query key\n    query: {key: c}": "5: channels.a.query.key: "
    "`auth: query key` writes it; give the credential as `api_key`",
    "    set: {model: x}": "4: channels.a.set.model: "
    "name the upstream's model in the model's `channels`, as in {use: NAME, model: OTHER}",
    "    set: {Model: x}": "4: channels.a.set.Model: "
    "name the upstream's model in the model's `channels`, as in {use: NAME, model: OTHER}",
    "    set: {messages: []}": "4: channels.a.set.messages: it is the caller's; a plugin can change it",
    "    set: {stream: false}": "4: channels.a.set.stream: the gateway decides it; see `upstream_stream`",
    "    set: {stream_options: {}}": "4: channels.a.set.stream_options: say `ask_usage: false` if the upstream refuses it",
    "    set: {n: 3}": "4: channels.a.set.n: it is the caller's, and a request is priced by it",
    "    set: {max_tokens: 3}": f"4: channels.a.set.max_tokens: {CEILING}",
    "    set: {maxCompletionTokens: 3}": f"4: channels.a.set.maxCompletionTokens: {CEILING}",
    "    set: {'max_tokens ': 3}": f"4: channels.a.set.max_tokens : {CEILING}",
    "    set: {max tokens: 3}": f"4: channels.a.set.max tokens: {CEILING}",
    "    set: {top_p: .nan}": f"4: channels.a.set.top_p: write `.nan` {DIGITS}",
    "    set: {a: {b: [-.inf]}}": f"4: channels.a.set.a.b[0]: write `-.inf` {DIGITS}",
    "    set: {a: !!binary eA==}": "4: tags such as `!!binary` are not allowed; write plain values",
    "    set: {a: !!set {b}}": "4: tags such as `!!set` are not allowed; write plain values",
    "    drop: ['max_tokens ']": "4: channels.a.drop[0]: the gateway checks or writes it; leave it out",
    "    set: {best_of: 3}": f"4: channels.a.set.best_of: {IN_PLACE}",
    "    set: {extra_body: {n: 3}}": f"4: channels.a.set.extra_body: {IN_PLACE}",
    "    set: {__proto__: {n: 3}}": "4: channels.a.set.__proto__: it changes other fields in upstreams that run JavaScript",
    "    set: {temperature: hot}": "4: channels.a.set.temperature: `temperature` must be a number",
    "    set: {'': 3}": "4: channels.a.set.: a field has a name",
    "    set: {a: 1, A: 2}": "4: channels.a.set: two of these fields differ only in the case of their letters; keep one",
    "    drop: [seed, max_tokens]": f"4: channels.a.drop[1]: {CEILING}",
    "    drop: [N]": "4: channels.a.drop[0]: the gateway checks or writes it; leave it out",
    "    drop: [user]\n    set: {User: x}": "4: channels.a.drop[0]: `User` is in `set`, too; keep one",
    "    dialect: klingon": "4: channels.a.dialect: no plugin provides the dialect `klingon`; known: none yet; "
    "add the plugin that has it to `plugins`, as in `- use: anthropic`",
}


def read(folder: Path, text: str, more: str = "") -> Loaded:
    file = folder / "gateway.yaml"
    file.write_text(f"{HEAD}{text}\n{CHAIN}{more}")
    return load(file, {"SECRET": SECRET, "SHORT": "shorter"})


@pytest.mark.parametrize(("text", "error"), WRONG.items())
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        loading.build(read(tmp_path, text))
    assert str(refused.value) == f"{tmp_path}/gateway.yaml:{error}"


@pytest.mark.parametrize(
    "text",
    [
        "    headers: {User-Agent: ours/1.0, X-Title: My App (beta), cf-aig-authorization: Bearer x}",
        "    auth: header Authorization\n    headers: {Authorization: Basic dXNlcjpwYXNz}",
        "    query: {api-version: '2024-10-21', \u0024filter: \u00e4 b}",
        "    set: {temperature: 0.5, provider: {sort: price, only: [a]}, user: null, a_name_longer_than_any_other: true}",
        "    drop: [temperature, seed, store]",
    ],
)
def test_what_is_sensible_is_accepted(tmp_path: Path, text: str) -> None:
    loading.build(read(tmp_path, text))


def test_a_header_of_the_credential_of_a_dialect_is_refused(tmp_path: Path) -> None:
    text = "    dialect: anthropic\n    api_key: k\n    headers: {X-Api-Key: other}"
    with pytest.raises(Misconfigured, match=f"gateway.yaml:6: channels.a.headers.X-Api-Key: {WRITES}"):
        loading.build(read(tmp_path, text, "  - use: anthropic\n"))
    loading.build(read(tmp_path, f"    auth: bearer\n{text}", "  - use: anthropic\n"))
    twice = "  - use: anthropic\n  - {use: anthropic, name: again}\n"
    with pytest.raises(
        Misconfigured, match="'again' provides the dialect `anthropic`, as a plugin above does: keep one"
    ):
        loading.build(read(tmp_path, text.replace("X-Api-Key", "X-Other"), twice))


def test_channels_with_other_values_are_not_equal() -> None:
    one = Channel(URL, set_={"a": True}, headers={"X-A": "b"})
    assert one == Channel(URL, set_={"a": True}, headers={"X-A": "b"})
    assert hash(one) == hash(Channel(URL, set_={"a": True}, headers={"X-A": "b"}))
    assert one != Channel(URL, set_={"a": 1}, headers={"X-A": "b"})
    assert one != Channel(URL, set_={"a": True}, headers={"X-A": "c"})
    assert Channel(URL, headers={}) == Channel(URL)
    with pytest.raises(ValueError, match="a value is not JSON: TypeError"):
        Fixed({"a": object()})


def test_where_a_credential_goes() -> None:
    assert Channel(URL).auth_way() is BEARER
    assert Channel(URL, auth="query key").auth_way() == CredentialPlace("query", "key")
    assert Channel(URL).auth_way(auth_of("header x-api-key")) == CredentialPlace("header", "x-api-key")


def test_what_comes_from_a_variable_and_what_is_called_a_secret_is_removed_from_answers(tmp_path: Path) -> None:
    text = """    api_key: the-key-of-the-channel
    headers: {X-Route: "Bearer ${SECRET}", X-Title: A title of some length, X-Auth-Token: written-in-the-file}
    query: {api-version: 2024-12-01-preview, sig: "${SHORT}", signature: signature+of=it}
    set: {project: {key: "${SECRET}-of-the-body"}}"""
    loaded = read(tmp_path, text)
    channel = loaded.config.channels["a"]
    assert set(channel.secrets) == {
        *("the-key-of-the-channel", SECRET, "shorter", "written-in-the-file", "signature+of=it"),
    }
    assert {SECRET, "s3cret%2Fof%2Bthe%3Dhouse", "s3cret/of%2Bthe%3Dhouse", "s3cret%2fof%2bthe%3dhouse"} <= set(
        channel.scrubbed
    )
    assert r"s3cret\/of+the=house" in channel.scrubbed, "as some encoders write a slash in JSON"
    assert not {"A title of some length", "2024-12-01-preview", "shorter"}.intersection(channel.scrubbed)
    assert list(channel.scrubbed) == sorted(channel.scrubbed, key=len, reverse=True)
    assert len(credential_warnings(loaded.config.channels)) == 1
    for shown in (repr(channel), repr(loaded.config), channel.request_in_words, repr(channel.__rich_repr__())):
        assert not [secret for secret in channel.secrets if secret in shown]
    assert channel.request_in_words == (
        "headers X-Route, X-Title, X-Auth-Token; query api-version, sig, signature; set project"
    )
