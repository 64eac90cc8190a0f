"""Refusals: what passes between a tokenizer process and the ranks of its engine, and what is kept for later ranks."""

import pytest
from msgspec import structs

from sidecar.core.ranks import RankTable
from sidecar.core.refusals import Refusals
from sidecar.core.stats import Stats
from sidecar.model import (
    TOKENIZER,
    Hello,
    Reply,
    RoomAnswered,
    RoomEnded,
    RoomQueried,
    RoomQuery,
    RoomRefused,
    TokenizerJoined,
    Welcome,
)
from tests.core.scene import TTL_S, Scene, hello

DOOR = "door"


def rank_hello(process: str = "p", *, engine: str = "engine", hears: bool = True) -> Hello:
    return structs.replace(hello(process, engine=engine), hears_refusals=hears)


def door_hello(*, engine: str = "engine") -> Hello:
    return structs.replace(rank_hello(DOOR, engine=engine), role=TOKENIZER)


@pytest.fixture
def scene() -> Scene:
    """A rank and its tokenizer process."""
    scene = Scene()
    scene.join("p", rank_hello())
    scene.join(DOOR, door_hello())
    return scene


def heard(scene: Scene, process: str = "p") -> list[Reply]:
    replies = scene.replies[scene.streams[process]]
    return [one for one in replies if isinstance(one, RoomEnded | RoomQuery | TokenizerJoined)]


def refused(scene: Scene, room: int, *, at_s: float | None = None) -> RoomEnded:
    at_s = scene.now if at_s is None else at_s
    scene.tell(RoomRefused(scene.seq(DOOR), room, "too long", 400, at_s), DOOR)
    return RoomEnded(room, at_s, 0.0, at_s, "too long", 400)


def test_a_refusal_is_passed_to_the_ranks_of_that_engine_only(scene: Scene) -> None:
    scene.join("other", rank_hello("other", engine="another"))

    word = refused(scene, 7)

    assert heard(scene) == [TokenizerJoined(), word]
    assert heard(scene, "other") == []
    assert heard(scene, DOOR) == []
    assert scene.notifier.stats.rooms_refused == 1


def test_a_rank_of_an_older_plugin_is_told_nothing(scene: Scene) -> None:
    """It would break its stream over a message that it does not know."""
    scene.join("old", rank_hello("old", hears=False))

    refused(scene, 7)

    assert heard(scene, "old") == []


def test_a_rank_that_connects_later_hears_what_still_stands(scene: Scene) -> None:
    first, again = refused(scene, 7), refused(scene, 8)
    scene.advance(1.0)
    again = refused(scene, 8)

    scene.join("late", rank_hello("late"))

    assert heard(scene, "late") == [TokenizerJoined(), first, again]


def test_a_refusal_is_kept_as_long_as_decode_may_wait(scene: Scene) -> None:
    refused(scene, 7)
    scene.advance(TTL_S)

    scene.join("late", rank_hello("late"))

    assert heard(scene, "late") == [TokenizerJoined()]
    assert len(scene.notifier.refusals) == 0


def test_a_refusal_of_the_future_counts_from_now(scene: Scene) -> None:
    refused(scene, 7, at_s=scene.now + 1e6)

    assert heard(scene)[-1] == RoomEnded(7, scene.now, 0.0, scene.now, "too long", 400)


def test_a_refusal_told_again_is_passed_on_again_and_counted_once(scene: Scene) -> None:
    """The tokenizer process replays its refusals on each new stream; a rank may have missed the first word."""
    seq = scene.seq(DOOR)
    fact = RoomRefused(seq, 7, "too long", 400, scene.now)
    scene.tell(fact, DOOR)
    scene.tell(fact, DOOR)

    assert len(heard(scene)) == 3
    assert scene.notifier.stats.rooms_refused == 1


def test_a_question_goes_to_the_tokenizer_process_and_its_answer_to_the_ranks(scene: Scene) -> None:
    scene.join("q", rank_hello("q"))

    scene.tell(RoomQueried(scene.seq(), 7))
    assert heard(scene, DOOR) == [RoomQuery(7)]

    scene.tell(RoomAnswered(scene.seq(DOOR), 7, 20.0, 10.0, 5.0, "too long", 400), DOOR)
    answer = RoomEnded(7, 20.0, 10.0, 5.0, "too long", 400)
    assert heard(scene)[-1] == heard(scene, "q")[-1] == answer


def test_a_question_without_a_tokenizer_process_is_not_answered() -> None:
    scene = Scene()
    scene.join("p", rank_hello())

    scene.tell(RoomQueried(scene.seq(), 7))

    assert heard(scene) == []


def test_a_tokenizer_process_that_comes_later_is_made_known_to_its_ranks() -> None:
    scene = Scene()
    scene.join("p", rank_hello())
    assert heard(scene) == []

    scene.join(DOOR, door_hello())

    assert heard(scene) == [TokenizerJoined()]
    assert scene.replies[scene.streams[DOOR]] == [Welcome(1, "first", hears_refusals=True, takes_parcels=True)]


def test_the_death_of_a_tokenizer_process_ends_no_request(scene: Scene) -> None:
    """sglang ends the ranks of such an engine itself; a rank's own death is what ends its siblings' requests."""
    scene.opened(7, 1)
    scene.leave(DOOR)
    scene.process_dies(DOOR)

    assert not scene.asked_to_end()


def test_a_dead_rank_is_no_news_to_the_tokenizer_process(scene: Scene) -> None:
    scene.leave("p")
    scene.process_dies("p")

    assert not scene.asked_to_end(DOOR)


def test_so_many_refusals_are_kept() -> None:
    stats, ranks = Stats(), RankTable()
    refusals = Refusals(ranks=ranks, replies_to=lambda _process: [], stats=stats, limit=2)
    rank, _ = ranks.join(door_hello(), 1)
    facts = [RoomRefused(seq, seq, "too long", 400, 1.0) for seq in range(3)]

    refusals.rules[RoomRefused](rank, facts, set(), 2.0)

    assert len(refusals) == 2
    assert stats.refusals_evicted == 1
    assert repr(refusals) == "<Refusals kept=2>"


@pytest.mark.parametrize(
    "fact",
    [
        RoomRefused(9, -1, "", 0, 1.0),
        RoomRefused(9, 7, "x" * 5000, 0, 1.0),
        RoomRefused(-1, 7, "", 0, 1.0),
        RoomAnswered(9, 2**63, 1.0, 0.0, 0.0, "", 0),
    ],
)
def test_implausible_words_are_dropped(scene: Scene, fact: RoomRefused | RoomAnswered) -> None:
    scene.tell(fact, DOOR)

    assert heard(scene) == [TokenizerJoined()]
    assert scene.notifier.stats.facts_implausible == 1


def test_an_implausible_question_is_dropped(scene: Scene) -> None:
    scene.tell(RoomQueried(scene.seq(), -1))

    assert heard(scene, DOOR) == []
