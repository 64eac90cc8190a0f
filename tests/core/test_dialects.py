"""What a decode endpoint is known to take, from what is known of it, and what it is sent accordingly."""

import itertools

import pytest

from sidecar.config import SGLANG_VERSIONS
from sidecar.core.actions import Connect
from sidecar.core.dialects import Dialect, Ground, judged
from sidecar.core.limits import Limits
from sidecar.core.notifier import Notifier
from sidecar.core.ranks import Registration
from sidecar.model import Form
from tests.core.box import NOW, Box
from tests.core.scene import E1, E2, START, Scene, hello

BARE, CAUSE, STATUS = Form.BARE, Form.CAUSE, Form.STATUS


def told_forms(scene: Scene) -> list[Form]:
    forms = list(scene.forms)
    scene.forms.clear()
    return forms


def joined(backend: str = "mooncake", *, decode_sglang: str = "") -> Scene:
    scene = Scene(decode_sglang=decode_sglang)
    scene.join(said=hello(backend=backend))
    return scene


def registered(frames: int, decode_half: str = "") -> Registration:
    return Registration(1, "s", frames, decode_half)


class TestJudging:
    """Every registration of sglang 0.5.18 to 0.5.23, without and with the operator's word, without and with our half.

    The frames of each version were counted in its `_register_kv_args` (0.5.23: `build_receiver_registration_message`).
    """

    @pytest.mark.parametrize(
        ("backend", "frames", "form", "holds_pages", "sglang"),
        [
            ("mooncake", 18, BARE, False, "0.5.17"),  # 0.5.18
            ("mooncake", 19, BARE, False, "0.5.19"),  # 0.5.19 dies of a cause, 0.5.20 would take it
            ("mooncake", 20, CAUSE, True, "0.5.21"),
            ("ascend", 18, BARE, False, "0.5.17"),
            ("ascend", 19, BARE, False, "0.5.19"),
            ("ascend", 20, CAUSE, True, "0.5.21"),
            ("nixl", 24, CAUSE, False, "0.5.17"),  # 0.5.18 to 0.5.22
            ("nixl", 25, CAUSE, True, "0.5.23"),
            ("mori", 14, CAUSE, False, "0.5.12"),  # 0.5.18 to 0.5.21
            ("mori", 18, CAUSE, True, "0.5.22"),
        ],
    )
    def test_by_the_length_of_the_registration(
        self, backend: str, frames: int, form: Form, holds_pages: bool, sglang: str
    ) -> None:
        found = judged(backend, registered(frames), decode_sglang="")

        assert found == Dialect(form, holds_pages, Ground.REGISTRATION, sglang)

    @pytest.mark.parametrize("known", [None, registered(0), registered(17), registered(21), registered(41)])
    @pytest.mark.parametrize(
        ("backend", "form"),
        [("mooncake", BARE), ("ascend", BARE), ("nixl", CAUSE), ("mori", CAUSE), ("fake", BARE), ("", BARE)],
    )
    def test_of_what_is_not_known_the_least_is_assumed(
        self, backend: str, form: Form, known: Registration | None
    ) -> None:
        assert judged(backend, known, decode_sglang="") == Dialect(form, False, Ground.NOTHING)

    @pytest.mark.parametrize(("frames", "version"), list(itertools.product([0, 18, 19, 20], SGLANG_VERSIONS)))
    def test_the_operators_word_goes_over_the_registration(self, frames: int, version: str) -> None:
        form = CAUSE if version >= "0.5.20" else BARE

        found = judged("mooncake", registered(frames), decode_sglang=version)

        assert found == Dialect(form, version >= "0.5.21", Ground.SETTING, version)

    @pytest.mark.parametrize(
        ("backend", "version", "holds_pages"),
        [
            ("nixl", "0.5.20", False),
            ("nixl", "0.5.21", True),
            ("mori", "0.5.21", False),
            ("mori", "0.5.22", True),
            ("ascend", "0.5.20", False),
            ("ascend", "0.5.21", True),
            ("fake", "0.5.23", False),
        ],
    )
    def test_from_which_version_on_pages_are_held(self, backend: str, version: str, holds_pages: bool) -> None:
        assert judged(backend, None, decode_sglang=version).holds_pages is holds_pages

    @pytest.mark.parametrize("version", ["", *SGLANG_VERSIONS])
    @pytest.mark.parametrize("backend", ["mooncake", "ascend", "nixl", "mori"])
    def test_nothing_goes_over_the_word_of_decodes_own_half(self, backend: str, version: str) -> None:
        found = judged(backend, registered(18, "0.5.18"), decode_sglang=version)

        assert (found.form, found.ground) == (STATUS, Ground.DECODE_HALF)

    @pytest.mark.parametrize(
        ("decode_half", "decode_sglang", "frames", "sglang", "holds_pages"),
        [
            ("0.5.20", "0.5.21", 20, "0.5.20", False),
            ("0.5.21.post1", "0.5.18", 19, "0.5.21.post1", True),
            ("0.6.0rc1", "", 0, "0.6.0rc1", True),
            ("unknown", "0.5.20", 20, "0.5.20", False),
            ("unknown", "", 20, "0.5.21", True),
            ("unknown", "", 19, "0.5.19", False),
            ("unknown", "", 0, "", False),
            ("9" * 200, "", 0, "", False),
        ],
    )
    def test_whether_pages_are_held_is_sglangs_doing_with_our_half_too(
        self, decode_half: str, decode_sglang: str, frames: int, sglang: str, holds_pages: bool
    ) -> None:
        found = judged("mooncake", registered(frames, decode_half), decode_sglang=decode_sglang)

        assert found == Dialect(STATUS, holds_pages, Ground.DECODE_HALF, sglang)


