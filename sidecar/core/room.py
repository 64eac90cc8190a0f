"""One life of one room at one rank: who shook hands, how it ended, and hence who is owed a notice.

All rules for a single life are in TABLE. The late handshake is no case of its own: a room holds endpoints and an end,
and owes the product of both, whichever came first.

A fact about an endpoint is news when its sequence number is above that of the last fact about that endpoint in this
life; else it is a replay, which changes nothing and owes nothing twice.
"""

import enum
from sys import intern
from typing import TypeAlias

from msgspec import Struct

from sidecar.core.keys import LifeKey, Outcome
from sidecar.core.owed import OwedNotice
from sidecar.model import DecodeEndpoint

ENDPOINT_LIMIT = 1024
"""Endpoints of one life. Each prefill rank hears from a few dozen decode ranks at most."""

TOLD_LIMIT = 16
"""Notices of one life that are kept after they ended, to be shown."""


class RoomState(enum.Enum):
    OPEN = "open"
    FAILED = "failed"  # a terminal record: every endpoint that shakes hands is owed a notice
    UNDRAINED = "undrained"  # failed, but the rank may still write: as FAILED, for endpoints that hold their pages
    SUCCEEDED = "succeeded"

    __hash__ = object.__hash__  # TABLE is looked into for each fact; an enum would hash its name each time


class RoomInput(enum.Enum):
    OPENED = enum.auto()
    HANDSHAKE = enum.auto()
    ABORTED = enum.auto()
    ACKNOWLEDGED = enum.auto()
    FAILURE = enum.auto()
    UNDRAINED_FAILURE = enum.auto()
    SUCCESS = enum.auto()

    __hash__ = object.__hash__


class Effect(enum.Enum):
    NONE = enum.auto()
    NOTE = enum.auto()  # remember the endpoint
    TELL = enum.auto()  # remember the endpoint and owe it a notice
    TELL_ALL = enum.auto()  # owe every endpoint known so far
    SETTLE = enum.auto()  # that endpoint is owed nothing
    CONTRADICTION = enum.auto()  # a second, different end: the first one stands


_S, _I, _E = RoomState, RoomInput, Effect

TABLE: dict[RoomState, dict[RoomInput, tuple[RoomState, Effect]]] = {
    _S.OPEN: {
        _I.OPENED: (_S.OPEN, _E.NONE),
        _I.HANDSHAKE: (_S.OPEN, _E.NOTE),
        _I.ABORTED: (_S.OPEN, _E.SETTLE),
        _I.ACKNOWLEDGED: (_S.OPEN, _E.NONE),  # nobody was told anything yet
        _I.FAILURE: (_S.FAILED, _E.TELL_ALL),
        _I.UNDRAINED_FAILURE: (_S.UNDRAINED, _E.TELL_ALL),
        _I.SUCCESS: (_S.SUCCEEDED, _E.NONE),
    },
    _S.FAILED: {
        _I.OPENED: (_S.FAILED, _E.NONE),
        _I.HANDSHAKE: (_S.FAILED, _E.TELL),
        _I.ABORTED: (_S.FAILED, _E.SETTLE),
        _I.ACKNOWLEDGED: (_S.FAILED, _E.SETTLE),
        _I.FAILURE: (_S.FAILED, _E.NONE),
        _I.UNDRAINED_FAILURE: (_S.FAILED, _E.NONE),
        _I.SUCCESS: (_S.FAILED, _E.CONTRADICTION),
    },
    _S.UNDRAINED: {
        _I.OPENED: (_S.UNDRAINED, _E.NONE),
        _I.HANDSHAKE: (_S.UNDRAINED, _E.TELL),
        _I.ABORTED: (_S.UNDRAINED, _E.SETTLE),
        _I.ACKNOWLEDGED: (_S.UNDRAINED, _E.SETTLE),
        _I.FAILURE: (_S.FAILED, _E.TELL_ALL),  # it drained after all
        _I.UNDRAINED_FAILURE: (_S.UNDRAINED, _E.NONE),
        _I.SUCCESS: (_S.UNDRAINED, _E.CONTRADICTION),
    },
    _S.SUCCEEDED: {
        _I.OPENED: (_S.SUCCEEDED, _E.NONE),
        _I.HANDSHAKE: (_S.SUCCEEDED, _E.NONE),  # early for the next life, not late for this one
        _I.ABORTED: (_S.SUCCEEDED, _E.NONE),
        _I.ACKNOWLEDGED: (_S.SUCCEEDED, _E.NONE),
        _I.FAILURE: (_S.SUCCEEDED, _E.CONTRADICTION),
        _I.UNDRAINED_FAILURE: (_S.SUCCEEDED, _E.CONTRADICTION),
        _I.SUCCESS: (_S.SUCCEEDED, _E.NONE),
    },
}


