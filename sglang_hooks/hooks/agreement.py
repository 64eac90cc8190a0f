"""Agreement of the ranks about ending lives, over the MIN all-reduce that the engine does for its inflight queue
anyway.

For an ending life a rank answers WaitingForInput until it is quiet, then Transferring, and Success if its own
transfer had already succeeded. The minimum is Transferring exactly when every rank is done, so all ranks see the
end in the same round and leave the queue together. A Failed that one rank alone has met becomes an ending life on
every rank in the same way.
"""

import time
from dataclasses import dataclass
from typing import Protocol

from sglang_hooks.lives import Life, Verdict

FAILED = 0
BOOTSTRAPPING = 1
WAITING_FOR_INPUT = 2
TRANSFERRING = 3
SUCCESS = 4


class Poller(Protocol):
    """sglang's `CommonKVSender.poll`, or our stand-in for one."""

    def poll(self) -> int: ...


class Quietness(Protocol):
    def is_quiet(self, life: Life) -> bool: ...


@dataclass(frozen=True, slots=True)
class EndingPoller:
    """Answers for a life that is ending, in place of its sender."""

    rank: Quietness
    life: Life

    def poll(self) -> int:
        if not self.rank.is_quiet(self.life):
            # The worker that finishes the last chunk may wait for the GIL, which a scheduler with nothing else to do
            # takes back at once, over and over: offer it.
            time.sleep(0)
            return WAITING_FOR_INPUT
        if self.life.succeeded:
            return SUCCESS
        return TRANSFERRING


def settle_verdict(life: Life, reduced: int) -> int:
    """What the engine is told about an ending life, given the minimum over all ranks. A verdict, once reached,
    stands."""
    if life.verdict is None:
        if reduced == SUCCESS:
            life.verdict = Verdict.SUCCESS
        elif reduced == TRANSFERRING:
            life.verdict = Verdict.FAILED
    if life.verdict is None:
        return WAITING_FOR_INPUT
    return SUCCESS if life.verdict is Verdict.SUCCESS else FAILED
