"""The whole core against a naive model, by rule-based machine: what is owed, and that nothing is sent after it ended.

The long run of the claim: `PD_SIDECAR_LONG=1`, 2,000 examples of 100 steps.
"""

from collections import Counter, defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.core.actions import Action, SendNotices
from sidecar.core.keys import LifeKey, NoticeKey
from sidecar.core.limits import OutboxLimits
from sidecar.core.owed import OwedNotice
from sidecar.core.room import RoomState
from sidecar.model import DecodeEndpoint, DecodeHandshake, Form
from tests.core.budget import BUDGET
from tests.core.naive import HOLDERS, Life, Told
from tests.core.scene import E1, E2, E3, TTL_S, Scene

SETTLE_AFTER_S = 5.0
processes = st.sampled_from(["p", "q"])
rooms = st.sampled_from([1, 2])
endpoints = st.sampled_from([E1, E2, E3])


class Watched(Scene):
    """Checks each send against the model before it is answered."""

    def __init__(self, model: "NotifierMachine", **limits: object) -> None:
        super().__init__(**limits)  # type: ignore[arg-type]
        self._model = model

    def _perform(self, action: Action) -> None:
        if isinstance(action, SendNotices):
            for owed in action.offers:
                self._model.check_send(owed)
        super()._perform(action)

    def _send(self, action: SendNotices) -> None:
        before = len(self.sent_keys)
        super()._send(action)
        for key in self.sent_keys[before:]:
            self._model.note_hand_off(key)
        if len(self.sent_keys) - before < len(action.offers) and action.endpoint in self.up:
            self._model.note_refusal(action.endpoint)