_FAILED = RoomState.FAILED


class Handshake(Struct, gc=False):
    """The last that was heard of an endpoint in this life. The times are when it was heard here; 0: never.

    `handed_off`: its rank says that a predecessor of this sidecar has handed the notice off. `told`: the endpoint's
    last notice of this life that has ended.
    """

    endpoint: DecodeEndpoint
    session: str
    seq: int
    is_settled: bool = False
    at_s: float = 0.0
    aborted_at_s: float = 0.0
    handed_off: bool = False
    told: OwedNotice | None = None


TOLD_STATES = (RoomState.FAILED, RoomState.UNDRAINED)


class Owe(Struct, frozen=True):
    """`is_news`: decode may have a new request waiting, so an earlier hand-off does not count."""

    shaken: Handshake
    is_news: bool


class Settle(Struct, frozen=True):
    endpoint: DecodeEndpoint
    outcome: Outcome


class Reaffirm(Struct, frozen=True):
    """The rank asks again about an endpoint that is settled: its answer was lost with an earlier stream."""

    endpoint: DecodeEndpoint
    seq: int


Claim: TypeAlias = Owe | Settle | Reaffirm


class BuriedEnd(Struct, frozen=True, gc=False):
    """What is still known of the end of a life whose record was evicted: as of a Room."""

    cause: str
    concluded_at_s: float
    expires_at: float
    has_newer_life: bool
    http_status: int = 0
    is_drained: bool = True


