"""The core with every bound tight, by the same machine."""

from hypothesis.stateful import invariant

from sidecar.core.limits import OutboxLimits, RoomLimits
from tests.core.budget import BUDGET
from tests.core.test_notifier_machine import SETTLE_AFTER_S, NotifierMachine, Watched


class BoundedMachine(NotifierMachine):
    """The same with every bound tight. What was pushed out is not known any more, so only this is claimed: no bound is
    passed, nothing is lost without being counted, and nobody is told of a life that has not failed.
    """

    is_bounded = True

    def make_scene(self) -> Watched:
        return Watched(
            self,
            rooms=RoomLimits(records=2, open_rooms=3, tombstones=1),
            outbox=OutboxLimits(
                settle_after_s=SETTLE_AFTER_S, idle_close_s=60.0, notices_per_endpoint=2, notices_total=3, connections=2
            ),
        )

    @invariant()
    def bounds_hold(self) -> None:
        core = self.scene.notifier

        assert core.rooms.records <= 2
        assert core.rooms.open_rooms <= 3
        assert core.rooms.tombstones <= 1
        assert len(core.outbox) <= 3
        assert all(len(queue) <= 2 for queue in core.outbox.queues())
        assert len(self.scene.open) <= 2


TestBounded = BoundedMachine.TestCase
TestBounded.settings = BUDGET
