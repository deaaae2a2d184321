"""What is to be reported of a channel, and how two reports become one."""

from __future__ import annotations

from gateway.config.channel import Channel
from gateway.store.channels import AccountReport, ChannelReport
from gateway.store.circuit_breaker import LocalChannel, limits_of, merged


def local() -> LocalChannel:
    return LocalChannel(limits_of("a", Channel("http://a/v1")))


def test_a_success_is_reported_only_of_an_account_whose_calls_failed() -> None:
    channel = local()
    assert not channel.succeeded("one")
    channel.failed("r", "upstream_error", None, "one")
    channel.failed("r", "upstream_error", 2, "one")
    assert channel.report.accounts == {"one": AccountReport(failed=2, cool_ms=2000)}
    assert channel.succeeded("one")
    assert channel.report.accounts == {"one": AccountReport(ok=True)}
    assert not channel.succeeded("one")


def test_a_failure_without_an_account_is_the_channels() -> None:
    channel = local()
    channel.failed("r", "upstream_unreachable", 0, "")
    assert (channel.report.failed, channel.report.cool_ms, channel.report.accounts) == (1, 0, {})


def test_reports_that_were_not_sent_are_merged() -> None:
    earlier = ChannelReport(
        ok=1,
        failed=2,
        cool_ms=5,
        error="x",
        accounts={
            "one": AccountReport(failed=1, cool_ms=7),
            "two": AccountReport(failed=1),
            "three": AccountReport(ok=True),
        },
    )
    later = ChannelReport(
        failed=3,
        in_flight=4,
        accounts={"one": AccountReport(failed=2), "two": AccountReport(ok=True), "three": AccountReport(failed=1)},
    )
    both = merged(earlier, later)
    assert (both.ok, both.failed, both.cool_ms, both.error, both.in_flight) == (1, 5, 5, "x", 4)
    assert both.accounts == {
        "one": AccountReport(failed=3, cool_ms=7),
        "two": AccountReport(ok=True),
        "three": AccountReport(failed=1),
    }
