"""Usage: what an upstream reports, and what is estimated and charged."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from gateway.chat.events import EventStream
from gateway.chat.tokens import LARGE, MAX_SAMPLES, MAX_UNMEASURED, OutputCounter, tokens_of
from gateway.chat.usage import Counts, ReportedUsage, Usage
from tests.chat.test_events import COUNTED, DONE, USAGE_ONLY, chunk, event, feed_cut, read, text

# What a usage object reports, and what is charged by reports and estimates.
PROMPT, COMPLETION = 20, 6
"""The estimates."""


def usage(*reports: tuple[Counts, bool], completion: int = COMPLETION) -> Usage:
    reported = ReportedUsage()
    for counts, final in reports:
        reported.add(counts, final=final)
    charged = reported.usage(lambda: PROMPT, lambda: completion)
    assert charged.answers == 1
    return msgspec.structs.replace(charged, answers=0)


@pytest.mark.parametrize(
    ("reports", "charged"),
    [
        ([], Usage(20, 6, "estimated")),
        ([(Counts(7, 11), True)], Usage(7, 11, "upstream")),
        ([(Counts(7, 11), False)], Usage(20, 11, "estimated")),
        ([(Counts(90, 1), False)], Usage(90, 6, "estimated")),
        ([(Counts(7, 1), True), (Counts(7, 11), True)], Usage(7, 11, "upstream")),
        ([(Counts(7, 99), False), (Counts(7, 11), True)], Usage(7, 11, "upstream")),
        ([(Counts(7, 0), True)], Usage(7, 6, "estimated")),
        ([(Counts(0, 11), True)], Usage(20, 11, "estimated")),
        ([(Counts(7, 0), False), (Counts(0, 11), True)], Usage(20, 11, "estimated")),
        ([(Counts(total=90), True)], Usage(20, 70, "estimated")),
        ([(Counts(total=18), True)], Usage(12, 6, "estimated")),
        ([(Counts(total=3), True)], Usage(0, 3, "estimated")),
        ([(Counts(total=90), False)], Usage(20, 6, "estimated")),
        ([(Counts(7, 0), False), (Counts(total=90), True)], Usage(20, 70, "estimated")),
    ],
)
def test_what_is_final_counts_and_else_the_larger_of_reported_and_estimated(
    reports: list[tuple[Counts, bool]], charged: Usage
) -> None:
    assert usage(*reports) == charged


def test_an_answer_without_text_may_cost_its_input_alone() -> None:
    assert usage((Counts(7, 0), True), completion=0) == Usage(7, 0, "upstream")


PLACES: dict[str, dict[str, Any]] = {
    "with empty choices": {"choices": [], "usage": COUNTED},
    "without choices": {"usage": COUNTED},
    "with null as choices": {"choices": None, "usage": COUNTED},
    "beside the finish": chunk(finish="stop", usage=COUNTED),
    "in x_groq": chunk(finish="stop", x_groq={"id": "r", "usage": {**COUNTED, "queue_time": 0.1}}),
    "in the choice": {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": COUNTED}]},
    "in the choice and null beside it": {"choices": [{"index": 0, "delta": {}, "usage": COUNTED}], "usage": None},
    "as input and output": {"choices": [], "usage": {"input_tokens": 7, "output_tokens": 11}},
    "reasoning only in the total": {"choices": [], "usage": {**COUNTED, "completion_tokens": 2}},
    "without the output": {"choices": [], "usage": {"prompt_tokens": 7, "total_tokens": 18}},
    "beside text": text("a", usage=COUNTED),
}


@pytest.mark.parametrize("body", PLACES.values(), ids=PLACES)
def test_usage_after_the_finish_is_final_wherever_it_is(body: dict[str, Any]) -> None:
    spaced = f"data:{json.dumps(body, separators=(' , ', ' : '))}\n\n".encode()
    lines = "".join(f"data: {line}\n" for line in json.dumps(body, indent=2).splitlines()).encode() + b"\n"
    for framed in (event(body), spaced, lines):
        stream = read(event(text("a")), event(chunk(finish="stop")), framed)
        reported = stream.usage
        assert (reported.prompt, reported.completion, reported.total) == (7, 11, 0)
        assert reported.prompt_final and reported.completion_final
        assert stream.concluded


@pytest.mark.parametrize(
    ("events", "final"),
    [
        ([text("a"), chunk(finish="stop", usage=COUNTED)], True),
        ([text("a"), chunk(finish="stop"), {"choices": [], "usage": COUNTED}], True),
        ([text("a"), chunk(finish="stop"), "[DONE]", {"choices": [], "usage": COUNTED}], True),
        ([text("a"), {"choices": [], "usage": COUNTED}, "[DONE]"], True),
        ([text("a", usage=COUNTED), chunk(finish="stop")], True),
        ([text("a"), {"choices": [], "usage": COUNTED}], False),
        ([text("a", usage=COUNTED), text("b"), chunk(finish="stop")], False),
        ([text("a", usage=COUNTED), text("b"), "[DONE]"], False),
        ([text("a", usage=COUNTED), chunk({"content": "b"}, finish="stop")], False),
    ],
)
def test_usage_is_final_where_no_text_follows_it_and_the_answer_is_finished(events: list[Any], final: bool) -> None:
    assert read(*map(event, events)).usage.final is final


def test_the_finish_of_one_of_two_choices_makes_nothing_final() -> None:
    def finish(index: int) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}], "usage": COUNTED}

    stream = read(event(text("a")), choices=2)
    stream.feed(event(finish(0)) + event(finish(0)))
    assert stream.finished and not (stream.all_finished or stream.usage.final or stream.concluded)
    stream.feed(event(finish(1)))
    assert stream.all_finished and stream.usage.final and stream.concluded


def test_done_is_final_whatever_the_choices() -> None:
    stream = read(event(chunk(finish="stop")), event({"choices": [], "usage": COUNTED}), DONE, choices=2)
    assert stream.usage.final


# The estimate of output tokens: how far off it is, for streams of many shapes, and that it does not depend on reads.
WORDS = [
    *("", "the", "a", "of", "to", "and", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", ".", ","),
    "international",
]
ROLE = event(chunk({"role": "assistant", "content": ""}))


def logprobs(random_: random.Random, token: str, top: int) -> dict[str, Any]:
    def entry(word: str) -> dict[str, Any]:
        return {"token": word, "logprob": -random_.random() * 20, "bytes": list(word.encode())}

    others = [entry(" " + random_.choice(WORDS)) for _ in range(top)]
    return {"content": [{**entry(token), "top_logprobs": others}]}


def token_stream(events: int, *, top: int = 0, tokens_each: int = 1, seed: int = 1) -> list[bytes]:
    """Return a role chunk and `events` events of `tokens_each` words, with log probabilities as llama.cpp sends them."""
    random_ = random.Random(seed)
    stream = [ROLE]
    for _ in range(events):
        word = "".join(" " + random_.choice(WORDS) for _ in range(tokens_each))
        whole = text(word)
        if top:
            whole["choices"][0]["logprobs"] = logprobs(random_, word, top)
        stream.append(event(whole))
    return stream


def counted(*events: bytes) -> int:
    return read(*events).output.tokens()


def test_no_output_is_estimated_as_no_tokens() -> None:
    assert counted(b": waiting\n\n", USAGE_ONLY, DONE) == 0
    assert counted(ROLE, event(chunk(finish="stop")), DONE) == 0
    assert counted(event({"error": {"message": "no"}})) == 0
    assert feed_cut(USAGE_ONLY, drop_usage=True)[0].output.tokens() == 0


def test_a_token_in_each_event_is_estimated_as_one_each() -> None:
    words = [" the", " quick", " fox", " é", ".", " jumps"] * 40
    assert counted(*(event(text(word)) for word in words), DONE) == 240


@pytest.mark.parametrize("top", [0, 5, 20])
@pytest.mark.parametrize("events", [1, 10, 50, 500, 1000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_log_probabilities_are_not_text(top: int, events: int, seed: int) -> None:
    stream = token_stream(events, top=top, seed=seed)
    estimate = counted(*stream)
    text_bytes = sum(len(json.loads(each[6:])["choices"][0]["delta"]["content"]) for each in stream)
    assert events <= estimate <= (1.02 * events if top else max(events, 1.02 * text_bytes / 4) + 1)


@pytest.mark.parametrize("tokens_each", [2, 4, 12])
@pytest.mark.parametrize("events", [10, 500])
def test_several_tokens_in_each_event_are_counted_by_their_text(events: int, tokens_each: int) -> None:
    stream = token_stream(events, tokens_each=tokens_each)
    written = sum(len(json.loads(each[6:])["choices"][0]["delta"]["content"]) for each in stream)
    assert counted(*stream) == pytest.approx(written / 4, rel=0.02)


@pytest.mark.parametrize("where", ["text", "reasoning_details"])
def test_text_that_an_event_repeats_counts_once(where: str) -> None:
    sentence = "All of these forty bytes are in a chunk."
    whole = text(sentence)
    repeated = {"text": sentence} if where == "text" else {"reasoning": [{"type": "reasoning.text", "text": sentence}]}
    if where == "text":
        whole["choices"][0] |= repeated
    else:
        whole["choices"][0]["delta"] |= repeated
    assert counted(*[event(whole)] * 50) == 50 * len(sentence) // 4


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x" * 40},
        {"reasoning_content": "x" * 40},
        {"refusal": "x" * 40},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "x" * 40}]}]},
        {"tool_calls": [{"index": 0, "id": "call_12345", "type": "function", "function": {"arguments": "x" * 40}}]},
        {"tool_calls": [{"function": {"name": "x" * 20, "arguments": "y" * 20}}]},
        {"content": "x" * 40, "annotations": [{"url_citation": {"url": "https://a", "content": "z" * 4000}}]},
        {"content": "x" * 40, "reasoning_details": [{"type": "reasoning.encrypted", "data": "z" * 4000}]},
    ],
)
def test_the_text_of_a_delta_is_counted_and_its_metadata_is_not(delta: dict[str, Any]) -> None:
    assert counted(*[event(chunk(delta))] * 30) == 300


@pytest.mark.parametrize(("character", "each"), [("界", 0.75), ("한", 0.75), ("ж", 0.5), ("a", 0.25), ("🌟", 1.0)])
@pytest.mark.parametrize("escaped", [False, True])
def test_a_character_counts_a_quarter_of_its_bytes(character: str, each: float, escaped: bool) -> None:
    """About one token a character is usual for Chinese, Japanese and Korean: such text is counted a quarter too low."""
    whole = json.dumps(text(character * 40), ensure_ascii=escaped, separators=(",", ":"))
    assert counted(*[event(whole)] * 100) == round(4000 * each)


def test_one_huge_event_among_small_ones_is_counted_whether_it_is_in_the_sample_or_not() -> None:
    small, huge = token_stream(400), event(text("x" * 400_000))
    for at in range(380, 400):
        assert counted(*small[:at], huge, *small[at:]) == pytest.approx(100_400, rel=0.05)


@pytest.mark.parametrize("at", [0, 5, 17, 388])
def test_one_event_with_much_metadata_among_small_ones_is_not_counted_as_text(at: int) -> None:
    encrypted = event(chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x" * 1700}]}))
    small = token_stream(400)
    assert counted(*small[:at], encrypted, *small[at:]) == pytest.approx(counted(*small), rel=0.1)


PICTURE = "iVBORw0KGgo" + "A/+z" * 1000
LONG_EVENTS: dict[str, tuple[dict[str, Any], int]] = {
    "a short text": ({"content": "x" * 1000}, 250),
    "a long text": ({"content": "x" * 4000}, 1000),
    "words": ({"note": "some words " * 400}, 1100),
    "escapes": ({"content": '\\"\n' * 1000}, 1500),
    "a picture": ({"images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}]}, 0),
    "a picture as text": ({"content": f"![](x) data:image/png;base64,{PICTURE}"}, 1012),
    "a picture alone as text": ({"content": f"data:image/png;base64,{PICTURE}"}, 0),
    "sound": ({"audio": {"id": "a", "data": PICTURE, "transcript": "hello there."}}, 3),
}


@pytest.mark.parametrize("name", LONG_EVENTS)
def test_an_event_that_is_passed_on_in_pieces_is_counted_without_its_base64(name: str) -> None:
    delta, tokens = LONG_EVENTS[name]
    long = event(chunk(delta))
    for cuts in ([100, 500], range(0, len(long), 7), range(len(long))):
        stream, relayed = feed_cut(long, *cuts, max_event_bytes=50)
        assert b"".join(relayed) == long
        assert stream.output.tokens() == pytest.approx(tokens, abs=2)


def test_an_event_with_too_many_short_texts_is_counted_from_all_its_bytes() -> None:
    long = event(chunk({"content": [{"text": "x" * 100}] * 1000}))
    stream, _ = feed_cut(long, 100, 500, max_event_bytes=50)
    assert stream.output.tokens() == -(-len(long) // 4)


@pytest.mark.parametrize("top", [0, 20])
def test_the_estimate_does_not_depend_on_how_reads_divide_the_stream(top: int) -> None:
    body = b"".join(token_stream(300, top=top))
    expected = feed_cut(body)[0].output.tokens()
    random_ = random.Random(1)
    for _ in range(20):
        cuts = [random_.randrange(len(body)) for _ in range(random_.choice([3, 100, 1000]))]
        assert feed_cut(body, *cuts)[0].output.tokens() == expected


def test_what_is_kept_of_a_stream_is_bounded() -> None:
    counter = OutputCounter()
    for number in range(5000):
        counter.add(event(text("x" * (number % 4000))), 1)
        assert len(counter._samples) < MAX_SAMPLES
        assert all(len(sample) <= LARGE for sample in counter._samples)
    assert counter.all_events == 5000


@pytest.mark.parametrize("seed", range(200))
def test_runs_are_counted_as_their_events_one_by_one(seed: int) -> None:
    random_ = random.Random(seed)
    singly, in_runs = OutputCounter(), OutputCounter()
    for _ in range(random_.randrange(1, 60)):
        if random_.random() < 0.2:
            odd = event(text("y" * random_.randrange(2000)))
            singly.add_measured(odd)
            in_runs.add_measured(odd)
            continue
        longest = random_.choice([5, 5, 5, 200, 5000])
        run = [event(text("x" * random_.randrange(longest))) for _ in range(random_.randrange(1, 8))]
        for each in run:
            singly.add(each, 1)
        in_runs.add(b"".join(run), len(run))
        if random_.random() < 0.05:
            assert in_runs.tokens() == singly.tokens()
    assert in_runs.tokens() == singly.tokens()
    assert in_runs.all_events == singly.all_events


@pytest.mark.parametrize(
    "odd", ["[]", "5", '{"choices":5}', '{"choices":[5,null,"x"]}', '{"choices":[{"delta":5}]}', "{"]
)
def test_an_event_of_another_form_has_no_text(odd: str) -> None:
    assert tokens_of(odd.encode()) == 0
    stream = EventStream(drop_usage=False)
    stream.feed(event(odd))
    assert stream.output.tokens() == 0


def test_events_that_are_unlike_the_others_are_counted_whenever_the_estimate_is_asked_for() -> None:
    once, often = OutputCounter(), OutputCounter()
    for number in range(3 * MAX_UNMEASURED):
        odd = event({"choices": [{"delta": {"content": "x" * 4 * number}, "finish_reason": "stop"}]})
        once.add_measured(odd)
        often.add_measured(odd)
        often.tokens()
    assert once.tokens() == often.tokens() == sum(range(3 * MAX_UNMEASURED))


@pytest.mark.parametrize("text_first", [True, False])
def test_calls_of_tools_beside_text_are_estimated_by_the_text_of_both(text_first: bool) -> None:
    """Their events have more around a text, of which no more is counted than the sample lacks of them."""
    said = [event(text(" word")) for _ in range(200)]
    called = [event(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "args"}}]})) for _ in range(200)]
    stream = [ROLE, *said, *called] if text_first else [ROLE, *called, *said]
    assert counted(*stream) == pytest.approx(450, rel=0.35)
