"""One notice that one endpoint is owed for one life, from when it is owed to how it ended."""

import enum

from msgspec import Struct

from sidecar.core.keys import LifeKey, NoticeKey, Outcome
from sidecar.model import DecodeEndpoint, Form, Notice


class NoticeState(enum.Enum):
    PENDING = "pending"
    OFFERED = "offered"  # the shell has it and answers before anything else happens
    HANDED_OFF = "handed_off"
    TAKEN_OVER = "taken_over"  # a predecessor handed it off; whether that holds is seen when there is a connection


class OwedNotice(Struct, eq=False, gc=False):
    """`is_once`: a newer life of the room is open, so this may be handed off once and never again.

    `seq` is the number of the handshake it answers. `is_reported`: its rank thinks that it has been handed off.

    `form` is that of its last attempt: `best_form` for an endpoint that is still the one that shook hands, else
    `safe_form`, which any decode takes.

    `owed_since` is when the end and the handshake were both known here, in the host's monotonic seconds. Times of what
    has not happened are 0. `handed_off_at` is what settling counts from; the other times are for the story of a room.
    """

    life: LifeKey
    endpoint: DecodeEndpoint
    seq: int
    notice: Notice
    session: str
    owed_since: float
    expires_at: float
    is_once: bool
    best_form: Form = Form.BARE
    safe_form: Form = Form.BARE
    form: Form = Form.BARE
    state: NoticeState = NoticeState.PENDING
    is_reported: bool = False
    refusals: int = 0
    hand_offs: int = 0
    handed_off_at: float = 0.0
    refused_at: float = 0.0
    first_handed_off_at: float = 0.0
    last_handed_off_at: float = 0.0
    ended_at: float = 0.0
    outcome: Outcome | None = None
    listed_at: float = 0.0
    sibling: "OwedNotice | None" = None

    @property
    def key(self) -> NoticeKey:
        return NoticeKey(self.life, self.endpoint)

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    def renew(self, other: "OwedNotice") -> None:
        """The same notice, owed afresh: hand-offs so far went to somebody who no longer waits."""
        self.seq = other.seq
        self.session = other.session
        self.owed_since = other.owed_since
        self.is_once = other.is_once
        self.best_form, self.safe_form = other.best_form, other.safe_form
        self.is_reported = False
        self.hand_offs = 0
        self.first_handed_off_at = 0.0
