"""A stock prefill is never harmed by the decode half: what it appends to a KV registration, no version reads."""

import struct

import pytest

from sglang_hooks.messages.prefill import PrefillStock, read_for_prefill
from sglang_hooks.messages.values import Family, Registration
from sidecar.wire.decode_half import acknowledgement, announcement
from tests.drift.registrations import parser_of
from tests.sglang_hooks.samples import HERE, INDICES, LISTS, LONG_LISTS, MORI_GUARD, NIXL_GUARD, POINTERS

VERSIONS = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")

MOONCAKE_18 = [b"None", *HERE, b"10.0.0.7:9", POINTERS, POINTERS, LONG_LISTS, b"0", b"1", b"64"]
MOONCAKE_18 += [LISTS, LISTS, INDICES, LISTS, b"", b"", b"1", b"0"]
NIXL_24 = [NIXL_GUARD, b"None", *HERE, b"agent", b"\xff", POINTERS, POINTERS, b"", b"0", b"1", b"0", b"64"]
NIXL_24 += [LISTS, LISTS, b"", b"", b"8", b"VRAM,VRAM", POINTERS, LISTS, INDICES, b"1", b"0"]
MORI_14 = [MORI_GUARD, b"None", *HERE, b"agent", b"", b"", b"", b"0", b"1", b"0", b"64", LISTS, LISTS]

SENT = {
    "mooncake 0.5.18": (Family.MOONCAKE, MOONCAKE_18),
    "mooncake 0.5.19": (Family.MOONCAKE, [*MOONCAKE_18, b""]),
    "mooncake 0.5.21": (Family.MOONCAKE, [*MOONCAKE_18, b"", POINTERS]),
    "mooncake with staging": (Family.MOONCAKE, [*MOONCAKE_18[:14], struct.pack("Q", 7), b"8", b"1", b"0", POINTERS]),
    "nixl 0.5.18": (Family.NIXL, NIXL_24),
    "nixl 0.5.23": (Family.NIXL, [*NIXL_24, LONG_LISTS]),
    "mori 0.5.18": (Family.MORI, MORI_14),
    "mori 0.5.22": (Family.MORI, [*MORI_14, b"1", b"0", LISTS, INDICES]),
}
"""By the first decode that sends it so."""


@pytest.mark.parametrize("prefill", VERSIONS)
@pytest.mark.parametrize("decode", SENT)
def test_what_is_appended_changes_nothing(prefill: str, decode: str) -> None:
    family, frames = SENT[decode]
    parse = parser_of(prefill, family)

    assert parse(announcement(frames, "0.5.23")) == parse(acknowledgement(frames, 4711)) == parse(frames)


@pytest.mark.parametrize("decode", SENT)
def test_our_own_prefill_reads_what_was_sent(decode: str) -> None:
    family, frames = SENT[decode]
    found = read_for_prefill(announcement(frames, "0.5.23"), PrefillStock(family))

    assert isinstance(found, Registration)
    assert found.frames == len(frames)


@pytest.mark.parametrize(("prefill", "decode"), [("0.5.21", "mooncake 0.5.19"), ("0.5.23", "nixl 0.5.18")])
def test_right_behind_it_would_end_a_newer_prefill(prefill: str, decode: str) -> None:
    """Why the appendix stands at an index that no version uses."""
    family, frames = SENT[decode]

    with pytest.raises(struct.error):
        parser_of(prefill, family)([*frames, b"pd-sidecar/1"])
