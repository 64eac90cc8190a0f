"""What decode's control thread can get: read as what it is, or junk with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hooks.messages.decode import DecodeStock, read_for_decode
from sglang_hooks.messages.values import AuxData, DecodeMessage, Family, Junk, Other, Staging, Status
from tests.sglang_hooks.samples import AUX, CHUNK, DECODE_JUNK, REQUEST

OLD = DecodeStock(Family.MOONCAKE, stands_unknown=False)
STOCKS = {
    "mooncake 0.5.18": OLD,
    "mooncake 0.5.20": DecodeStock(Family.MOONCAKE, stands_unknown=True),
    "nixl": DecodeStock(Family.NIXL, stands_unknown=True),
    "mori": DecodeStock(Family.MORI, stands_unknown=True),
}
TAGS = {Family.MOONCAKE: [], Family.NIXL: [b"KV_STATUS"], Family.MORI: [b"MoriMsgGuard"]}
every_stock = pytest.mark.parametrize("stock", STOCKS.values(), ids=STOCKS)


def status(stock: DecodeStock, *payload: bytes) -> DecodeMessage:
    return read_for_decode([*TAGS[stock.family], *payload], stock)


@every_stock
def test_a_status_as_stock_sends_it(stock: DecodeStock) -> None:
    assert status(stock, b"4711", b"0", b"3") == Status(4711, 0, 3)
    assert status(stock, b"4711", b"4", b"3", b"") == Status(4711, 4, 3)


@every_stock
def test_a_status_with_the_cause(stock: DecodeStock) -> None:
    found = status(stock, b"4711", b"0", b"3", b"DRAINED_ABORT: Aborted \xc3\xa9 \xff")
    assert found == Status(4711, 0, 3, "Aborted \u00e9 \ufffd", None, is_ours=True)


@every_stock
@pytest.mark.parametrize(("digits", "http_status"), [(b"400", 400), (b"503", 503), (b"599", 599)])
def test_a_status_with_the_http_status(stock: DecodeStock, digits: bytes, http_status: int) -> None:
    assert status(stock, b"4711", b"0", b"3", b"why", digits) == Status(4711, 0, 3, "why", http_status, is_ours=True)


@pytest.mark.parametrize("digits", [b"", b"200", b"600", b"5033", b"+50", b"5x3", b"\xff"])
def test_what_is_no_http_status_of_a_failure_is_none(digits: bytes) -> None:
    assert status(OLD, b"4711", b"0", b"3", b"why", digits) == Status(4711, 0, 3, "why", None, is_ours=True)


def test_the_messages_of_the_staging_buffers() -> None:
    assert read_for_decode(CHUNK, OLD) == read_for_decode(REQUEST, OLD) == Staging()


def test_output_metadata() -> None:
    assert read_for_decode(AUX, OLD) == AuxData(1, 2, 3)
    assert read_for_decode(AUX, STOCKS["nixl"]) == Other()


@every_stock
@pytest.mark.parametrize("rest", [[], [b"0"], [b"0", b"7"]])
def test_an_abort_ack(stock: DecodeStock, rest: list[bytes]) -> None:
    assert read_for_decode([b"ABORT_ACK", b"4711", *rest], stock) == Other()


@pytest.mark.parametrize("name", DECODE_JUNK)
def test_junk(name: str) -> None:
    frames, reason = DECODE_JUNK[name]
    assert read_for_decode(frames, OLD) == Junk(reason)


@pytest.mark.parametrize("name", ["mooncake 0.5.20", "nixl", "mori"])
def test_what_stock_stands_goes_there(name: str) -> None:
    """A newer sglang may know it."""
    for frames in ([b"HELLO"], [b"\xff", b"0", b"0"]):
        assert read_for_decode(frames, STOCKS[name]) == Other()


def test_mori_has_no_staging_buffers() -> None:
    assert (
        read_for_decode([b"CHUNK_READY"], STOCKS["mori"])
        == read_for_decode([b"STAGING_REQ"], STOCKS["mori"])
        == Other()
    )


frame = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"ABORT_ACK", b"AUX_DATA", b"CHUNK_READY", b"STAGING_REQ", b"KV_STATUS", b"MoriMsgGuard"]),
    st.sampled_from([b"", b"0", b"4", b"4711", b"-1", b"503", b"DRAINED_ABORT: why"]),
)


@given(st.lists(frame, max_size=8), st.sampled_from(list(STOCKS.values())))
def test_any_frames_give_a_value_or_junk(frames: list[bytes], stock: DecodeStock) -> None:
    message = read_for_decode(frames, stock)

    if isinstance(message, Status) and message.http_status is not None:
        assert 400 <= message.http_status <= 599
