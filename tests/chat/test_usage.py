"""What a usage object reports, and what is charged by reports and estimates."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.chat.usage import Counts, ReportedUsage, Usage
from tests.chat.test_events import COUNTED, DONE, chunk, event, read, text

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
