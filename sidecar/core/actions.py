"""What the core asks the shell to do: a closed union of values."""

import enum
from typing import TypeAlias

from msgspec import Struct

from sidecar.model import DecodeEndpoint, Hello, Notice, Reply


class LifeKey(Struct, frozen=True, cache_hash=True):
    """One life of one room at one rank process, for good."""

    process: str
    room: int
    life: int


class NoticeKey(Struct, frozen=True, cache_hash=True):
    """One notice that one endpoint is owed for one life."""

    life: LifeKey
    endpoint: DecodeEndpoint


class Outcome(enum.Enum):
    """How a notice ended."""

    HELD_UP = "held_up"  # handed off on a connection that stayed up for the stated time
    DECODE_ABORTED = "decode_aborted"  # decode's own ABORT for the room came back
    ACKNOWLEDGED = "acknowledged"  # the decode half's ack
    RESTARTED = "restarted"  # the endpoint registered under a new session: the old room is gone there
    SUPERSEDED = "superseded"  # a newer life of the room is open and this notice has had its hand-off
    EXPIRED = "expired"  # decode's own timeout has passed
    DROPPED = "dropped"  # pushed out by a bound

    @property
    def is_settled(self) -> bool:
        """The endpoint is owed nothing more, so a successor of this sidecar need not tell it."""
        return self not in (Outcome.EXPIRED, Outcome.DROPPED)


class SendNotice(Struct, frozen=True):
    """Try once, without waiting; the outcome goes back as `handed_off` or `refused`."""

    endpoint: DecodeEndpoint
    notice: Notice
    key: NoticeKey


class Connect(Struct, frozen=True):
    endpoint: DecodeEndpoint


class CloseEndpoint(Struct, frozen=True):
    endpoint: DecodeEndpoint


class SendReply(Struct, frozen=True):
    stream: int
    message: Reply


class CloseStream(Struct, frozen=True):
    """After what was replied before has been written."""

    stream: int


class RankJoined(Struct, frozen=True):
    """For the log."""

    hello: Hello
    is_back: bool


class RankLeft(Struct, frozen=True):
    """For the log. Not `in_order`: its stream ended without a goodbye. That is an alarm if rooms were open there."""

    process: str
    pid: int
    in_order: bool
    open_rooms: int


class Retire(Struct, frozen=True):
    """Nobody has been connected for the stated time and nothing is owed: the process may end."""


Action: TypeAlias = SendNotice | Connect | CloseEndpoint | SendReply | CloseStream | RankJoined | RankLeft | Retire
