"""The vocabulary: what engines say (facts), what the sidecar answers (replies), what decode is owed (`notices.py`).

Values only. A *room* is sglang's `bootstrap_room`, which is reused; a *life* is one use of it at one rank. Lives are
numbered by the rank's process, always upwards, so (process, room, life) names one request at one rank for good.
"""

import enum
from typing import TypeAlias

from msgspec import Struct

from sidecar.notices import DecodeEndpoint as DecodeEndpoint  # noqa: PLC0414 - to be had from here
from sidecar.notices import Form as Form  # noqa: PLC0414 - to be had from here
from sidecar.notices import Notice as Notice  # noqa: PLC0414 - to be had from here

PROTOCOL = 1
"""Version of the stream between hooks and sidecar. A reader refuses other versions by name."""

ROOM_LIMIT = 2**63
"""sglang draws `bootstrap_room` below this."""

TOKENIZER = "tokenizer"
"""Role of a prefill server's main process: it accepts or refuses a request before any rank sees it."""

PARCEL_FRAMES_LIMIT = 8
PARCEL_BYTES_LIMIT = 8192
"""Of one parcel. sglang's own have three to five frames, and no more than a cause in them that can be long."""


class TerminalStatus(enum.Enum):
    """The two ends of a life (sglang `KVPoll.Failed`, `KVPoll.Success`)."""

    FAILED = "failed"
    SUCCESS = "success"


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """First frame of every stream: who speaks. `process` is drawn once per rank process and survives reconnects.

    `engine` is equal for all ranks of one server on a host. `prefill_rank` is sglang's `prefill_unique_rank`.
    `hooks` holds the verdict for each hook point, because sglang only logs a hook that did not apply.
    `record_ttl_s` is max(bootstrap timeout, waiting timeout, 300). `facts_dropped` counts what has not fitted the
    queue since this process began; a replay made good for it. `hears_hand_offs`: it takes HandedOff replies.
    `hears_refusals`: it takes what concerns requests that are refused before a rank sees them. `uncovered`: of which of
    those nobody can tell decode here, and why. `hears_batches`: it takes replies that speak of many notices at once.
    `rings`: it can ring a doorbell, if one comes with the welcome. `shares_memory`: and write to memory, likewise.

    Of a tokenizer process the ranks are 0 and mean nothing.
    """

    protocol: int
    process: str
    engine: str
    role: str
    prefill_rank: int
    tp_rank: int
    pp_rank: int
    dp_rank: int
    pid: int
    sglang: str
    backend: str
    record_ttl_s: float
    hooks: dict[str, str]
    facts_dropped: int = 0
    hears_hand_offs: bool = False
    hears_refusals: bool = False
    uncovered: tuple[str, ...] = ()
    hears_batches: bool = False
    rings: bool = False
    shares_memory: bool = False


class RoomOpened(Struct, frozen=True, array_like=True, tag="opened", gc=False):
    """A sender was made for the room (`CommonKVSender.__init__`): older lives may no longer be used against it.

    `traceparent`: the span of the request in sglang's own trace (W3C), "" where it is not traced.
    """

    seq: int
    room: int
    life: int
    traceparent: str = ""


class DecodeHandshake(Struct, frozen=True, array_like=True, tag="handshake", gc=False):
    """A non-dummy decode endpoint sent its metadata for the room, before or after that life ended.

    `handed_off`: in a replay, the sidecar's last HandedOff for this handshake stands.
    """

    seq: int
    room: int
    life: int
    endpoint: DecodeEndpoint
    session: str
    handed_off: bool = False


class RoomConcluded(Struct, frozen=True, array_like=True, tag="concluded", gc=False):
    """The life ended at this rank. `at_s` is the host's monotonic clock. `began_at_s` is when an abort or an error
    began the end, 0 if not known: drain and agreement lie between the two.

    FAILED and `drained`: this rank writes nothing more for it, so decode may be told. FAILED and not `drained`: the
    drain timeout passed first; only a decode that holds its pages itself may be told.

    `http_status` goes with the cause: what prefill's own client was answered, 0 if not known.
    """

    seq: int
    room: int
    life: int
    status: TerminalStatus
    cause: str
    drained: bool
    at_s: float
    began_at_s: float = 0.0
    http_status: int = 0