class TestForms:
    @pytest.mark.parametrize(
        ("frames", "decode_half", "form"),
        [(18, "", BARE), (19, "", BARE), (20, "", CAUSE), (18, "0.5.18", STATUS)],
    )
    def test_an_endpoint_is_sent_what_it_takes(self, frames: int, decode_half: str, form: Form) -> None:
        scene = joined()
        scene.registered(E1, frames=frames, decode_half=decode_half)
        scene.handshake(1, 1, E1)
        scene.failed(1, 1)

        assert told_forms(scene) == [form]
        assert scene.notifier.stats.hand_offs_by_form == {form: 1}

    def test_two_endpoints_of_one_room_are_each_sent_their_own(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        for endpoint in (E1, E2):
            scene.handshake(1, 1, endpoint)
        scene.failed(1, 1)

        assert told_forms(scene) == [CAUSE, BARE]

    def test_the_operators_word_goes_for_endpoints_that_never_registered(self) -> None:
        scene = joined(decode_sglang="0.5.20")
        scene.handshake(1, 1, E1)
        scene.failed(1, 1)

        assert told_forms(scene) == [CAUSE]

    def test_it_can_be_changed_while_serving(self) -> None:
        scene = joined()
        scene.notifier.change_limits(Limits(decode_sglang="0.5.20"))
        scene.handshake(1, 1, E1)
        scene.failed(1, 1)

        assert told_forms(scene) == [CAUSE]

    def test_the_cause_and_its_status_travel(self) -> None:
        scene = joined()
        scene.handshake(1, 1, E1)
        scene.failed(1, 1, cause="too long", http_status=400)
        scene.failed(1, 1, cause="later", http_status=503)
        [(_, _, notice)] = scene.sent

        assert (notice.cause, notice.http_status, notice.drained) == ("too long", 400, True)

    def test_what_one_rank_has_heard_is_no_news_of_another(self) -> None:
        """Decode registers with each rank that it hears from."""
        scene = joined()
        scene.join("q")
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1, process="q")
        scene.failed(1, 1, process="q")

        assert told_forms(scene) == [BARE]


