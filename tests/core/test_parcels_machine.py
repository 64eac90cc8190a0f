"""Parcels under any order of what ranks, decode endpoints and time do: at least once, in order, never what is void."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sidecar.core.actions import SendParcels
from sidecar.model import DecodeEndpoint, ParcelGiven
from tests.core.budget import BUDGET
from tests.core.scene import E1, E2, TTL_S, Scene

ENDPOINTS = st.sampled_from((E1, E2))
ROOMS = st.integers(1, 3)


class Watched(Scene):
    """Each parcel's frames name it: the room and its number."""

    def __init__(self, machine: "ParcelMachine") -> None:
        super().__init__()
        self._machine = machine

    def _carry(self, action: SendParcels) -> None:
        before = len(self.carried)
        super()._carry(action)
        self._machine.note_sent([int(frames[2]) for _, frames in self.carried[before:]])


class ParcelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, ParcelGiven] = {}
        self.void: set[int] = set()
        self.sent: dict[int, int] = {}
        self.last_sent: dict[DecodeEndpoint, int] = {}
        self.sessions = {E1: "s0", E2: "s0"}
        self.serial = 0
        self.scene = Watched(self)
        self.scene.join()
        for endpoint in (E1, E2):
            self.scene.registered(endpoint, "s0")

    def note_sent(self, numbers: list[int]) -> None:
        for number in numbers:
            parcel = self.given[number]
            assert number not in self.void, "sent though it is void"
            if number not in self.sent:
                assert number > self.last_sent.get(parcel.endpoint, 0), "overtaken"
                self.last_sent[parcel.endpoint] = number
            self.sent[number] = self.sent.get(number, 0) + 1

    @rule(room=ROOMS, endpoint=ENDPOINTS)
    def give(self, room: int, endpoint: DecodeEndpoint) -> None:
        seq = self.scene.seq()
        frames = (b"%d" % room, b"4", b"%d" % seq)
        take_by_s = self.scene.now + 0.15
        self.given[seq] = ParcelGiven(seq, room, endpoint, self.sessions[endpoint], frames, take_by_s)
        self.scene.tell(self.given[seq])

    @rule(room=ROOMS, endpoint=ENDPOINTS)
    def shake_hands(self, room: int, endpoint: DecodeEndpoint) -> None:
        self.void |= {seq for seq, each in self.given.items() if (each.room, each.endpoint) == (room, endpoint)}
        self.serial += 1
        self.scene.handshake(room, self.serial, endpoint, session=self.sessions[endpoint])

    @rule(endpoint=ENDPOINTS)
    def restart(self, endpoint: DecodeEndpoint) -> None:
        self.void |= {seq for seq, each in self.given.items() if each.endpoint == endpoint}
        self.serial += 1
        self.sessions[endpoint] = f"s{self.serial}"
        self.scene.die(endpoint)
        self.scene.registered(endpoint, self.sessions[endpoint])

    @rule(endpoint=ENDPOINTS)
    def die(self, endpoint: DecodeEndpoint) -> None:
        self.scene.die(endpoint)

    @rule(endpoint=ENDPOINTS)
    def revive(self, endpoint: DecodeEndpoint) -> None:
        self.scene.full.discard(endpoint)
        self.scene.revive(endpoint)

    @rule(endpoint=ENDPOINTS)
    def freeze(self, endpoint: DecodeEndpoint) -> None:
        self.scene.full.add(endpoint)

    @rule(seconds=st.sampled_from((0.01, 0.5, 7.0)))
    def wait(self, seconds: float) -> None:
        self.scene.advance(seconds)

    @invariant()
    def nothing_is_kept_that_is_void(self) -> None:
        assert len(self.scene.notifier.parcels) <= len(self.given) - len(self.void)

    def teardown(self) -> None:
        """Whoever is still to hear of it has, once all is well; and nothing is left behind."""
        young = {seq for seq, each in self.given.items() if each.take_by_s + TTL_S - 60.0 > self.scene.now}
        for endpoint in (E1, E2):
            self.revive(endpoint)
        self.scene.advance(30.0)

        assert young - self.void <= set(self.sent)
        assert len(self.scene.notifier.parcels) == 0
        assert repr(self.scene.notifier.parcels) == "<Parcels 0 to 0 endpoints>"


TestParcels = ParcelMachine.TestCase
TestParcels.settings = settings(BUDGET, max_examples=max(30, BUDGET.max_examples // 2))