class DecodeAborted(Struct, frozen=True, array_like=True, tag="aborted"):
    """Decode's own ABORT for the room arrived at prefill: that endpoint has given this life up and is owed nothing."""

    seq: int
    room: int
    life: int
    endpoint: DecodeEndpoint


class DecodeAcknowledged(Struct, frozen=True, array_like=True, tag="acknowledged"):
    """Decode's own half said that it took the notice for the room (`wire/decode_half.py`): that endpoint knows."""

    seq: int
    room: int
    life: int
    endpoint: DecodeEndpoint


class DecodeRegistered(Struct, frozen=True, array_like=True, tag="registered"):
    """Decode registered its KV buffers (`KVArgsRegisterInfo`). A new `session` at a known endpoint is a restarted
    decode.

    `frames` is the length of the message as stock sends it, a guard frame included and padding of ours not: by it
    sglang versions differ. `decode_half` is what decode's own half of this project announced with it, the sglang that
    it runs in or another word, "" without one.
    """

    seq: int
    endpoint: DecodeEndpoint
    session: str
    frames: int
    decode_half: str = ""


class RoomRefused(Struct, frozen=True, array_like=True, tag="refused"):
    """From a tokenizer process: at `at_s` of the host's monotonic clock it refused a request with that room, and no
    rank will see it."""

    seq: int
    room: int
    cause: str
    http_status: int
    at_s: float


class RoomQueried(Struct, frozen=True, array_like=True, tag="queried"):
    """From a rank: a handshake came for a room that has ended. Has the engine's tokenizer process accepted a new
    request with it?"""

    seq: int
    room: int


class RoomAnswered(Struct, frozen=True, array_like=True, tag="answered"):
    """From a tokenizer process, asked for what it knows of a room: the fields of RoomEnded."""

    seq: int
    room: int
    as_of_s: float
    accepted_at_s: float
    refused_until_s: float
    cause: str
    http_status: int


class ParcelGiven(Struct, frozen=True, array_like=True, tag="parcel"):
    """A status message that stock was about to push itself, for the sidecar to hand off in its place: its `frames` as
    they are. `room` is what it speaks of, `session` what the endpoint had registered with.

    `take_by_s` of the host's monotonic clock: whoever reads this later leaves it, the rank has it pushed by stock.
    """

    seq: int
    room: int
    endpoint: DecodeEndpoint
    session: str
    frames: tuple[bytes, ...]
    take_by_s: float


class Goodbye(Struct, frozen=True, array_like=True, tag="goodbye"):
    """The rank ends in order; the end of its stream is no news."""

    seq: int


Fact: TypeAlias = (
    RoomOpened
    | DecodeHandshake
    | RoomConcluded
    | DecodeAborted
    | DecodeAcknowledged
    | DecodeRegistered
    | Goodbye
    | RoomRefused
    | RoomQueried
    | RoomAnswered
    | ParcelGiven
)
Upward: TypeAlias = Hello | Fact


class Welcome(Struct, frozen=True, array_like=True, tag="welcome"):
    """Answer to a hello. A new `epoch` is a new sidecar: it knows nothing yet and is sent what still lives.

    `hears_refusals`: it takes the facts of a tokenizer process, which an older one would break the stream over.
    `takes_parcels`: and ParcelGiven, likewise. `doorbell`: the stream is read when the eventfd rings that comes with
    this message (SCM_RIGHTS), when it ends, and now and then. `shares_memory`: and what the rank says from now on is
    read from the memory that comes with it (`wire/memory_pipe.py`).
    """

    protocol: int
    epoch: str
    hears_refusals: bool = False
    takes_parcels: bool = False
    doorbell: bool = False
    shares_memory: bool = False


class Accepted(Struct, frozen=True, array_like=True, tag="accepted"):
    """Every fact up to and including `seq` is held by the sidecar."""

    seq: int


