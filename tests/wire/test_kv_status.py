"""Status messages, byte for byte, and as the decode of each version reads them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.core.dialects import judged
from sidecar.core.ranks import Registration
from sidecar.model import ROOM_LIMIT, Form, Notice
from sidecar.wire.decode_half import DRAINED_ABORT
from sidecar.wire.kv_status import CAUSE_LIMIT_BYTES, LAYOUTS, failed_frames, one_line
from tests.wire.parsers import DECODES, Heard, ThreadDiedError, mooncake_from_20, unpacking

BARE, CAUSE, STATUS = Form.BARE, Form.CAUSE, Form.STATUS

FRAMES = {
    "mooncake": {"0.5.18": 18, "0.5.19": 19, "0.5.20": 19, "0.5.21": 20, "0.5.22": 20, "0.5.23": 20},
    "nixl": {**dict.fromkeys(("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22"), 24), "0.5.23": 25},
    "mori": {**dict.fromkeys(("0.5.18", "0.5.19", "0.5.20", "0.5.21"), 14), "0.5.22": 18, "0.5.23": 18},
}
"""Of the KV registration that a decode sends, by backend and version."""

ROOM = 4711

rooms = st.integers(0, ROOM_LIMIT - 1)
notices = st.builds(
    Notice,
    st.integers(0, 4096),
    st.builds(str.__mul__, st.text(max_size=12), st.sampled_from([1, 400])),
    http_status=st.integers(),
    drained=st.booleans(),
)


def notice(backend: str, *, http_status: int = 503, drained: bool = True) -> Notice:
    return Notice(3, "queue full", backend, http_status, drained)


@pytest.mark.parametrize(
    ("backend", "form", "frames"),
    [
        ("mooncake", BARE, [b"4711", b"0", b"3"]),
        ("mooncake", CAUSE, [b"4711", b"0", b"3", b"DRAINED_ABORT: queue full"]),
        ("mooncake", STATUS, [b"4711", b"0", b"3", b"DRAINED_ABORT: queue full", b"503"]),
        ("ascend", BARE, [b"4711", b"0", b"3"]),
        ("ascend", CAUSE, [b"4711", b"0", b"3", b"DRAINED_ABORT: queue full"]),
        ("ascend", STATUS, [b"4711", b"0", b"3", b"DRAINED_ABORT: queue full", b"503"]),
        ("nixl", BARE, [b"KV_STATUS", b"4711", b"0", b"3"]),
        ("nixl", CAUSE, [b"KV_STATUS", b"4711", b"0", b"3", b"queue full"]),
        ("nixl", STATUS, [b"KV_STATUS", b"4711", b"0", b"3", b"queue full", b"503"]),
        ("mori", BARE, [b"MoriMsgGuard", b"4711", b"0", b"3"]),
        ("mori", CAUSE, [b"MoriMsgGuard", b"4711", b"0", b"3", b"queue full"]),
        ("mori", STATUS, [b"MoriMsgGuard", b"4711", b"0", b"3", b"queue full", b"503"]),
    ],
)
def test_every_form_of_every_backend(backend: str, form: Form, frames: list[bytes]) -> None:
    assert failed_frames(ROOM, notice(backend), form) == frames


@pytest.mark.parametrize("backend", list(LAYOUTS))
def test_an_end_that_has_not_drained_does_not_say_that_it_has(backend: str) -> None:
    said = failed_frames(ROOM, notice(backend, drained=False), STATUS)

    assert said[-2:] == [b"queue full", b"503"]


@pytest.mark.parametrize("status", [0, -1, 200, 399, 600, 10**30])
def test_a_status_that_is_none_is_not_said(status: int) -> None:
    assert failed_frames(ROOM, notice("mooncake", http_status=status), STATUS) == failed_frames(
        ROOM, notice("mooncake"), CAUSE
    )


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("two\nlines\r\n and\ttabs ", b"two lines and tabs"),
        ("bell\x07, escape\x1b[31m, null\0", b"bell?, escape?[31m, null?"),
        ("half a character \ud800", b"half a character ?"),
        ("\u2028separated\u2029", b"separated"),
        ("日本", "日本".encode()),
        ("", b""),
    ],
)
def test_a_cause_is_one_line_of_utf8(cause: str, said: bytes) -> None:
    assert one_line(cause) == said


@pytest.mark.parametrize("character", ["x", "é", "日", "😀"])
def test_a_long_cause_is_cut_between_characters(character: str) -> None:
    said = one_line(character * 5000)

    assert CAUSE_LIMIT_BYTES - 4 < len(said) <= CAUSE_LIMIT_BYTES
    assert set(said.decode("utf-8")) == {character}


@given(rooms, notices, st.sampled_from(list(LAYOUTS)), st.sampled_from(Form))
def test_no_frame_is_longer_than_its_limit_and_the_cause_is_one_line(
    room: int, said: Notice, backend: str, form: Form
) -> None:
    frames = failed_frames(room, replace(said, backend=backend), form)

    assert all(len(frame) <= CAUSE_LIMIT_BYTES + len(DRAINED_ABORT) for frame in frames)
    assert all(len(frame.decode("utf-8").splitlines()) <= 1 for frame in frames)
    assert 3 <= len(frames) <= 6


KNOWN_BY = ("nothing", "registration", "setting")

EDGES = (
    (0, Notice(0, "", http_status=0)),
    (ROOM_LIMIT - 1, Notice(4096, "日\n本\0\ud800" * 400, http_status=503)),
    (ROOM, Notice(3, "queue full", http_status=10**9, drained=False)),
)


def tell(backend: str, version: str, knows: str, room: int, said: Notice) -> None:
    """As a sidecar that knows so much of a decode of that version, and as that decode reads it."""
    plane = "mooncake" if backend == "ascend" else backend
    registration = Registration(1, "s", FRAMES[plane][version], "") if knows == "registration" else None
    dialect = judged(backend, registration, decode_sglang=version if knows == "setting" else "")

    heard = DECODES[backend, version](failed_frames(room, replace(said, backend=backend), dialect.form))

    if backend == "nixl" and version in ("0.5.18", "0.5.19"):
        assert heard is None, "it has no ears without our decode half"
        return
    prefix = DRAINED_ABORT if plane == "mooncake" and said.drained else b""
    cause = (prefix + one_line(said.cause)).decode() or None
    expected = None if dialect.form is BARE else cause
    assert heard == Heard(room, 0, said.prefill_rank, expected)


class TestDecodesOfEachVersion:
    """What is sent to a decode by what is known of it, read as that decode reads it."""

    @pytest.mark.parametrize(("room", "said"), EDGES)
    @pytest.mark.parametrize("knows", KNOWN_BY)
    @pytest.mark.parametrize(("backend", "version"), list(DECODES))
    def test_nobodys_thread_dies_and_decode_is_told_the_first_cause_where_it_reads_one(
        self, backend: str, version: str, knows: str, room: int, said: Notice
    ) -> None:
        tell(backend, version, knows, room, said)

    @given(st.sampled_from(list(DECODES)), st.sampled_from(KNOWN_BY), rooms, notices)
    @settings(max_examples=400, deadline=None)
    def test_nor_over_any_other_notice(self, decode: tuple[str, str], knows: str, room: int, said: Notice) -> None:
        tell(*decode, knows, room, said)

    @pytest.mark.parametrize("version", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
    def test_from_20_on_a_mooncake_decode_hears_the_cause_if_its_version_is_known(self, version: str) -> None:
        form = judged("mooncake", None, decode_sglang=version).form

        heard = DECODES["mooncake", version](failed_frames(ROOM, notice("mooncake"), form))

        assert heard == Heard(4711, 0, 3, "DRAINED_ABORT: queue full")

    @pytest.mark.parametrize("form", [CAUSE, STATUS])
    def test_the_models_know_what_kills(self, form: Form) -> None:
        """Else the tests above could not fail."""
        with pytest.raises(ThreadDiedError):
            unpacking(failed_frames(ROOM, notice("mooncake"), form))
        with pytest.raises(ThreadDiedError):
            mooncake_from_20([b"ABORT_ACK"])

    @pytest.mark.parametrize(
        ("backend", "version"), [key for key in DECODES if key[1] >= "0.5.20" or key[0] != "mooncake"]
    )
    def test_a_status_frame_that_reaches_the_wrong_decode_is_not_looked_at(self, backend: str, version: str) -> None:
        """Of a decode that lost its half. Mooncake's and Ascend's up to 0.5.19 is the exception that doubt is for."""
        frames = failed_frames(ROOM, notice(backend), STATUS)
        if backend == "ascend" and version < "0.5.20":
            with pytest.raises(ThreadDiedError):
                DECODES[backend, version](frames)
            return

        assert DECODES[backend, version](frames) == DECODES[backend, version](frames[:-1])
