"""What prefill's bootstrap thread can get: read as what it is, or junk with a reason. What stock does with the same
bytes is shown on stock itself (`tests/engine/test_junk.py`).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks.messages.prefill import STAGING_CHUNKS, PrefillStock, read_for_prefill
from sglang_hooks.messages.values import (
    Abort,
    Family,
    Junk,
    Metadata,
    Other,
    PrefillMessage,
    Reason,
    Registration,
    Watermark,
)
from sidecar.model import ROOM_LIMIT
from sidecar.wire.decode_half import acknowledgement, announcement
from tests.sglang_hooks.samples import (
    ABORT,
    DECODE,
    DUMMIES,
    HERE,
    INDICES,
    LISTS,
    METADATA,
    MORI_GUARD,
    NIXL_GUARD,
    POINTERS,
    PREFILL_JUNK,
    REGISTRATIONS,
    changed,
)

STOCKS = {family: PrefillStock(family) for family in Family}
SESSIONS = {Family.MOONCAKE: "10.0.0.7:9", Family.NIXL: "agent", Family.MORI: "agent"}

families = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)


def read(frames: list[bytes], family: Family = Family.MOONCAKE) -> PrefillMessage:
    return read_for_prefill(frames, STOCKS[family])


@families
def test_a_registration(family: Family) -> None:
    session = "" if family is Family.MORI else SESSIONS[family]
    frames = REGISTRATIONS[family]
    assert read(frames, family) == Registration(DECODE, session, len(frames))


@families
def test_a_registration_of_a_newer_sglang_passes(family: Family) -> None:
    frames = [*REGISTRATIONS[family], b"\xff what no version up to 0.5.23 sends"]
    assert isinstance(read(frames, family), Registration)


@families
def test_a_decode_half_is_known_by_its_registration(family: Family) -> None:
    frames = REGISTRATIONS[family]
    found = read(announcement(frames, "0.5.18"), family)
    assert isinstance(found, Registration)
    assert (len(frames), "0.5.18", None) == (found.frames, found.decode_half, found.acknowledged)


@families
def test_its_acknowledgement_is_read(family: Family) -> None:
    found = read(acknowledgement(REGISTRATIONS[family], 4711), family)
    assert isinstance(found, Registration)
    assert found.acknowledged == 4711


@families
def test_metadata(family: Family) -> None:
    assert read(METADATA[family], family) == Metadata(4711, DECODE, SESSIONS[family], is_dummy=False)


def test_dummy_metadata() -> None:
    assert read(DUMMIES[Family.MOONCAKE]) == Metadata(4711, DECODE, "10.0.0.7:9", is_dummy=True)
    assert read(DUMMIES[Family.MORI], Family.MORI) == Metadata(4711, DECODE, "agent", is_dummy=True)
    assert read(DUMMIES[Family.NIXL], Family.NIXL) == Metadata(4711, DECODE, "agent", is_dummy=True)


def test_metadata_of_nixl_without_a_mark_is_a_dummy_by_what_it_lacks() -> None:
    bare = METADATA[Family.NIXL][:-1]
    assert read(bare, Family.NIXL) == Metadata(4711, DECODE, "agent", is_dummy=False)
    for prefix, is_dummy in ((b"0", True), (b"64", False)):
        frames = changed(changed(bare, 5, b""), 9, prefix)
        assert read(frames, Family.NIXL) == Metadata(4711, DECODE, "agent", is_dummy=is_dummy)


@families
@pytest.mark.parametrize("frames", [ABORT, [*ABORT, b"3"], [*ABORT, b"3", b"more"]], ids=["4", "5", "6"])
def test_an_abort(family: Family, frames: list[bytes]) -> None:
    assert read(frames, family) == Abort(4711, DECODE)


def test_an_abort_without_address_goes_where_stock_takes_it() -> None:
    lenient = PrefillStock(Family.MOONCAKE, reads_short_abort=True)
    for frames in (ABORT[:2], changed(ABORT, 3, b"no port")):
        assert read_for_prefill(frames, lenient) == Abort(4711, None)
        assert read(frames, Family.NIXL) == Abort(4711, None)
        assert isinstance(read(frames), Junk)


def test_the_messages_of_the_staging_buffers() -> None:
    watermark = [b"WATERMARK", b"1", b"2", b"session"]
    offset = [b"STAGING_RSP", b"4711", b"0", b"1", b"2", b"3", b"session"]
    assert read(watermark) == Watermark()
    assert read(watermark, Family.NIXL) == Other()
    assert read(offset) == read(offset, Family.NIXL) == Other()


@pytest.mark.parametrize("index", [b"-1", str(STAGING_CHUNKS).encode()])
def test_a_staging_chunk_that_no_request_has(index: bytes) -> None:
    """Stock makes three lists as long as this says, and ends over a negative one."""
    assert read([b"STAGING_RSP", b"4711", index, b"1", b"2", b"3", b"s"]) == Junk(Reason.MISMATCHED)


def test_bootstrap_goes_where_stock_takes_it() -> None:
    frames = [b"BOOTSTRAP", b"4711", *HERE]
    assert read(frames) == Junk(Reason.UNKNOWN_TAG)
    takes = PrefillStock(Family.MOONCAKE, reads_bootstrap=True)
    assert read_for_prefill(frames, takes) == Other()
    assert read_for_prefill(frames[:3], takes) == Junk(Reason.TOO_SHORT)


@families
@pytest.mark.parametrize("room", [-1, ROOM_LIMIT])
def test_a_room_that_sglang_does_not_draw_is_stocks_own_affair(family: Family, room: int) -> None:
    at = 0 if family is Family.MOONCAKE else 1
    assert read(changed(METADATA[family], at, b"%d" % room), family) == Other()
    assert read(changed(ABORT, 1, b"%d" % room), family) == Other()


@pytest.mark.parametrize("name", PREFILL_JUNK)
def test_junk_for_mooncake(name: str) -> None:
    frames, reason = PREFILL_JUNK[name]
    assert read(frames) == Junk(reason)


def test_junk_for_nixl() -> None:
    metadata = METADATA[Family.NIXL]
    assert read([b"HELLO"], Family.NIXL) == Junk(Reason.UNKNOWN_TAG)
    assert read(METADATA[Family.MOONCAKE], Family.NIXL) == Junk(Reason.UNKNOWN_TAG)
    assert read([b"KV_STATUS", b"4711", b"0", b"0"], Family.NIXL) == Junk(Reason.UNKNOWN_TAG)
    assert read([b"\xff"], Family.NIXL) == Junk(Reason.NOT_ASCII)
    assert read([NIXL_GUARD], Family.NIXL) == Junk(Reason.TOO_SHORT)
    assert read([NIXL_GUARD, b"HELLO"], Family.NIXL) == Junk(Reason.UNKNOWN_TAG)
    assert read(changed(metadata, 5, b"12345"), Family.NIXL) == Junk(Reason.MISMATCHED)
    assert read(changed(metadata, 7, b""), Family.NIXL) == Junk(Reason.MISMATCHED)
    assert read(changed(metadata, 10, b"x"), Family.NIXL) == Junk(Reason.MISMATCHED)
    assert read(changed(REGISTRATIONS[Family.NIXL], 6, b"1"), Family.NIXL) == Junk(Reason.MISMATCHED)


def test_mori_stands_what_it_does_not_know() -> None:
    """Its thread contains every fault, so what a newer one may know goes there."""
    for frames in ([b"HELLO"], [b"\xff"], [b"BOOTSTRAP", b"1"], [b"WATERMARK"], [b"STAGING_RSP"]):
        assert read(frames, Family.MORI) == Other()
    assert read([MORI_GUARD], Family.MORI) == Junk(Reason.TOO_SHORT)
    assert read(changed(METADATA[Family.MORI], 3, b"port"), Family.MORI) == Junk(Reason.MISMATCHED)


frame = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"ABORT", b"None", b"WATERMARK", b"STAGING_RSP", b"BOOTSTRAP", b"", b"0", b"4711", b"-1", b"1_0"]),
    st.sampled_from([NIXL_GUARD, MORI_GUARD, *HERE, b"10.0.0.7:9", INDICES, POINTERS, LISTS]),
)
spoiled = st.builds(
    lambda frames, index, frame: changed(frames, index % len(frames), frame),
    st.sampled_from([*REGISTRATIONS.values(), *METADATA.values(), *DUMMIES.values(), ABORT]),
    st.integers(0, 30),
    frame,
)
stocks = st.builds(PrefillStock, st.sampled_from(Family), st.booleans(), st.booleans())


@given(st.one_of(st.lists(frame, max_size=24), spoiled), stocks)
def test_any_frames_give_a_value_or_junk(frames: list[bytes], stock: PrefillStock) -> None:
    message = read_for_prefill(frames, stock)

    if isinstance(message, (Metadata, Abort)):
        assert 0 <= message.room < ROOM_LIMIT
    if isinstance(message, Registration):
        assert 0 < message.frames <= len(frames)