class NotifierMachine(RuleBasedStateMachine):
    is_bounded = False

    def __init__(self) -> None:
        super().__init__()
        self.scene = self.make_scene()
        self.lives: dict[LifeKey, Life] = {}
        self.history: dict[str, list[Told]] = {"p": [], "q": []}
        self.newest: dict[tuple[str, int], int] = {}
        self.heard_at: dict[DecodeEndpoint, float] = {}
        self.broke_at: dict[DecodeEndpoint, float] = {}
        self.ignored: set[tuple[str, DecodeHandshake]] = set()
        # For good: a life that was pushed out by a bound may be known again after its end has had its time.
        self.shook: defaultdict[LifeKey, set[DecodeEndpoint]] = defaultdict(set)
        for process in ("p", "q"):
            self.scene.join(process)
            for endpoint in (E1, E3):
                self.scene.registered(endpoint, process=process, frames=20 if endpoint in HOLDERS else 19)

    def make_scene(self) -> Watched:
        return Watched(self, outbox=OutboxLimits(settle_after_s=SETTLE_AFTER_S, idle_close_s=60.0))

    # -- the model

    def life(self, process: str, room: int, number: int) -> Life:
        return self.lives.setdefault(LifeKey(process, room, number), Life())

    def of_room(self, key: LifeKey) -> list[tuple[int, Life]]:
        same = [(k.life, life) for k, life in self.lives.items() if (k.process, k.room) == (key.process, key.room)]
        return sorted(same, key=lambda pair: pair[0])

    def check_send(self, action: OwedNotice) -> None:
        life = self.lives[action.key.life]
        self.check_form(action)
        if self.is_bounded:
            assert life.end == "failed" or (life.end == "undrained" and action.endpoint in HOLDERS)
            assert self.scene.now < life.at_s + TTL_S
            assert action.endpoint in self.shook[action.key.life]
            return
        assert action.endpoint in life.owes(self.scene.now), "sent though nothing is owed"
        for number, newer in self.of_room(action.key.life):
            if number > action.key.life.life:
                assert action.endpoint not in newer.seen, "an old record was used against a newer life"
                is_early = newer.early_since is not None
                assert is_early or action.endpoint not in life.tried, "sent again though a newer life is open"

    def check_form(self, action: OwedNotice) -> None:
        """More than the bare notice only for a decode that is known to take it, and known to be still there."""
        endpoint = action.endpoint
        is_in_doubt = self.broke_at.get(endpoint, 0.0) > self.heard_at.get(endpoint, 0.0)
        assert action.form is Form.BARE or (endpoint in HOLDERS and not is_in_doubt)

    def note_hand_off(self, key: NoticeKey) -> None:
        life = self.lives[key.life]
        life.handed[key.endpoint] = self.scene.now
        life.tried.add(key.endpoint)
        if key.endpoint in life.once:
            life.free(key.endpoint)

    def note_refusal(self, endpoint: DecodeEndpoint) -> None:
        """The connection takes no more: whether what it took has been read is open again."""
        for life in self.lives.values():
            if endpoint in life.handed:
                life.handed[endpoint] = self.scene.now

    def forget_expired(self) -> None:
        """What has had its time is known to nobody, and no rank replays it."""
        for key, life in list(self.lives.items()):
            is_past = life.end in ("failed", "undrained") and life.at_s + TTL_S <= self.scene.now
            is_early = life.early_since is not None and life.end is None
            if is_past or (is_early and (life.early_since or 0.0) + TTL_S <= self.scene.now):
                del self.lives[key]
                self.history[key.process] = [
                    fact for fact in self.history[key.process] if (fact.room, fact.life) != (key.room, key.life)
                ]

    def settle_held_up(self) -> None:
        self.forget_expired()
        for life in self.lives.values():
            for endpoint, at in list(life.handed.items()):
                if endpoint in self.scene.up and at + SETTLE_AFTER_S <= self.scene.now:
                    life.free(endpoint)

    # -- rules: facts

    def remember(self, process: str, fact: Told) -> None:
        self.history[process].append(fact)

    def forget_ignored(self, process: str, room: int, endpoint: DecodeEndpoint) -> None:
        """Decode has given the room up, and what came before that counts no more, whatever is forgotten meanwhile."""
        gone = {one for one in self.ignored if one[0] == process and (one[1].room, one[1].endpoint) == (room, endpoint)}
        self.ignored -= gone
        self.history[process] = [fact for fact in self.history[process] if (process, fact) not in gone]

    @rule(process=processes, room=rooms)
    def open_next_life(self, process: str, room: int) -> None:
        number = self.newest.get((process, room), 0) + 1
        self.newest[process, room] = number
        self.life(process, room, number).open()
        for older_number, older in self.of_room(LifeKey(process, room, number)):
            if older_number < number:
                for endpoint in list(older.tried):
                    older.free(endpoint)
                older.once |= older.owes(self.scene.now)
        self.remember(process, self.scene.opened(room, number, process))

    @rule(process=processes, room=rooms, endpoint=endpoints)
    def come_early(self, process: str, room: int, endpoint: DecodeEndpoint) -> None:
        """Decode shakes hands for a life that prefill has not opened."""
        number = self.newest.get((process, room), 0) + 1
        key = LifeKey(process, room, number)
        life = self.life(process, room, number)
        life.meet(self.scene.now)
        self.shook[key].add(endpoint)
        for older_number, older in self.of_room(key):
            if older_number < number:
                older.free(endpoint)
        life.seen.add(endpoint)
        life.free(endpoint)
        life.waiting[endpoint] = "s"
        self.heard_at[endpoint] = self.scene.now
        self.remember(process, self.scene.handshake(room, number, endpoint, process=process))

    @rule(process=processes, room=rooms, back=st.integers(0, 2), endpoint=endpoints)
    def shake_hands(self, process: str, room: int, back: int, endpoint: DecodeEndpoint) -> None:
        number = max(1, self.newest.get((process, room), 1) - back)
        key = LifeKey(process, room, number)
        self.newest.setdefault((process, room), 1)
        self.life(process, room, number)
        self.shook[key].add(endpoint)
        counts = self.take_handshake(key, endpoint)
        fact = self.scene.handshake(room, number, endpoint, process=process)
        self.remember(process, fact)
        if not counts:
            self.ignored.add((process, fact))

    def take_handshake(self, key: LifeKey, endpoint: DecodeEndpoint) -> bool:
        """Whether it counts: not if the endpoint has spoken of a newer life."""
        self.heard_at[endpoint] = self.scene.now
        others = self.of_room(key)
        if any(n > key.life and endpoint in other.seen for n, other in others):
            return False
        for n, other in others:
            if n < key.life:
                other.free(endpoint)
        life = self.life(key.process, key.room, key.life)
        life.meet(self.scene.now)
        if life.end != "success":
            life.seen.add(endpoint)
            life.free(endpoint)
            life.waiting[endpoint] = "s"
            if endpoint in life.owes(self.scene.now) and any(n > key.life for n, _ in others):
                life.once.add(endpoint)
        return True

    @rule(process=processes, room=rooms, back=st.integers(0, 2), drained=st.booleans())
    def fail(self, process: str, room: int, back: int, drained: bool) -> None:
        number = max(1, self.newest.get((process, room), 1) - back)
        self.newest.setdefault((process, room), 1)
        life = self.life(process, room, number)
        life.early_since = None
        if life.end is None or (life.end == "undrained" and drained):
            owed_before = life.owes(self.scene.now)
            life.end = "failed" if drained else "undrained"
            life.at_s = self.scene.now
            if any(n > number for n, _ in self.of_room(LifeKey(process, room, number))):
                life.once |= life.owes(self.scene.now) - owed_before
        # A rank that says it again says the same time.
        at_s = life.at_s or self.scene.now
        self.remember(process, self.scene.failed(room, number, drained=drained, process=process, at_s=at_s))

    @rule(process=processes, room=rooms)
    def succeed(self, process: str, room: int) -> None:
        number = self.newest.setdefault((process, room), 1)
        life = self.life(process, room, number)
        life.early_since = None
        life.end = life.end or "success"
        self.remember(process, self.scene.succeeded(room, number, process))

    @rule(process=processes, room=rooms, back=st.integers(0, 1), endpoint=endpoints)
    def abort(self, process: str, room: int, back: int, endpoint: DecodeEndpoint) -> None:
        number = max(1, self.newest.get((process, room), 1) - back)
        known = self.lives.get(LifeKey(process, room, number))
        self.forget_ignored(process, room, endpoint)
        for older_number, older in self.of_room(LifeKey(process, room, number)):
            if older_number < number:
                older.free(endpoint)
        if known is not None:
            known.free(endpoint)
            if known.end != "success":
                known.seen.add(endpoint)
        self.remember(process, self.scene.aborted(room, number, endpoint, process))

    @rule(process=processes, room=rooms, back=st.integers(0, 1), endpoint=endpoints)
    def acknowledge(self, process: str, room: int, back: int, endpoint: DecodeEndpoint) -> None:
        number = max(1, self.newest.get((process, room), 1) - back)
        known = self.lives.get(LifeKey(process, room, number))
        fact = self.scene.acknowledged(room, number, endpoint, process)
        if known is not None and known.end in ("failed", "undrained"):
            known.free(endpoint)
            self.remember(process, fact)

    # -- rules: replay

    @rule(process=processes, data=st.data())
    def repeat_a_fact(self, process: str, data: st.DataObject) -> None:
        if self.history[process]:
            self.replay(process, data.draw(st.sampled_from(self.history[process])))

    def replay(self, process: str, fact: Told) -> None:
        if isinstance(fact, DecodeHandshake):
            self.heard_at[fact.endpoint] = self.scene.now
            is_ignored = (process, fact) in self.ignored
            if is_ignored and self.take_handshake(LifeKey(process, fact.room, fact.life), fact.endpoint):
                self.ignored.remove((process, fact))
        self.scene.tell(fact, process)

    @rule(process=processes, closes_first=st.booleans())
    def reconnect(self, process: str, closes_first: bool) -> None:
        if closes_first:
            self.scene.leave(process)
        self.scene.join(process)
        for key, life in self.lives.items():
            if key.process == process and life.early_since is not None:
                life.early_since = self.scene.now  # the sidecar forgot it, and hears of it anew
        for fact in self.history[process]:
            if (process, fact) not in self.ignored:  # of an endpoint a rank replays the last life alone
                self.replay(process, fact)

    # -- rules: the world

    @rule(endpoint=endpoints)
    def die(self, endpoint: DecodeEndpoint) -> None:
        self.settle_held_up()
        for life in self.lives.values():
            life.handed.pop(endpoint, None)
        if endpoint in self.scene.up:
            self.broke_at[endpoint] = self.scene.now
        self.scene.die(endpoint)

    @rule(endpoint=endpoints)
    def revive(self, endpoint: DecodeEndpoint) -> None:
        self.scene.revive(endpoint)

    @rule(endpoint=endpoints, is_full=st.booleans())
    def fill(self, endpoint: DecodeEndpoint, is_full: bool) -> None:
        (self.scene.full.add if is_full else self.scene.full.discard)(endpoint)

    @rule(seconds=st.sampled_from([0.01, 1.0, 4.9, 5.0, 61.0, 150.0]))
    def wait(self, seconds: float) -> None:
        until = self.scene.now + seconds
        while (deadline := self.scene.notifier.next_deadline()) is not None and deadline < until:
            self.scene.advance(max(0.0, deadline - self.scene.now))
            self.settle_held_up()
        self.scene.advance(until - self.scene.now)
        self.settle_held_up()

    # -- claims

    def expected(self) -> set[NoticeKey]:
        now = self.scene.now
        return {NoticeKey(key, endpoint) for key, life in self.lives.items() for endpoint in life.owes(now)}

    @invariant()
    def owed_is_what_the_model_owes(self) -> None:
        if self.is_bounded:
            return
        queues = self.scene.notifier.outbox.queues()

        assert {owed.key for queue in queues for owed in queue.notices()} == self.expected()

    @invariant()
    def every_notice_is_owed_or_ended(self) -> None:
        stats = self.scene.notifier.stats

        assert stats.notices_owed == len(self.scene.notifier.outbox) + sum(stats.notices_ended.values())

    @invariant()
    def each_life_counts_what_it_owes(self) -> None:
        core = self.scene.notifier
        owed = Counter(one.key.life for queue in core.outbox.queues() for one in queue.notices())
        for key in self.lives:
            room = core.rooms.find(key)
            assert room is None or room.owed == owed[key] or (self.is_bounded and 0 <= room.owed < owed[key])

    @invariant()
    def a_life_is_finished_once(self) -> None:
        for room in self.scene.notifier.rooms.take_finished():
            assert room.state in (RoomState.FAILED, RoomState.UNDRAINED)
            assert self.is_bounded or (room.is_reported and not room.owed)

    @invariant()
    def a_connected_endpoint_has_nothing_pending(self) -> None:
        for queue in self.scene.notifier.outbox.queues():
            if queue.endpoint in self.scene.up - self.scene.full and queue.retry_at is None:
                assert not queue.pending

    @precondition(lambda self: len(self.scene.notifier.outbox) > 0)
    @invariant()
    def something_owed_has_a_deadline(self) -> None:
        assert self.scene.notifier.next_deadline() is not None


TestNotifier = pytest.mark.filterwarnings("ignore")(NotifierMachine.TestCase)
TestNotifier.settings = BUDGET
