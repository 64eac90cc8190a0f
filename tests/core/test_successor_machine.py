"""Sidecars that are killed at any moment, over decode endpoints that lose what a sidecar had not yet given away.

By rule-based machine: every room reaches its endpoint in the end, and nobody is told twice as long as nothing breaks.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sidecar.core.actions import SendNotices
from sidecar.core.hand_offs import DELAY_S
from sidecar.model import DecodeEndpoint, DecodeHandshake, Fact, HandedOff, Reply, RoomConcluded, Settled
from tests.core.budget import BUDGET
from tests.core.scene import E1, E2, E3, Scene, hello

ENDPOINTS = (E1, E2, E3)
endpoints = st.sampled_from(ENDPOINTS)
BETWEEN_S = DELAY_S / 2
"""By when libzmq's thread has given a message to the kernel, for sure: a killed process takes younger ones with it."""


class Telling(Scene):
    """Notes when a notice was handed off."""

    def __init__(self, machine: "SuccessorMachine") -> None:
        super().__init__()
        self._machine = machine

    def _send(self, action: SendNotices) -> None:
        before = len(self.sent_keys)
        super()._send(action)
        for key in self.sent_keys[before:]:
            self._machine.told(key.life.room, self.now)


class SuccessorMachine(RuleBasedStateMachine):
    """A rank with a room for each life. It knows what it was told on its stream, like the plugin's tables do."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = self.start(now=1000.0)
        self.facts: dict[int, tuple[DecodeHandshake, RoomConcluded]] = {}
        self.at: dict[int, DecodeEndpoint] = {}
        self.handed_off: set[int] = set()
        self.settled: set[int] = set()
        self.reached: dict[int, float] = {}
        self.times: dict[int, int] = {}
        self.is_calm = True
        self.excused: set[int] = set()
        self.read = 0

    def start(self, *, now: float) -> Telling:
        scene = Telling(self)
        scene.now = now
        scene.join(said=hello(ttl_s=1e6))
        return scene

    def told(self, room: int, now: float) -> None:
        self.reached[room] = now
        self.times[room] = self.times.get(room, 0) + 1

    def hear(self) -> None:
        replies: list[Reply] = self.scene.replies[self.scene.streams["p"]]
        for reply in replies[self.read :]:
            match reply:
                case HandedOff(room, _, _, _, True):
                    self.handed_off.add(room)
                case HandedOff(room):
                    self.handed_off.discard(room)
                case Settled(room):
                    self.settled.add(room)
        self.read = len(replies)

    # -- rules

    @initialize(is_calm=st.booleans())
    def choose_a_world(self, is_calm: bool) -> None:
        """In a calm one nothing breaks, so nobody is told twice but of a moment before a kill."""
        self.is_calm = is_calm

    @rule(endpoint=endpoints)
    def fail_a_room(self, endpoint: DecodeEndpoint) -> None:
        room = len(self.facts) + 1
        self.at[room] = endpoint
        shaken = self.scene.handshake(room, 1, endpoint)
        self.facts[room] = (shaken, self.scene.failed(room, 1))

    @rule(seconds=st.sampled_from([DELAY_S / 4, DELAY_S, 0.5, 1.0, 4.9, 5.0]))
    def wait(self, seconds: float) -> None:
        self.scene.advance(seconds)

    @precondition(lambda self: not self.is_calm)
    @rule(endpoint=endpoints)
    def break_connection(self, endpoint: DecodeEndpoint) -> None:
        """What was on its way is lost, unless it is too old for that."""
        for room, at in list(self.reached.items()):
            if self.at[room] == endpoint and at + 4.5 > self.scene.now and room not in self.settled:
                del self.reached[room]
        self.scene.die(endpoint)

    @rule(endpoint=endpoints)
    def revive(self, endpoint: DecodeEndpoint) -> None:
        self.scene.revive(endpoint)

    @precondition(lambda self: not self.is_calm)
    @rule(endpoint=endpoints, is_full=st.booleans())
    def fill(self, endpoint: DecodeEndpoint, is_full: bool) -> None:
        (self.scene.full.add if is_full else self.scene.full.discard)(endpoint)

    @rule()
    def kill(self) -> None:
        """The rank replays to a successor what it knows; it reads what was written before."""
        self.hear()
        for room, at in list(self.reached.items()):
            if at + DELAY_S > self.scene.now:
                self.excused.add(room)
            if at + BETWEEN_S > self.scene.now:
                del self.reached[room]
        alive, full = self.scene.alive, self.scene.full
        self.scene = self.start(now=self.scene.now)
        self.scene.alive, self.scene.full, self.read = alive, full, 0
        for room, (shaken, concluded) in self.facts.items():
            if room not in self.settled:
                replayed: list[Fact] = [_vouched(shaken, handed_off=room in self.handed_off), concluded]
                for fact in replayed:
                    self.scene.tell(fact)

    def teardown(self) -> None:
        for endpoint in ENDPOINTS:
            self.scene.full.discard(endpoint)
            self.scene.revive(endpoint)
        self.scene.advance(30.0)

        assert self.reached.keys() == self.facts.keys(), "lost"
        again = {room for room, times in self.times.items() if times > 1}
        assert not self.is_calm or again <= self.excused, "told twice without need"


def _vouched(shaken: DecodeHandshake, *, handed_off: bool) -> DecodeHandshake:
    return DecodeHandshake(shaken.seq, shaken.room, shaken.life, shaken.endpoint, shaken.session, handed_off)


TestSuccessors = SuccessorMachine.TestCase
TestSuccessors.settings = BUDGET
