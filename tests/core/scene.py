"""A notifier with a stand-in for the shell: it says hello, numbers facts, keeps time and answers each action."""

from collections import defaultdict
from typing import TypeVar

from sidecar.core.actions import Action, CloseEndpoint, Connect, SendNotices, SendParcels, SendReplies
from sidecar.core.keys import LifeKey, NoticeKey
from sidecar.core.limits import Limits, OutboxLimits, RoomLimits
from sidecar.core.notifier import Notifier
from sidecar.core.parcel_lane import ParcelLimits
from sidecar.model import (
    PROTOCOL,
    DecodeAborted,
    DecodeAcknowledged,
    DecodeEndpoint,
    DecodeHandshake,
    DecodeRegistered,
    Fact,
    Form,
    Goodbye,
    Hello,
    Notice,
    ParcelGiven,
    Reply,
    RoomConcluded,
    RoomOpened,
    Settled,
    SiblingDied,
    TerminalStatus,
)
from sidecar.wire.ingress import singly

E1 = DecodeEndpoint("127.0.0.1", 7001)
E2 = DecodeEndpoint("127.0.0.1", 7002)
E3 = DecodeEndpoint("127.0.0.1", 7003)
Told = TypeVar("Told", bound=Fact)

START = 1000.0
TTL_S = 300.0


def hello(
    process: str = "p",
    *,
    prefill_rank: int = 0,
    backend: str = "mooncake",
    ttl_s: float = TTL_S,
    engine: str = "engine",
) -> Hello:
    return Hello(
        PROTOCOL,
        process,
        engine,
        "prefill",
        prefill_rank,
        0,
        0,
        0,
        1,
        "0.5.18",
        backend,
        ttl_s,
        {},
        hears_hand_offs=True,
        hears_batches=True,
    )


def key(room: int, life: int, endpoint: DecodeEndpoint, process: str = "p") -> NoticeKey:
    return NoticeKey(LifeKey(process, room, life), endpoint)


