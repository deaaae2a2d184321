"""Credentials are used in turn; a refused one is suspended, which is logged without showing it."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.base.errors import Refused
from gateway.proxy.failure import UpstreamFailure
from gateway.proxy.pool import MAX_ACCOUNTS, Credentials
from gateway.store.channels import SUSPENDED_S, CredentialStates


class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def test_credentials_are_used_in_turn() -> None:
    credentials = Credentials(["a", "b", "c"])
    assert [credentials.next("openai") for _ in range(7)] == list("abcabca")


def test_a_channel_without_credentials_has_an_empty_one() -> None:
    assert Credentials([]).next() == ""


def test_a_refused_credential_is_suspended_and_used_again_later(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b", "c"])
    credentials.refused("b", "openai")
    assert [credentials.next("openai") for _ in range(4)] == list("acac")
    clock.now += SUSPENDED_S
    assert sorted(credentials.next("openai") for _ in range(3)) == ["a", "b", "c"]


def test_when_all_are_refused_the_one_suspended_longest_is_used(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    credentials.refused("b", "openai")
    assert not credentials.all_refused("openai")
    clock.now += 1
    credentials.refused("a", "openai")
    assert credentials.all_refused("openai")
    assert [credentials.next("openai"), credentials.next("openai")] == ["b", "b"]


def test_the_only_credential_is_never_suspended() -> None:
    credentials = Credentials(["a"])
    credentials.refused("a", "openai")
    assert credentials.next("openai") == "a"


def test_the_log_shows_the_number_of_a_refused_credential_and_never_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    noted: list[tuple[str, int, int, bool]] = []
    states = CredentialStates()
    states.on_refused = lambda *refused: noted.append(refused)
    credentials = Credentials(["canary-0", "canary-1"], states)
    credentials.refused("canary-1", "openai", "401")
    assert noted == [("openai", 2, 2, False)]
    printed = "".join(capsys.readouterr())
    assert "credential_refused" in printed
    assert "number=2" in printed
    assert "openai" in printed
    assert "canary" not in printed


NO = Refused(502, "upstream_auth_failed", "No.")
REFUSED_401 = UpstreamFailure(NO, credential_refused=True, why="401")
REFUSED_402 = UpstreamFailure(NO, forbidden=True, why="402")
REFUSED_403 = UpstreamFailure(NO, forbidden=True, why="403")
SPENT = UpstreamFailure(NO, credential_refused=True, spent=True, why="429")


@pytest.mark.parametrize("failed", [REFUSED_401, REFUSED_402])
def test_one_refusal_sets_a_credential_aside_for_its_account_only_which_tries_the_next(
    clock: FakeClock, failed: UpstreamFailure
) -> None:
    credentials = Credentials(["a", "b"])
    assert credentials.another("a", "openai", "one", failed)
    assert [credentials.next("openai", "one") for _ in range(3)] == ["b", "b", "b"]
    assert sorted(credentials.next("openai", "two") for _ in range(4)) == ["a", "a", "b", "b"]
    assert not credentials.another("b", "openai", "one", failed), "there is no third"
    assert not credentials.all_refused("openai"), "the request may be at fault"


def test_a_401_is_the_credentials_where_the_next_is_accepted_for_the_same_request(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    assert credentials.another("a", "openai", "one", REFUSED_401)
    credentials.worked("b", "openai", ["a"])
    assert [credentials.next("openai", "two") for _ in range(3)] == ["b", "b", "b"]


@pytest.mark.parametrize(("failed", "confirmed"), [(REFUSED_401, True), (REFUSED_402, False)])
def test_a_second_refusal_of_one_account_tells_of_a_401_alone(
    clock: FakeClock, failed: UpstreamFailure, confirmed: bool
) -> None:
    credentials = Credentials(["a"])
    for _ in range(2):
        assert not credentials.another("a", "openai", "one", failed)
        credentials.worked("a", "openai", ())
    assert not credentials.all_refused("openai"), "it worked in between"
    for _ in range(2):
        assert not credentials.another("a", "openai", "one", failed)
    assert credentials.all_refused("openai") == confirmed
    assert not credentials.another("a", "openai", "two", REFUSED_402)
    assert credentials.all_refused("openai")


def test_a_conversation_keeps_its_credential_in_each_process_and_comes_back(clock: FakeClock) -> None:
    keys = [f"key-{number}" for number in range(4)]
    states = CredentialStates()
    workers = Credentials(keys, states), Credentials(keys[::-1])
    sessions = [f"session {number}" for number in range(400)]

    def all_of(credentials: Credentials) -> dict[str, str]:
        return {session: credentials.next("openai", "one", session) for session in sessions}

    before = all_of(workers[0])
    assert before == all_of(workers[0]) == all_of(workers[1]), "also where the file has them in another order"
    assert all(70 < count < 130 for count in Counter(before.values()).values())
    workers[0].refused("key-2", "openai")
    moved = all_of(workers[0])
    assert {session for session in sessions if moved[session] != before[session]} == {
        session for session in sessions if before[session] == "key-2"
    }
    assert len({moved[session] for session in sessions if before[session] == "key-2"}) == 3, "over all others"
    clock.now += SUSPENDED_S
    assert all_of(workers[0]) == before


def test_a_spent_credential_rests_until_told_once_two_accounts_have_met_it(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    for _ in range(2):
        assert credentials.another("a", "openai", "one", SPENT)
        assert [credentials.next("openai", "one") for _ in range(3)] == ["b", "b", "b"]
        assert sorted(credentials.next("openai", "two") for _ in range(2)) == ["a", "b"], (
            "one large request may cause it"
        )
    assert credentials.another("a", "openai", "two", SPENT)
    credentials.worked("a", "openai", ())
    clock.now += 10 * SUSPENDED_S
    assert [credentials.next("openai", "three") for _ in range(3)] == ["b", "b", "b"]


def test_a_403_sets_a_credential_aside_for_its_account_only(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    for _ in range(5):
        assert not credentials.another("a", "openai", "one", REFUSED_403)
    assert [credentials.next("openai", "one") for _ in range(3)] == ["b", "b", "b"]
    assert sorted(credentials.next("openai", "two") for _ in range(4)) == ["a", "a", "b", "b"]
    clock.now += SUSPENDED_S
    assert sorted(credentials.next("openai", "one") for _ in range(2)) == ["a", "b"]


def test_a_403_for_two_accounts_suspends_a_credential_that_did_not_work_between_them(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    assert not credentials.another("a", "openai", "one", REFUSED_403)
    credentials.worked("a", "openai", ())
    assert not credentials.another("a", "openai", "two", REFUSED_403)
    assert credentials.another("a", "openai", "one", REFUSED_403)
    assert [credentials.next("openai", "three") for _ in range(3)] == ["b", "b", "b"]


def test_accounts_that_met_a_403_are_bounded(clock: FakeClock) -> None:
    credentials = Credentials(["a", "b"])
    for number in range(5 * MAX_ACCOUNTS):
        credentials.another("a", "openai", str(number), REFUSED_403)
        credentials.worked("a", "openai", ())
    assert len(credentials._aside_until[0]) == MAX_ACCOUNTS