class HandedOff(Struct, frozen=True, array_like=True, tag="handed_off", gc=False):
    """The notice for the handshake of number `seq` has left the sidecar on a connection that was up, so a successor
    need not tell it again unless it cannot connect. Not `stands`: that word is taken back, the connection broke.

    Said only to a rank whose hello `hears_hand_offs`.
    """

    room: int
    life: int
    endpoint: DecodeEndpoint
    seq: int
    stands: bool = True


class Settled(Struct, frozen=True, array_like=True, tag="settled", gc=False):
    """The endpoint is owed nothing more for that life by any handshake up to `seq`: a successor need not be told of it.

    `seq` 0: the sidecar is older than that field, and means the last handshake it knew.
    """

    room: int
    life: int
    endpoint: DecodeEndpoint
    seq: int = 0


Answered: TypeAlias = tuple[int, int, DecodeEndpoint, int]  # of a handshake: room, life, endpoint and its number


class HandedOffBatch(Struct, frozen=True, array_like=True, tag="handed_off_batch"):
    """HandedOff of many handshakes. Said only to a rank whose hello `hears_batches`, else each is said by itself."""

    handshakes: list[Answered]
    stands: bool = True

    def each(self) -> list[HandedOff]:
        return [HandedOff(*handshake, self.stands) for handshake in self.handshakes]


class SettledBatch(Struct, frozen=True, array_like=True, tag="settled_batch"):
    """Settled of many handshakes, as HandedOffBatch is of HandedOff."""

    handshakes: list[Answered]

    def each(self) -> list[Settled]:
        return [Settled(*handshake) for handshake in self.handshakes]


class SiblingDied(Struct, frozen=True, array_like=True, tag="sibling_died"):
    """Another rank of this engine is dead, without a goodbye: no request here can be completed any more. The rank ends
    all of them, each once it is drained, since its scheduler waits for the dead one in a collective."""


class TokenizerJoined(Struct, frozen=True, array_like=True, tag="tokenizer_joined"):
    """To a rank: the engine's tokenizer process can be asked about rooms (RoomQueried)."""


class RoomQuery(Struct, frozen=True, array_like=True, tag="query"):
    """To a tokenizer process: a rank asks about that room. RoomAnswered is the answer."""

    room: int


class RoomEnded(Struct, frozen=True, array_like=True, tag="ended"):
    """To a rank, what the tokenizer process knew of a room at `as_of_s` of the host's monotonic clock.

    `accepted_at_s`: when it accepted the request with that room which it has now, 0 without one. `refused_until_s`: up
    to then the last word on that room was a refusal, for that cause; 0: it was none.
    """

    room: int
    as_of_s: float
    accepted_at_s: float
    refused_until_s: float
    cause: str
    http_status: int


class ParcelsTaken(Struct, frozen=True, array_like=True, tag="parcels_taken"):
    """Every parcel up to `seq` that was not refused is in the sidecar's care and has had its first attempt, if decode
    was connected. `ended`: those that need no care any more, so that a successor need not have them."""

    seq: int
    ended: tuple[int, ...] = ()


class ParcelRefused(Struct, frozen=True, array_like=True, tag="parcel_refused"):
    """The rank has to have it pushed by stock."""

    seq: int
    reason: str


class SpaceFreed(Struct, frozen=True, array_like=True, tag="space_freed"):
    """The memory that the rank writes to was full, or nearly so. Only to a rank that `shares_memory`."""


class Refusal(Struct, frozen=True, array_like=True, tag="refusal"):
    """The stream is not served. `reason` says what was wrong and what to do; the stream is closed after it."""

    reason: str


SingleReply: TypeAlias = (
    Welcome
    | Accepted
    | HandedOff
    | Settled
    | SiblingDied
    | Refusal
    | TokenizerJoined
    | RoomQuery
    | RoomEnded
    | ParcelsTaken
    | ParcelRefused
    | SpaceFreed
)
Reply: TypeAlias = SingleReply | HandedOffBatch | SettledBatch
