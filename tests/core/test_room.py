"""Room: every state with every input, and what a life owes."""

import itertools

import pytest

from sidecar.core.keys import LifeKey, Outcome
from sidecar.core.owed import OwedNotice
from sidecar.core.room import (
    TABLE,
    TOLD_LIMIT,
    TOLD_STATES,
    Effect,
    Handshake,
    Owe,
    Reaffirm,
    Room,
    RoomInput,
    RoomState,
    Settle,
)
from sidecar.model import DecodeEndpoint, Notice
from tests.core.scene import E1, E2

FACTS = {
    RoomInput.FAILURE: RoomState.FAILED,
    RoomInput.UNDRAINED_FAILURE: RoomState.UNDRAINED,
    RoomInput.SUCCESS: RoomState.SUCCEEDED,
}


def room() -> Room:
    return Room(LifeKey("p", 1, 1))


def conclude(life: Room, given: RoomInput, *, cause: str = "gone", expires_at: float = 300.0) -> list[DecodeEndpoint]:
    """Who is told."""
    effect = life.conclude(given, cause, 1.0, expires_at)
    return [known.endpoint for known in life.handshakes if not known.is_settled and effect is Effect.TELL_ALL]


def ended(given: RoomInput) -> Room:
    life = room()
    life.handshake(E1, "s", 1)
    conclude(life, given)
    return life


@pytest.mark.parametrize(("state", "given"), list(itertools.product(RoomState, RoomInput)))
def test_every_pair_is_decided(state: RoomState, given: RoomInput) -> None:
    after, effect = TABLE[state][given]

    assert state is RoomState.OPEN or after is not RoomState.OPEN, "no ended life comes back"
    assert after is state or state in (RoomState.OPEN, RoomState.UNDRAINED), "the first end stands"
    assert effect is not Effect.TELL_ALL or after in TOLD_STATES
    assert effect is not Effect.TELL or state in TOLD_STATES


def test_a_failure_owes_everyone_who_shook_hands() -> None:
    life = room()
    life.handshake(E1, "s1", 1)
    life.handshake(E2, "s2", 2)

    claims = conclude(life, RoomInput.FAILURE)

    assert claims == [E1, E2]


def test_a_late_handshake_completes_the_same_product() -> None:
    life = room()
    conclude(life, RoomInput.FAILURE)

    assert life.handshake(E1, "s", 1) == [Owe(Handshake(E1, "s", 1), is_news=True)]


def test_a_repeated_handshake_of_something_owed_is_no_news() -> None:
    life = ended(RoomInput.FAILURE)

    assert life.handshake(E1, "s", 1) == [Owe(Handshake(E1, "s", 1), is_news=False)]


def test_an_end_of_something_owed_before_the_life_came_back_is_no_debt_less() -> None:
    """Guards against a count below nothing: a life that was evicted comes back, and what it was owed then ends."""
    life = ended(RoomInput.FAILURE)
    life.note_ended(OwedNotice(life.key, E1, 1, Notice(0, "gone"), "s", 0.0, 1.0, is_once=False))

    assert life.owed == 0
    assert [owed.endpoint for owed in life.told] == [E1]


def test_a_repeated_handshake_of_something_settled_is_only_reaffirmed() -> None:
    life = ended(RoomInput.FAILURE)
    life.settled(E1, 1)

    assert life.handshake(E1, "s", 1) == [Reaffirm(E1, 1)]


def test_a_new_handshake_after_settling_is_answered_again() -> None:
    """Decode may have put a new request into the old room."""
    life = ended(RoomInput.FAILURE)
    life.settled(E1, 1)

    assert life.handshake(E1, "s", 2) == [Owe(Handshake(E1, "s", 2), is_news=True)]


def test_decodes_abort_settles() -> None:
    life = ended(RoomInput.FAILURE)

    assert life.aborted(E1, 2) == [Settle(E1, Outcome.DECODE_ABORTED)]


def test_an_abort_replayed_after_a_newer_handshake_settles_nothing() -> None:
    life = ended(RoomInput.FAILURE)
    life.aborted(E1, 2)
    life.handshake(E1, "s", 3)

    assert life.aborted(E1, 2) == []
    assert [known.is_settled for known in life.handshakes] == [False]


def test_an_abort_before_the_end_leaves_nothing_to_owe() -> None:
    life = room()
    life.handshake(E1, "s", 1)
    life.aborted(E1, 2)

    assert conclude(life, RoomInput.FAILURE) == []


def test_an_abort_of_an_endpoint_never_met_is_remembered() -> None:
    life = room()
    life.aborted(E1, 2)
    life.handshake(E1, "s", 1)

    assert conclude(life, RoomInput.FAILURE) == []


