"""What names a life and a notice for good, why one is not owed, and how one ends."""

import enum

from msgspec import Struct

from sidecar.model import DecodeEndpoint


class LifeKey(Struct, frozen=True, cache_hash=True, gc=False):
    """One life of one room at one rank process, for good."""

    process: str
    room: int
    life: int


class NoticeKey(Struct, frozen=True, cache_hash=True, gc=False):
    """One notice that one endpoint is owed for one life."""

    life: LifeKey
    endpoint: DecodeEndpoint


class Untold(enum.Enum):
    """Why an endpoint that shook hands is not owed a notice after all."""

    RESTARTED = "restarted"  # it registered under a new session since
    UNDRAINED = "undrained"  # prefill may still be writing, and the endpoint is not known to hold its pages
    WIRE = "wire"  # no status message of its transfer backend is known


class Outcome(enum.Enum):
    """How a notice ended. `is_settled`: the endpoint is owed nothing more, so a successor of this sidecar need not tell
    it. `word` is the value, which costs two calls to ask for.
    """

    HELD_UP = "held_up"  # handed off on a connection that stayed up for the stated time
    DECODE_ABORTED = "decode_aborted"  # decode's own ABORT for the room came back
    ACKNOWLEDGED = "acknowledged"  # the decode half's ack
    RESTARTED = "restarted"  # the endpoint registered under a new session: the old room is gone there
    SUPERSEDED = "superseded"  # a newer life of the room is open and this notice has had its hand-off
    EXPIRED = "expired"  # decode's own timeout has passed
    DROPPED = "dropped"  # pushed out by a bound

    def __init__(self, word: str) -> None:
        self.word = word
        self.is_settled = word not in ("expired", "dropped")