class Scene:
    """`alive` are the endpoints that a connection succeeds to; a full one refuses though connected."""

    def __init__(
        self,
        *,
        rooms: RoomLimits | None = None,
        outbox: OutboxLimits | None = None,
        parcels: ParcelLimits | None = None,
        idle_exit_s: float = 0.0,
        ack_delay_s: float = 0.0,
        decode_sglang: str = "",
    ) -> None:
        limits = Limits(
            rooms=rooms or RoomLimits(),
            outbox=outbox or OutboxLimits(),
            parcels=parcels or ParcelLimits(),
            idle_exit_s=idle_exit_s,
            ack_delay_s=ack_delay_s,
            decode_sglang=decode_sglang,
        )
        self.now = START
        self.notifier = Notifier(epoch="first", limits=limits, jitter=lambda: 0.5, now=self.now)
        self.alive = {E1, E2, E3}
        self.full: set[DecodeEndpoint] = set()
        self.open: set[DecodeEndpoint] = set()
        self.up: set[DecodeEndpoint] = set()
        self.sent: list[tuple[DecodeEndpoint, int, Notice]] = []
        self.sent_keys: list[NoticeKey] = []
        self.forms: list[Form] = []
        self.carried: list[tuple[DecodeEndpoint, tuple[bytes, ...]]] = []
        self.replies: dict[int, list[Reply]] = defaultdict(list)
        self.reply_frames = 0
        self.others: list[Action] = []
        self._seq: dict[str, int] = defaultdict(int)
        self._stream = 0
        self._left: dict[str, int] = {}
        self.streams: dict[str, int] = {}

    # -- what ranks do

    def join(self, process: str = "p", said: Hello | None = None, *, engine: str = "engine") -> int:
        self._stream += 1
        self.streams[process] = self._stream
        self.notifier.receive(self._stream, [said or hello(process, engine=engine)], self.now)
        self.pump()
        return self._stream

    def leave(self, process: str = "p") -> None:
        self._left[process] = self.streams.pop(process)
        self.notifier.stream_closed(self._left[process], self.now)
        self.pump()

    def process_dies(self, process: str = "p") -> None:
        """After `leave`: the process at the other end is known to be dead."""
        self.notifier.process_died(self._left[process], self.now)
        self.pump()

    def tell(self, fact: Told, process: str = "p") -> Told:
        self.notifier.receive(self.streams[process], [fact], self.now)
        self.pump()
        return fact

    def opened(self, room: int, life: int, process: str = "p") -> RoomOpened:
        return self.tell(RoomOpened(self.seq(process), room, life), process)

    def handshake(
        self,
        room: int,
        life: int,
        endpoint: DecodeEndpoint,
        *,
        session: str = "s",
        process: str = "p",
        handed_off: bool = False,
    ) -> DecodeHandshake:
        return self.tell(DecodeHandshake(self.seq(process), room, life, endpoint, session, handed_off), process)

    def failed(
        self,
        room: int,
        life: int,
        *,
        cause: str = "gone",
        drained: bool = True,
        process: str = "p",
        at_s: float = 0.0,
        http_status: int = 0,
    ) -> RoomConcluded:
        status, seq, at_s = TerminalStatus.FAILED, self.seq(process), at_s or self.now
        said = RoomConcluded(seq, room, life, status, cause, drained, at_s, http_status=http_status)
        return self.tell(said, process)

    def succeeded(self, room: int, life: int, process: str = "p") -> RoomConcluded:
        seq = self.seq(process)
        return self.tell(RoomConcluded(seq, room, life, TerminalStatus.SUCCESS, "", True, self.now), process)

    def aborted(self, room: int, life: int, endpoint: DecodeEndpoint, process: str = "p") -> DecodeAborted:
        return self.tell(DecodeAborted(self.seq(process), room, life, endpoint), process)

    def acknowledged(self, room: int, life: int, endpoint: DecodeEndpoint, process: str = "p") -> DecodeAcknowledged:
        return self.tell(DecodeAcknowledged(self.seq(process), room, life, endpoint), process)

    def registered(
        self,
        endpoint: DecodeEndpoint,
        session: str = "s",
        process: str = "p",
        *,
        frames: int = 18,
        decode_half: str = "",
    ) -> DecodeRegistered:
        """As sglang 0.5.18 does with Mooncake, unless said otherwise."""
        return self.tell(DecodeRegistered(self.seq(process), endpoint, session, frames, decode_half), process)

    def gives(
        self, room: int, endpoint: DecodeEndpoint, *, process: str = "p", session: str = "s", status: int = 4
    ) -> ParcelGiven:
        """A status that stock would push: Success, unless said otherwise."""
        frames = (b"%d" % room, b"%d" % status, b"0")
        return self.tell(ParcelGiven(self.seq(process), room, endpoint, session, frames, self.now + 0.15), process)

    def goodbye(self, process: str = "p") -> Goodbye:
        return self.tell(Goodbye(self.seq(process)), process)

    def seq(self, process: str = "p") -> int:
        self._seq[process] += 1
        return self._seq[process]

    # -- what decode endpoints do

    def die(self, endpoint: DecodeEndpoint) -> None:
        self.alive.discard(endpoint)
        if endpoint in self.up:
            self.up.remove(endpoint)
            self.notifier.endpoint_down(endpoint, self.now)
        self.pump()

    def revive(self, endpoint: DecodeEndpoint) -> None:
        self.alive.add(endpoint)
        self._come_up(endpoint)
        self.pump()

    # -- time and the pump

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while (deadline := self.notifier.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.notifier.handle_timer(self.now)
            self.pump()
        self.now = until
        self.notifier.handle_timer(self.now)
        self.pump()

    def pump(self) -> None:
        while actions := self.notifier.take_actions():
            for action in actions:
                self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Connect(endpoint):
                assert endpoint not in self.open, "asked to connect twice"
                self.open.add(endpoint)
                self._come_up(endpoint)
            case CloseEndpoint(endpoint):
                self.open.remove(endpoint)
                self.up.discard(endpoint)
            case SendNotices():
                self._send(action)
            case SendParcels():
                self._carry(action)
            case SendReplies(stream, messages):
                self.reply_frames += len(messages)
                self.replies[stream] += singly(messages)
            case _:
                self.others.append(action)

    def _send(self, action: SendNotices) -> None:
        takes = action.endpoint in self.up and action.endpoint not in self.full
        taken = action.offers if takes else []
        self.sent += [(action.endpoint, owed.life.room, owed.notice) for owed in taken]
        self.sent_keys += [owed.key for owed in taken]
        self.forms += [owed.form for owed in taken]
        self.notifier.attempted([(action, len(taken))], self.now)

    def _carry(self, action: SendParcels) -> None:
        takes = action.endpoint in self.up and action.endpoint not in self.full
        taken = action.parcels if takes else []
        self.carried += [(action.endpoint, parcel.frames) for parcel in taken]
        self.notifier.parcels_attempted(action, len(taken), self.now)

    def _come_up(self, endpoint: DecodeEndpoint) -> None:
        if endpoint in self.open & self.alive and endpoint not in self.up:
            self.up.add(endpoint)
            self.notifier.endpoint_up(endpoint, self.now)

    # -- what came of it

    def told(self) -> list[tuple[DecodeEndpoint, int]]:
        """Endpoint and room of everything sent since the last look."""
        told = [(endpoint, room) for endpoint, room, _ in self.sent]
        self.sent.clear()
        return told

    def settled(self, process: str = "p") -> list[Settled]:
        """Without the number of the handshake."""
        replies = self.replies[self.streams[process]]
        return [Settled(one.room, one.life, one.endpoint) for one in replies if isinstance(one, Settled)]

    def asked_to_end(self, process: str = "p") -> bool:
        """Whether the rank was told that another one of its engine has died."""
        return any(isinstance(one, SiblingDied) for one in self.replies[self.streams[process]])

    def ended(self) -> dict[str, int]:
        return dict(self.notifier.stats.notices_ended)
