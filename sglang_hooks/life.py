"""One life of a room at one prefill rank. Pure."""

from enum import Enum

from msgspec import Struct, field

from sidecar.model import DecodeEndpoint

ENDPOINT_LIMIT = 1_024
"""Of one life: as many as a sidecar takes. Each prefill rank hears from a few dozen decode ranks at most."""


class Verdict(Enum):
    """What all ranks agreed on for an ending life. Sticky: under PP the engine polls twice."""

    FAILED = "failed"
    SUCCESS = "success"


class Joined(Struct, gc=False):
    """The last handshake of an endpoint in a life: its session, the number of the fact that told it, and when it
    came. `is_owed`: the sidecar has not reported it settled. `is_handed_off`: its last word is that the notice has left
    it."""

    session: str
    seq: int
    at_s: float = 0.0
    is_owed: bool = True
    is_handed_off: bool = False


class Life(Struct, eq=False, gc=False):
    """One request at this rank, from its sender to its end. Before that it may be *early*: only decode has it.

    `put` and `finished` count transfer chunks (FastQueue): drained means that a transfer worker has finished all
    that were put. `succeeded` is this rank's own Success, pushed to decode by stock. `ending` is set before the end
    is final, `concluded` when it is. `previous` is the room's last life if that one
    failed. `early_since_s`: when decode came before prefill's request, else 0. `released`: the engine has cleared the
    sender; all that is missing for the end is the drain.

    A life may also end without a sender: refused by the scheduler, or *at the door*, by the engine's tokenizer process.
    `opened_at_s`: when this rank had the request, or the door refused it; older requests with that room are over.
    `http_status` goes with the cause, 0: not known. `traceparent`: of the request, where sglang traces it.

    Nothing of it is known to Python's search for cycles, of which there are none here: the engine's would have more to
    do, and more often, for thousands of lives.
    """

    room: int
    number: int
    opened_seq: int = 0
    concluded_seq: int = 0
    endpoints: dict[DecodeEndpoint, Joined] = field(default_factory=dict)
    previous: int | None = None
    early_since_s: float = 0.0
    put: int = 0
    finished: int = 0
    ending: bool = False
    ending_since_s: float = 0.0
    cause: str = ""
    succeeded: bool = False
    verdict: Verdict | None = None
    released: bool = False
    concluded: bool = False
    drained_in_time: bool = True
    concluded_at_s: float = 0.0
    opened_at_s: float = 0.0
    at_door: bool = False
    http_status: int = 0
    traceparent: str = ""

    @property
    def is_drained(self) -> bool:
        return self.finished >= self.put

    @property
    def owed(self) -> list[DecodeEndpoint]:
        return [endpoint for endpoint, joined in self.endpoints.items() if joined.is_owed]

    @property
    def owes(self) -> bool:
        for joined in self.endpoints.values():  # noqa: SIM110 - any() of a generator takes thrice as long
            if joined.is_owed:
                return True
        return False

    def has_place_for(self, endpoint: DecodeEndpoint) -> bool:
        return len(self.endpoints) < ENDPOINT_LIMIT or endpoint in self.endpoints

    def join(self, endpoint: DecodeEndpoint, session: str, *, seq: int = 0, at_s: float = 0.0) -> None:
        self.endpoints[endpoint] = Joined(session, seq, at_s)

    def owe_no_more(self, endpoint: DecodeEndpoint) -> None:
        if (joined := self.endpoints.get(endpoint)) is not None:
            joined.is_owed = False

    def note_hand_off(self, endpoint: DecodeEndpoint, seq: int, *, stands: bool) -> None:
        """Of the notice for the handshake of that number: a newer one has not been answered by it."""
        joined = self.endpoints.get(endpoint)
        if joined is not None and joined.seq == seq:
            joined.is_handed_off = stands

    def settle(self, endpoint: DecodeEndpoint, seq: int) -> None:
        """For handshakes up to that number, 0: whatever the last one was."""
        joined = self.endpoints.get(endpoint)
        if joined is not None and (seq == 0 or joined.seq <= seq):
            joined.is_owed = False