class TestDoubt:
    """The port of a decode that went away may be another one's, of another version."""

    def test_after_a_lost_connection_only_what_any_decode_takes(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.failed(1, 1)
        scene.advance(1.0)
        scene.die(E1)
        scene.revive(E1)

        assert told_forms(scene) == [CAUSE, BARE]

    def test_until_it_is_heard_of_again_under_that_session(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.advance(1.0)
        scene.die(E1)
        scene.revive(E1)
        scene.handshake(2, 2, E1)
        scene.failed(1, 1)

        assert told_forms(scene) == [CAUSE]

    def test_a_handshake_under_another_session_is_no_sign_of_the_old_one(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.handshake(2, 2, E1, session="t")
        scene.failed(1, 1)

        assert told_forms(scene) == [BARE]

    def test_nor_does_it_take_what_the_old_one_registered_for(self) -> None:
        """Its own registration has not come here, or was dropped."""
        scene = joined()
        scene.registered(E1, "s", frames=20)
        for room in (1, 2):
            scene.handshake(room, room, E1, session="t")
        scene.failed(1, 1)
        scene.failed(2, 2, drained=False)

        assert told_forms(scene) == [BARE]

    def test_an_endpoint_that_registers_anew_is_judged_anew(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        scene.registered(E1, "t", frames=18)
        scene.handshake(1, 1, E1, session="t")
        scene.failed(1, 1)
        scene.registered(E1, "u", frames=20)
        scene.handshake(2, 2, E1, session="u")
        scene.failed(2, 2)

        assert told_forms(scene) == [BARE, CAUSE]

    def test_a_connection_that_was_long_in_coming_up_may_be_to_another_one(self) -> None:
        scene = joined()
        scene.alive.clear()
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.failed(1, 1)
        scene.advance(3.5)
        scene.revive(E1)

        assert told_forms(scene) == [BARE]

    def test_one_that_comes_up_soon_is_to_the_one_that_shook_hands(self) -> None:
        scene = joined()
        scene.alive.clear()
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.failed(1, 1)
        scene.advance(2.5)
        scene.revive(E1)

        assert told_forms(scene) == [CAUSE]

    def test_an_endpoint_forgotten_meanwhile_is_a_stranger(self) -> None:
        box = Box(idle_close_s=60.0)
        box.connect()
        box.outbox.handle_timer(NOW + 60)
        box.outbox.take_actions()
        owed = box.owe(1, now=NOW + 61)
        owed.best_form = CAUSE

        assert Connect(E1) in box.outbox.take_actions()
        box.outbox.endpoint_up(E1, NOW + 61)

        assert [offer.form for offer in box.offers()] == [BARE]

    def test_doubt_goes_no_further_than_the_operators_word(self) -> None:
        scene = joined(decode_sglang="0.5.20")
        scene.registered(E1, frames=18, decode_half="0.5.18")
        scene.handshake(1, 1, E1)
        scene.failed(1, 1)
        scene.advance(1.0)
        scene.die(E1)
        scene.revive(E1)

        assert told_forms(scene) == [STATUS, CAUSE]


class TestUndrained:
    """Prefill may still be writing: only a decode that holds the pages until it has stopped is told."""

    @pytest.mark.parametrize(
        ("backend", "frames", "is_told"),
        [
            *[("mooncake", frames, frames == 20) for frames in (18, 19, 20)],
            *[("ascend", frames, frames == 20) for frames in (18, 19, 20)],
            *[("nixl", frames, frames == 25) for frames in (24, 25)],
            *[("mori", frames, frames == 18) for frames in (14, 18)],
        ],
    )
    @pytest.mark.parametrize("is_late", [False, True])
    def test_by_registration(self, backend: str, frames: int, is_told: bool, is_late: bool) -> None:
        scene = joined(backend)
        scene.registered(E1, frames=frames)
        if not is_late:
            scene.handshake(1, 1, E1)
        scene.failed(1, 1, drained=False)
        if is_late:
            scene.handshake(1, 1, E1)

        assert len(scene.sent) == is_told
        assert scene.notifier.stats.notices_suppressed == ({} if is_told else {"undrained": 1})
        assert all(not notice.drained for _, _, notice in scene.sent)

    @pytest.mark.parametrize("version", SGLANG_VERSIONS)
    def test_by_the_operators_word(self, version: str) -> None:
        """Who switched deferred release off at decode says 0.5.20."""
        scene = joined(decode_sglang=version)
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.failed(1, 1, drained=False)

        assert bool(scene.sent) is (version >= "0.5.21")

    def test_drained_after_all_everybody_is_told_and_nobody_twice(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        for endpoint in (E1, E2):
            scene.handshake(1, 1, endpoint)
        scene.failed(1, 1, drained=False)
        scene.advance(1.0)
        scene.failed(1, 1)

        assert scene.told() == [(E1, 1), (E2, 1)]

    def test_drained_after_all_what_was_owed_is_owed_for_the_whole_time(self) -> None:
        scene = joined()
        scene.alive.clear()
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.failed(1, 1, drained=False)
        scene.advance(100.0)
        scene.failed(1, 1)
        scene.advance(299.0)

        assert scene.ended() == {}
        scene.advance(1.0)

        assert scene.ended() == {"expired": 1}

    def test_what_is_said_again_is_not_counted_again(self) -> None:
        scene = joined()
        shaken = scene.handshake(1, 1, E1)
        scene.failed(1, 1, drained=False)
        scene.join()
        scene.tell(shaken)

        assert scene.notifier.stats.notices_suppressed == {"undrained": 1}

    def test_decodes_answer_settles_it(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        scene.handshake(1, 1, E1)
        scene.failed(1, 1, drained=False)
        scene.aborted(1, 1, E1)

        assert scene.ended() == {"decode_aborted": 1}

    def test_so_does_its_half(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20, decode_half="0.5.21")
        scene.handshake(1, 1, E1)
        scene.failed(1, 1, drained=False)
        scene.acknowledged(1, 1, E1)

        assert told_forms(scene) == [STATUS]
        assert scene.ended() == {"acknowledged": 1}


class TestForShow:
    def test_of_an_endpoint_that_registered(self) -> None:
        scene = joined()
        scene.registered(E1, frames=20)
        scene.join("q")

        assert scene.notifier.dialects.of(E1) == (
            Dialect(CAUSE, True, Ground.REGISTRATION, "0.5.21"),
            Registration(1, "s", 20, ""),
        )

    def test_of_one_that_did_not(self) -> None:
        assert joined("nixl").notifier.dialects.of(E1) == (Dialect(CAUSE, False, Ground.NOTHING), None)

    def test_of_one_that_no_rank_knows(self) -> None:
        notifier = Notifier(epoch="e", limits=Limits(), jitter=lambda: 0.5, now=START)

        assert notifier.dialects.of(E1) == (Dialect(BARE, False, Ground.NOTHING), None)
