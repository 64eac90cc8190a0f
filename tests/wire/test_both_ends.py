"""What the sidecar writes to decode's own half, as that half reads it; and what the half says of itself, as it is
judged here.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sglang_hooks.messages.decode import DecodeStock, read_for_decode
from sglang_hooks.messages.values import Family, Status
from sidecar.core.dialects import Ground, judged
from sidecar.core.ranks import Registration
from sidecar.model import Form, Notice
from sidecar.wire.decode_half import announced, announcement
from sidecar.wire.kv_status import failed_frames, one_line
from tests.wire.test_kv_status import notices, rooms

FAMILIES = {
    "mooncake": Family.MOONCAKE,
    "ascend": Family.MOONCAKE,
    "nixl": Family.NIXL,
    "mori": Family.MORI,
}


@pytest.mark.parametrize("stands_unknown", [False, True], ids=["up_to_19", "from_20_on"])
@pytest.mark.parametrize("backend", list(FAMILIES))
@given(room=rooms, said=notices, http_status=st.sampled_from([0, 400, 499, 503, 599]))
@settings(max_examples=40, deadline=None)
def test_the_half_reads_the_cause_and_the_status(
    backend: str, stands_unknown: bool, room: int, said: Notice, http_status: int
) -> None:
    sent = replace(said, backend=backend, http_status=http_status)
    stock = DecodeStock(FAMILIES[backend], stands_unknown=stands_unknown)

    heard = read_for_decode(failed_frames(room, sent, Form.STATUS), stock)

    assert isinstance(heard, Status)
    assert (heard.room, heard.status, heard.prefill_rank) == (room, 0, said.prefill_rank)
    assert heard.http_status == (http_status or None)
    assert heard.reason == one_line(said.cause).decode()


@pytest.mark.parametrize(("frames", "sglang", "holds_pages"), [(18, "0.5.18", False), (20, "0.5.23", True)])
def test_what_a_half_announces_is_judged_by_its_version(frames: int, sglang: str, holds_pages: bool) -> None:
    found = announced(announcement([b"x"] * frames, sglang))
    assert found is not None

    dialect = judged("mooncake", Registration(1, "s", found.frames, found.decode_half), decode_sglang="0.5.20")

    assert (dialect.form, dialect.ground) == (Form.STATUS, Ground.DECODE_HALF)
    assert (dialect.sglang, dialect.holds_pages) == (sglang, holds_pages)
