"""What the core asks the shell to do: a closed union of values."""

from typing import TypeAlias

from msgspec import Struct

from sidecar.core.owed import OwedNotice
from sidecar.core.parcel import Parcel
from sidecar.model import DecodeEndpoint, Hello, Reply


class SendNotices(Struct, frozen=True):
    """Try each once, in this order and without waiting, until one is refused; the count of those handed off goes back
    as `attempted`.
    """

    endpoint: DecodeEndpoint
    offers: list[OwedNotice]


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


Action: TypeAlias = (
    SendNotices | SendParcels | Connect | CloseEndpoint | SendReplies | CloseStream | RankJoined | RankLeft | Retire
)
