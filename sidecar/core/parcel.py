"""A parcel: a status message of stock's own that the sidecar carries for a rank, its frames unread."""

import enum

from msgspec import Struct

from sidecar.model import DecodeEndpoint


class ParcelOutcome(enum.Enum):
    """How a parcel ended that was taken."""

    HELD_UP = "held_up"  # handed off on a connection that stayed up for the stated time
    RESTARTED = "restarted"  # the endpoint registered under a new session: the old room is gone there
    SUPERSEDED = "superseded"  # the endpoint shook hands for the same room again: it waits for another request's end
    EXPIRED = "expired"  # decode's own timeout has passed
    DROPPED = "dropped"  # pushed out by a bound


class ParcelRefusal(enum.Enum):
    """Why a parcel is not taken: the rank has stock push it."""

    LATE = "late"  # read after its time: stock has pushed it by now
    STRANGER = "stranger"  # the rank has reported no registration of that endpoint
    NO_SOCKET = "no_socket"  # over the bound on connections
    MALFORMED = "malformed"  # over a bound on its frames, or no message at all


class Parcel(Struct, eq=False):
    """`process` and `seq` name it for good."""

    process: str
    seq: int
    room: int
    endpoint: DecodeEndpoint
    session: str
    frames: tuple[bytes, ...]
    expires_at: float
    hand_offs: int = 0
    handed_off_at: float = 0.0
    outcome: ParcelOutcome | None = None
    listed_at: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.outcome is not None
