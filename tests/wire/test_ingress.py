"""The stream format: what goes in comes out, however it is cut, and junk is a WireError."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import WireError
from sidecar.model import (
    PROTOCOL,
    Accepted,
    DecodeAborted,
    DecodeAcknowledged,
    DecodeEndpoint,
    DecodeHandshake,
    DecodeRegistered,
    Goodbye,
    HandedOff,
    HandedOffBatch,
    Hello,
    ParcelGiven,
    ParcelRefused,
    ParcelsTaken,
    Refusal,
    RoomAnswered,
    RoomConcluded,
    RoomEnded,
    RoomOpened,
    RoomQueried,
    RoomQuery,
    RoomRefused,
    Settled,
    SettledBatch,
    SiblingDied,
    TerminalStatus,
    TokenizerJoined,
    Welcome,
)
from sidecar.wire.ingress import FRAME_LIMIT_BYTES, encode, encode_all, reply_reader, singly, upward_reader

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=40)
seconds = st.floats(0, 1e9)
endpoints = st.builds(DecodeEndpoint, texts, st.integers(0, 65535))
small = st.integers(0, 4096)
hellos = st.builds(
    Hello,
    st.just(PROTOCOL),
    texts,
    texts,
    texts,
    *[small] * 5,
    texts,
    texts,
    seconds,
    st.dictionaries(texts, texts, max_size=4),
)
facts = st.one_of(
    st.builds(RoomOpened, numbers, numbers, numbers),
    st.builds(RoomRefused, numbers, numbers, texts, small, seconds),
    st.builds(RoomQueried, numbers, numbers),
    st.builds(RoomAnswered, numbers, numbers, seconds, seconds, seconds, texts, small),
    st.builds(DecodeHandshake, numbers, numbers, numbers, endpoints, texts, st.booleans()),
    st.builds(
        RoomConcluded,
        numbers,
        numbers,
        numbers,
        st.sampled_from(TerminalStatus),
        texts,
        st.booleans(),
        seconds,
        seconds,
        small,
    ),
    st.builds(DecodeAborted, numbers, numbers, numbers, endpoints),
    st.builds(DecodeAcknowledged, numbers, numbers, numbers, endpoints),
    st.builds(DecodeRegistered, numbers, endpoints, texts, small, texts),
    st.builds(ParcelGiven, numbers, numbers, endpoints, texts, st.lists(st.binary()).map(tuple), seconds),
    st.builds(Goodbye, numbers),
)
answered = st.lists(st.tuples(numbers, numbers, endpoints, numbers), max_size=3)
replies = st.one_of(
    st.builds(Welcome, small, texts, st.booleans(), st.booleans()),
    st.builds(ParcelsTaken, numbers, st.lists(numbers).map(tuple)),
    st.builds(ParcelRefused, numbers, texts),
    st.builds(Accepted, numbers),
    st.builds(Settled, numbers, numbers, endpoints, numbers),
    st.builds(HandedOff, numbers, numbers, endpoints, numbers, st.booleans()),
    st.builds(HandedOffBatch, answered, st.booleans()),
    st.builds(SettledBatch, answered),
    st.builds(SiblingDied),
    st.builds(TokenizerJoined),
    st.builds(RoomQuery, numbers),
    st.builds(RoomEnded, numbers, seconds, seconds, seconds, texts, small),
    st.builds(Refusal, texts),
)


@given(st.lists(hellos | facts, max_size=6))
def test_upward_messages_come_out_as_they_went_in(messages: list[Any]) -> None:
    assert list(upward_reader().feed(b"".join(map(encode, messages)))) == messages


@given(st.lists(replies, max_size=6))
def test_replies_come_out_as_they_went_in(messages: list[Any]) -> None:
    assert list(reply_reader().feed(b"".join(map(encode, messages)))) == messages


@given(st.lists(facts, min_size=1, max_size=4), st.lists(st.integers(0, 400), max_size=8))
def test_the_stream_may_be_cut_anywhere(messages: list[Any], cuts: list[int]) -> None:
    stream = b"".join(map(encode, messages))
    reader = upward_reader()
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    pieces = [stream[start:end] for start, end in itertools.pairwise(bounds)]

    assert [message for piece in pieces for message in reader.feed(piece)] == messages


@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_a_wire_error(junk: bytes) -> None:
    reader = upward_reader()
    try:
        list(reader.feed(junk))
    except WireError:
        return


@given(st.binary(max_size=100))
def test_any_body_gives_a_message_or_a_wire_error(body: bytes) -> None:
    reader = upward_reader()
    try:
        assert len(list(reader.feed(len(body).to_bytes(4, "big") + body))) == 1
    except WireError:
        return


@given(facts, st.data())
def test_a_flipped_bit_gives_messages_or_a_wire_error(message: Any, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    position = data.draw(st.integers(4, len(frame) - 1))
    frame[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        list(upward_reader().feed(bytes(frame)))
    except WireError:
        return


def test_an_oversized_frame_is_refused_by_its_announcement() -> None:
    with pytest.raises(WireError, match="the limit is"):
        list(upward_reader().feed((FRAME_LIMIT_BYTES + 1).to_bytes(4, "big")))


def test_what_came_before_the_junk_is_still_taken() -> None:
    messages = upward_reader().feed(encode(Goodbye(1)) + b"\0\0\0\1\xc1")

    assert next(messages) == Goodbye(1)
    with pytest.raises(WireError):
        next(messages)


def test_a_reply_is_no_upward_message() -> None:
    with pytest.raises(WireError):
        list(upward_reader().feed(encode(Accepted(1))))


def test_deep_nesting_is_a_wire_error() -> None:
    body = b"\x91" * 50_000
    with pytest.raises(WireError):
        list(upward_reader().feed(len(body).to_bytes(4, "big") + body))


def test_fields_added_later_are_skipped() -> None:
    """A newer hook may say more than this sidecar knows; only a new PROTOCOL breaks."""
    body = msgspec.msgpack.encode(["goodbye", 7, "something new"])

    assert list(upward_reader().feed(len(body).to_bytes(4, "big") + body)) == [Goodbye(7)]


def test_a_conclusion_of_an_older_plugin_has_no_beginning() -> None:
    """Plugin and sidecar may be upgraded in any order."""
    newer = encode(RoomConcluded(1, 2, 3, TerminalStatus.FAILED, "gone", True, 4.0, 3.0, 499))
    *older, _, _ = msgspec.msgpack.decode(newer[4:])
    body = msgspec.msgpack.encode(older)

    [read] = upward_reader().feed(len(body).to_bytes(4, "big") + body)
    assert read == RoomConcluded(1, 2, 3, TerminalStatus.FAILED, "gone", True, 4.0)


@given(st.lists(replies, max_size=6))
def test_encoding_many_is_encoding_each(messages: list[Any]) -> None:
    assert encode_all(messages) == b"".join(map(encode, messages))


@given(st.lists(facts, min_size=1, max_size=4), st.binary(max_size=40))
def test_cutting_gives_the_same_as_feeding(messages: list[Any], junk: bytes) -> None:
    stream = b"".join(map(encode, messages)) + junk
    cut, error = upward_reader().cut(stream)
    fed: list[Any] = []
    try:
        for message in upward_reader().feed(stream):
            fed.append(message)
    except WireError:
        assert error is not None

    assert cut[: len(messages)] == messages
    assert fed == cut


def test_what_is_said_of_many_is_heard_of_each() -> None:
    here, there = DecodeEndpoint("10.0.0.1", 7001), DecodeEndpoint("10.0.0.2", 7001)
    said = [
        Accepted(9),
        HandedOffBatch([(1, 2, here, 3), (4, 5, there, 6)], stands=False),
        SettledBatch([(1, 2, here, 3)]),
    ]

    assert list(singly(said)) == [
        Accepted(9),
        HandedOff(1, 2, here, 3, stands=False),
        HandedOff(4, 5, there, 6, stands=False),
        Settled(1, 2, here, 3),
    ]


class TestUpgradeOrders:
    """Rank and sidecar are upgraded in any order; what the other does not know yet has a default or is not said."""

    def test_an_older_rank_says_nothing_of_hand_offs(self) -> None:
        body = msgspec.msgpack.encode(["handshake", 1, 2, 3, ["10.0.0.1", 7001], "s"])
        [heard] = upward_reader().feed(len(body).to_bytes(4, "big") + body)

        assert heard == DecodeHandshake(1, 2, 3, DecodeEndpoint("10.0.0.1", 7001), "s", handed_off=False)

    def test_an_older_rank_does_not_hear_hand_offs(self) -> None:
        said = ["hello", PROTOCOL, "p", "e", "prefill", 0, 0, 0, 0, 1, "0.5.18", "mooncake", 300.0, {}]
        body = msgspec.msgpack.encode(said)
        [heard] = upward_reader().feed(len(body).to_bytes(4, "big") + body)

        assert isinstance(heard, Hello)
        assert not heard.hears_hand_offs
        assert not heard.hears_batches

    def test_an_older_sidecar_skips_what_a_newer_rank_says_more(self) -> None:
        """Its values end where these are cut; array-like values may be longer than a reader knows."""
        newer = msgspec.msgpack.encode(DecodeHandshake(1, 2, 3, DecodeEndpoint("10.0.0.1", 7001), "s", handed_off=True))

        assert msgspec.msgpack.decode(newer, type=OlderHandshake) == OlderHandshake(
            1, 2, 3, DecodeEndpoint("10.0.0.1", 7001), "s"
        )

    def test_an_older_rank_has_no_status_of_the_cause(self) -> None:
        body = msgspec.msgpack.encode(["concluded", 1, 2, 3, "failed", "gone", True, 4.0, 3.0])
        [heard] = upward_reader().feed(len(body).to_bytes(4, "big") + body)

        assert heard == RoomConcluded(1, 2, 3, TerminalStatus.FAILED, "gone", True, 4.0, 3.0, http_status=0)

    def test_an_older_sidecar_skips_the_status(self) -> None:
        newer = msgspec.msgpack.encode(RoomConcluded(1, 2, 3, TerminalStatus.FAILED, "gone", True, 4.0, 3.0, 499))

        assert msgspec.msgpack.decode(newer, type=OlderHandshake | OlderConcluded | OlderRegistered) == OlderConcluded(
            1, 2, 3, TerminalStatus.FAILED, "gone", True, 4.0, 3.0
        )

    def test_an_older_rank_knows_no_decode_half(self) -> None:
        body = msgspec.msgpack.encode(["registered", 1, ["10.0.0.1", 7001], "s", 20])
        [heard] = upward_reader().feed(len(body).to_bytes(4, "big") + body)

        assert heard == DecodeRegistered(1, DecodeEndpoint("10.0.0.1", 7001), "s", 20, decode_half="")

    def test_an_older_sidecar_skips_the_decode_half(self) -> None:
        newer = msgspec.msgpack.encode(DecodeRegistered(1, DecodeEndpoint("10.0.0.1", 7001), "s", 20, "0.5.18"))

        assert msgspec.msgpack.decode(newer, type=OlderHandshake | OlderConcluded | OlderRegistered) == OlderRegistered(
            1, DecodeEndpoint("10.0.0.1", 7001), "s", 20
        )

    def test_an_older_rank_says_nothing_of_a_trace(self) -> None:
        body = msgspec.msgpack.encode(["opened", 1, 2, 3])
        [heard] = upward_reader().feed(len(body).to_bytes(4, "big") + body)

        assert heard == RoomOpened(1, 2, 3, traceparent="")

    def test_an_older_sidecar_skips_the_trace(self) -> None:
        newer = msgspec.msgpack.encode(RoomOpened(1, 2, 3, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))

        assert msgspec.msgpack.decode(newer, type=OlderOpened | OlderHandshake) == OlderOpened(1, 2, 3)

    def test_an_older_sidecar_settles_without_a_number(self) -> None:
        body = msgspec.msgpack.encode(["settled", 2, 3, ["10.0.0.1", 7001]])
        [heard] = reply_reader().feed(len(body).to_bytes(4, "big") + body)

        assert heard == Settled(2, 3, DecodeEndpoint("10.0.0.1", 7001), seq=0)

    def test_an_older_rank_skips_the_number(self) -> None:
        newer = msgspec.msgpack.encode(Settled(2, 3, DecodeEndpoint("10.0.0.1", 7001), seq=9))

        assert msgspec.msgpack.decode(newer, type=OlderSettled) == OlderSettled(2, 3, DecodeEndpoint("10.0.0.1", 7001))


class OlderOpened(msgspec.Struct, frozen=True, array_like=True, tag="opened"):
    seq: int
    room: int
    life: int


class OlderHandshake(msgspec.Struct, frozen=True, array_like=True, tag="handshake"):
    seq: int
    room: int
    life: int
    endpoint: DecodeEndpoint
    session: str


class OlderConcluded(msgspec.Struct, frozen=True, array_like=True, tag="concluded"):
    seq: int
    room: int
    life: int
    status: TerminalStatus
    cause: str
    drained: bool
    at_s: float
    began_at_s: float = 0.0


class OlderRegistered(msgspec.Struct, frozen=True, array_like=True, tag="registered"):
    seq: int
    endpoint: DecodeEndpoint
    session: str
    frames: int


class OlderSettled(msgspec.Struct, frozen=True, array_like=True, tag="settled"):
    room: int
    life: int
    endpoint: DecodeEndpoint


class TestRefusalsAcrossVersions:
    """A message that a reader does not know breaks its stream, so nobody is sent one who has not said that he hears
    it."""

    def test_an_older_sidecar_hears_no_refusals(self) -> None:
        older = msgspec.msgpack.encode(["welcome", PROTOCOL, "epoch"])
        (welcome,) = reply_reader().feed(len(older).to_bytes(4, "big") + older)

        assert isinstance(welcome, Welcome)
        assert not welcome.hears_refusals
        assert not welcome.takes_parcels
        assert not welcome.doorbell

    def test_an_older_rank_skips_what_a_newer_sidecar_says_more(self) -> None:
        class OlderWelcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
            protocol: int
            epoch: str

        newer = encode(Welcome(PROTOCOL, "epoch", hears_refusals=True, takes_parcels=True, doorbell=True))

        assert msgspec.msgpack.decode(newer[4:], type=OlderWelcome) == OlderWelcome(PROTOCOL, "epoch")
