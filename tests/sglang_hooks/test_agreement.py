"""The poll values by which ranks agree. Two ranks are played by two lives and a minimum, as Gloo's MIN all-reduce
gives it."""

from dataclasses import dataclass

import pytest

from sglang_hooks.hooks.agreement import FAILED, SUCCESS, TRANSFERRING, WAITING_FOR_INPUT, EndingPoller, settle_verdict
from sglang_hooks.lives import Life


@dataclass
class Drain:
    """A rank whose lives are quiet when they are drained: no timeout."""

    def is_quiet(self, life: Life) -> bool:
        return life.is_drained


def ending(*, put: int = 0, finished: int = 0, succeeded: bool = False) -> Life:
    return Life(room=7, number=1, ending=True, put=put, finished=finished, succeeded=succeeded)


def one_round(*lives: Life) -> list[int]:
    reduced = min(EndingPoller(Drain(), life).poll() for life in lives)
    return [settle_verdict(life, reduced) for life in lives]


def test_both_ranks_stay_until_the_slower_one_is_quiet() -> None:
    fast, slow = ending(), ending(put=1)

    assert one_round(fast, slow) == [WAITING_FOR_INPUT, WAITING_FOR_INPUT]

    slow.finished = 1
    assert one_round(fast, slow) == [FAILED, FAILED]


def test_success_on_all_ranks_stays_success() -> None:
    assert one_round(ending(succeeded=True), ending(succeeded=True)) == [SUCCESS, SUCCESS]


def test_success_on_one_rank_only_is_failed_for_all() -> None:
    assert one_round(ending(succeeded=True), ending()) == [FAILED, FAILED]


def test_a_success_that_is_still_being_written_is_waited_for() -> None:
    assert one_round(ending(put=1, succeeded=True)) == [WAITING_FOR_INPUT]


@pytest.mark.parametrize("later", [WAITING_FOR_INPUT, TRANSFERRING, SUCCESS])
def test_a_verdict_stands_in_every_later_round(later: int) -> None:
    """Under PP the engine polls once to learn who is done and once more to let them go."""
    life = ending()
    assert settle_verdict(life, TRANSFERRING) == FAILED

    assert settle_verdict(life, later) == FAILED


def test_a_failure_that_another_rank_has_met_is_not_yet_the_end() -> None:
    assert settle_verdict(ending(put=1), FAILED) == WAITING_FOR_INPUT
