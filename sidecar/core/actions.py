"""What the core asks the shell to do: a closed union of values."""

from typing import TypeAlias

from msgspec import Struct

from sidecar.core.owed import OwedNotice
from sidecar.core.parcel import Parcel
from sidecar.model import DecodeEndpoint, Hello, Reply


class SendNotices(Struct, frozen=True):
    """Try each once, in this order and without waiting, until one is refused; the count of those handed off goes back
    as an `Attempt`.
    """

    endpoint: DecodeEndpoint
    offers: list[OwedNotice]


Attempt: TypeAlias = tuple[SendNotices, int]
"""So many of those offered were handed off; the next one, if any, was refused, and the rest was not tried."""


class SendParcels(Struct, frozen=True):
    """The same with messages of stock's own; the count goes back as `parcels_attempted`."""

    endpoint: DecodeEndpoint
    parcels: list[Parcel]


class Connect(Struct, frozen=True):
    endpoint: DecodeEndpoint


class CloseEndpoint(Struct, frozen=True):
    endpoint: DecodeEndpoint


class SendReplies(Struct, frozen=True):
    stream: int
    messages: list[Reply]


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


Single: TypeAlias = SendParcels | Connect | CloseEndpoint | SendReplies | CloseStream | RankJoined | RankLeft | Retire
"""Performed each by itself; what became of notices that were sent is reported of all together."""

Action: TypeAlias = SendNotices | Single