def test_undrained_owes_as_drained_does_and_again_when_it_drains() -> None:
    """To whom of them it may be told is not the life's business."""
    life = room()
    life.handshake(E1, "s", 1)

    assert conclude(life, RoomInput.UNDRAINED_FAILURE) == [E1]
    assert not life.is_drained
    assert life.handshake(E2, "s", 2) == [Owe(Handshake(E2, "s", 2), is_news=True)]
    life.settled(E2, 2)

    assert conclude(life, RoomInput.FAILURE, cause="second") == [E1]
    assert life.is_drained
    assert life.cause == "gone"


def test_the_first_causes_status_stands() -> None:
    life = room()
    life.conclude(RoomInput.UNDRAINED_FAILURE, "gone", 1.0, 300.0, http_status=499)
    life.conclude(RoomInput.FAILURE, "later", 2.0, 300.0, http_status=503)

    assert (life.cause, life.http_status) == ("gone", 499)


def test_success_owes_nothing_ever() -> None:
    life = ended(RoomInput.SUCCESS)

    assert life.handshake(E2, "s", 2) == []
    assert life.aborted(E1, 3) == []
    assert life.shaken(E2) is None


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(FACTS, 2)))
def test_a_second_different_end_changes_nothing(first: RoomInput, second: RoomInput) -> None:
    life = ended(first)

    effect = life.conclude(second, "other", 2.0, 999.0)

    if (first, second) == (RoomInput.UNDRAINED_FAILURE, RoomInput.FAILURE):
        assert life.state is RoomState.FAILED
        assert effect is Effect.TELL_ALL
    else:
        assert effect is not Effect.TELL_ALL
        assert life.state is FACTS[first]
        assert life.expires_at == 300.0


@pytest.mark.parametrize("end", list(FACTS))
def test_repeating_an_end_changes_nothing(end: RoomInput) -> None:
    life = ended(end)

    assert conclude(life, end, cause="again") == []
    assert life.cause == "gone"


def test_settling_an_unknown_endpoint_is_nothing() -> None:
    life = room()
    life.settled(E1, 1)

    assert life.handshakes == []


def test_a_fact_settles_nothing_that_came_after_it() -> None:
    life = ended(RoomInput.FAILURE)
    life.handshake(E1, "s", 3)
    life.settled(E1, 2)

    assert [known.is_settled for known in life.handshakes] == [False]


def test_a_life_keeps_the_last_ended_notice_of_each_of_a_few_endpoints() -> None:
    """Guards against a flood of endpoints whose ended notices would all be kept."""
    life = room()
    crowd = [DecodeEndpoint("127.0.0.1", 8000 + number) for number in range(TOLD_LIMIT + 2)]
    for seq, endpoint in enumerate(crowd):
        life.handshake(endpoint, "s", seq)
    for seq, endpoint in enumerate([*crowd, crowd[0], E1]):
        life.note_ended(OwedNotice(life.key, endpoint, seq, Notice(0, "gone"), "s", 0.0, 1.0, is_once=False))

    assert [owed.endpoint for owed in life.told] == crowd[:TOLD_LIMIT]
    assert life.told[0].seq == len(crowd)


class Counting:
    """Stands in for an endpoint and counts how often one is compared with another."""

    comparisons = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        Counting.comparisons += 1
        return isinstance(other, Counting) and other.number == self.number


def test_what_an_endpoint_costs_does_not_grow_with_the_endpoints_of_its_life() -> None:
    """Guards against a life that looks through all of them for each."""
    life = room()
    crowd = [Counting(number) for number in range(1000)]
    for seq, endpoint in enumerate(crowd):
        life.handshake(endpoint, "s", seq)  # type: ignore[arg-type]
    for number, endpoint in enumerate(map(Counting, range(1000))):
        life.note_ended(OwedNotice(life.key, endpoint, number, Notice(0, "gone"), "s", 0.0, 1.0, is_once=False))  # type: ignore[arg-type]

    assert Counting.comparisons < 10 * len(crowd)


def test_a_newer_handshake_takes_the_place_of_an_older_one_and_keeps_what_was_told() -> None:
    life = ended(RoomInput.FAILURE)
    life.handshake(E2, "s", 2)
    life.note_ended(OwedNotice(life.key, E1, 1, Notice(0, "gone"), "s", 0.0, 1.0, is_once=False))
    life.handshake(E1, "s", 3)

    assert [(known.endpoint, known.seq) for known in life.handshakes] == [(E1, 3), (E2, 2)]
    assert [owed.seq for owed in life.told] == [1]


def test_repr_shows_the_state() -> None:
    assert repr(room()) == "<Room 1#1 open endpoints=0>"