class Room(Struct, eq=False, gc=False, weakref=False):
    """`first` is of the endpoint that was heard of first, mostly the only one: a dict for it alone would take as much
    memory as all else here. `owed` counts its notices that have not ended, `told_count` those kept that have.

    `opened_at_s`: prefill has the request. 0: only handshakes have made the life known, and it is *early*.
    `has_newer_life`: of the room at that rank, known here. `older`: the next older one. `is_reported`: it has ended,
    nothing is owed any more, and that has been noted. `is_over`: it is in no table.
    """

    key: LifeKey
    known_since_s: float = 0.0
    opened_at_s: float = 0.0
    traceparent: str = ""
    first: Handshake | None = None
    others: dict[DecodeEndpoint, Handshake] | None = None
    state: RoomState = RoomState.OPEN
    cause: str = ""
    http_status: int = 0
    concluded_at_s: float = 0.0
    end_began_at_s: float = 0.0
    end_seq: int = 0
    expires_at: float = 0.0
    has_newer_life: bool = False
    owed: int = 0
    told_count: int = 0
    is_reported: bool = False
    is_over: bool = False
    older: "Room | None" = None
    listed_at: float = 0.0

    def __repr__(self) -> str:
        return f"<Room {self.key.room}#{self.key.life} {self.state.value} endpoints={self.endpoint_count}>"

    @property
    def is_drained(self) -> bool:
        return self.state is _FAILED

    @property
    def handshakes(self) -> list[Handshake]:
        """The last of each endpoint, in the order in which they were first heard of."""
        if self.first is None:
            return []
        return [self.first, *self.others.values()] if self.others else [self.first]

    @property
    def endpoint_count(self) -> int:
        return (self.first is not None) + len(self.others or ())

    def shaken(self, endpoint: DecodeEndpoint) -> Handshake | None:
        first = self.first
        if first is not None and first.endpoint == endpoint:
            return first
        return self.others.get(endpoint) if self.others else None

    def has_place_for(self, endpoint: DecodeEndpoint) -> bool:
        return self.endpoint_count < ENDPOINT_LIMIT or self.shaken(endpoint) is not None

    @property
    def told(self) -> list[OwedNotice]:
        """Notices that have ended, of TOLD_LIMIT endpoints."""
        return [shaken.told for shaken in self.handshakes if shaken.told is not None]

    def advance(self, given: RoomInput) -> Effect:
        self.state, effect = TABLE[self.state][given]
        return effect

    def handshake(
        self, endpoint: DecodeEndpoint, session: str, seq: int, *, at_s: float = 0.0, handed_off: bool = False
    ) -> list[Claim]:
        effect = self.advance(RoomInput.HANDSHAKE)
        known = self.shaken(endpoint)
        is_news = known is None or seq > known.seq
        shaken = Handshake(endpoint, intern(session), seq, at_s=at_s, handed_off=handed_off)
        if is_news and effect is not Effect.NONE:
            self._keep(shaken, known)
        if effect is not Effect.TELL:
            return []
        if known is not None and known.is_settled and not is_news:
            return [Reaffirm(endpoint, known.seq)]
        return [Owe(shaken, is_news)]

    def aborted(self, endpoint: DecodeEndpoint, seq: int, *, at_s: float = 0.0) -> list[Claim]:
        known = self.shaken(endpoint)
        if (known is not None and seq <= known.seq) or self.advance(RoomInput.ABORTED) is not Effect.SETTLE:
            return []
        if known is None:
            known = Handshake(endpoint, "", seq)
            self._keep(known, None)
        known.seq, known.is_settled, known.aborted_at_s = seq, True, at_s
        return [Settle(endpoint, Outcome.DECODE_ABORTED)]

    def acknowledged(self, endpoint: DecodeEndpoint, seq: int) -> list[Claim]:
        """Only of an endpoint that shook hands, and only after the end: nobody else can have been told."""
        known = self.shaken(endpoint)
        if (
            known is None
            or seq <= max(known.seq, self.end_seq)
            or self.advance(RoomInput.ACKNOWLEDGED) is not Effect.SETTLE
        ):
            return []
        self.settled(endpoint, seq)
        return [Settle(endpoint, Outcome.ACKNOWLEDGED)]

    def conclude(self, given: RoomInput, cause: str, at_s: float, expires_at: float, *, http_status: int = 0) -> Effect:
        """The first cause stands, with its status; the latest expiry too: a room that drained late is owed for its
        whole time.
        """
        before = self.state
        self.state, effect = TABLE[before][given]
        if self.state is not before:
            self.is_reported = False
            if not self.cause:
                self.cause, self.http_status = intern(cause), http_status  # few are different, thousands are kept
            self.concluded_at_s = at_s
            self.expires_at = max(self.expires_at, expires_at)
        return effect

    def settled(self, endpoint: DecodeEndpoint, seq: int) -> None:
        """The endpoint is owed nothing for this life by any fact up to `seq`."""
        known = self.shaken(endpoint)
        if known is not None and known.seq <= seq:
            known.seq, known.is_settled = seq, True

    def note_owed(self) -> None:
        self.owed += 1
        self.is_reported = False

    def note_ended(self, owed: OwedNotice) -> None:
        if self.owed:  # 0: it is older than this, the life was evicted and came back
            self.owed -= 1
        known, outcome = self.shaken(owed.endpoint), owed.outcome
        if known is None:
            return
        if outcome is not None and outcome.is_settled:
            known.is_settled = True
        if known.told is None:
            if self.told_count >= TOLD_LIMIT:
                return
            self.told_count += 1
        known.told = owed

    def finish(self) -> bool:
        """Whether the life has ended without success and owes nothing, and this had not been noted yet."""
        if self.owed or self.is_reported or self.state not in TOLD_STATES:
            return False
        self.is_reported = True
        return True

    def _keep(self, shaken: Handshake, known: Handshake | None) -> None:
        """In place of the one that is known of that endpoint."""
        if known is not None:
            shaken.told = known.told
        endpoint = shaken.endpoint
        if self.first is None or self.first.endpoint == endpoint:
            self.first = shaken
        elif self.others is None:
            self.others = {endpoint: shaken}
        else:
            self.others[endpoint] = shaken
