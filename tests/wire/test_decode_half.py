"""What the decode half says: what goes in comes out, and stock sees the registration it knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import WireError
from sidecar.model import ROOM_LIMIT
from sidecar.wire.decode_half import (
    ACKNOWLEDGED,
    ANNOUNCED,
    MAGIC_INDEX,
    VERSION_LIMIT,
    Announcement,
    acknowledged_room,
    acknowledgement,
    announced,
    announcement,
)

REGISTRATION = [b"None", b"10.0.0.1", b"7001", b"session", *[b"x"] * 16]
"""Of the length that sglang 0.5.21 to 0.5.23 send."""


@given(st.integers(0, ROOM_LIMIT - 1))
def test_a_room_comes_out_as_it_went_in(room: int) -> None:
    assert acknowledged_room(acknowledgement(REGISTRATION, room)) == room


def test_stock_finds_its_own_frames_and_nothing_at_any_index_it_uses() -> None:
    frames = acknowledgement(REGISTRATION, 7)

    assert frames[: len(REGISTRATION)] == REGISTRATION
    assert set(frames[len(REGISTRATION) : MAGIC_INDEX]) == {b""}
    assert len(frames) == MAGIC_INDEX + 1


@pytest.mark.parametrize(
    "frames", [REGISTRATION, [*REGISTRATION, *[b""] * 30], [*[b""] * MAGIC_INDEX, b"pd-sidecar/2 something else"]]
)
def test_a_registration_by_itself_acknowledges_nothing(frames: list[bytes]) -> None:
    assert acknowledged_room(frames) is None


@pytest.mark.parametrize("digits", [b"", b"x", b"-1", b"9" * 20, str(ROOM_LIMIT).encode(), b"1 2"])
def test_one_that_names_no_room_is_refused(digits: bytes) -> None:
    with pytest.raises(WireError, match="names no room"):
        acknowledged_room([*[b""] * MAGIC_INDEX, ACKNOWLEDGED + digits])


def test_a_registration_that_reaches_into_the_magic_is_refused() -> None:
    with pytest.raises(WireError, match="41 frames"):
        acknowledgement([b"x"] * (MAGIC_INDEX + 1), 7)


@given(st.lists(st.binary(max_size=40), max_size=45))
def test_any_frames_give_a_room_or_the_documented_error(frames: list[bytes]) -> None:
    try:
        room = acknowledged_room(frames)
    except WireError:
        return
    assert room is None or 0 <= room < ROOM_LIMIT


@given(st.integers(1, MAGIC_INDEX), st.text(max_size=100))
def test_an_announcement_says_how_long_the_registration_was(frames: int, sglang: str) -> None:
    """Its last frames may be empty themselves, so the padding alone would not tell."""
    registration = [b"None", *[b""] * (frames - 1)]

    said = announcement(registration, sglang)

    read = announced(said)
    assert read is not None
    assert frames == read.frames
    assert 0 < len(read.decode_half) <= VERSION_LIMIT
    assert said[:frames] == registration
    assert len(said) == MAGIC_INDEX + 1
    assert acknowledged_room(said) is None


@pytest.mark.parametrize(("sglang", "word"), [("0.5.18", "0.5.18"), ("0.5.19+cu 12\n", "0.5.19+cu12"), ("", "unknown")])
def test_the_version_travels_as_a_word(sglang: str, word: str) -> None:
    assert announced(announcement(REGISTRATION, sglang)) == Announcement(len(REGISTRATION), word)


@pytest.mark.parametrize(
    "frames",
    [REGISTRATION, [*REGISTRATION, *[b""] * 30], acknowledgement(REGISTRATION, 7), [*[b""] * MAGIC_INDEX, b"x"]],
)
def test_a_registration_by_itself_announces_nothing(frames: list[bytes]) -> None:
    assert announced(frames) is None


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"20",
        b"20 ",
        b" 0.5.18",
        b"x 0.5.18",
        b"-1 0.5.18",
        b"41 0.5.18",
        b"100 0.5.18",
        b"20 " + b"9" * 65,
        b"2 \xff",
    ],
)
def test_an_announcement_that_cannot_be_read_is_refused(words: bytes) -> None:
    with pytest.raises(WireError, match="cannot be read"):
        announced([*[b""] * MAGIC_INDEX, ANNOUNCED + words])


def test_a_registration_that_is_too_long_is_not_announced() -> None:
    with pytest.raises(WireError, match="leaves no room"):
        announcement([b"x"] * (MAGIC_INDEX + 1), "0.5.24")
