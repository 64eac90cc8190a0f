"""What a decode endpoint is known to take, and why it is believed.

Best is the word of decode's own half of this project, which announces the sglang it runs in; then the operator's
setting; then the length of the endpoint's KV registration, by which sglang versions differ. Of what is not known the
least is assumed.
"""

import enum
import re
from functools import lru_cache

from msgspec import Struct

from sidecar.core.ranks import Rank, RankTable, Registration
from sidecar.model import DecodeEndpoint, Form

OLDEST_SENDER: dict[str, dict[int, str]] = {
    "mooncake": {18: "0.5.17", 19: "0.5.19", 20: "0.5.21"},
    "nixl": {24: "0.5.17", 25: "0.5.23"},
    "mori": {14: "0.5.12", 18: "0.5.22"},
}
"""By transfer backend and frames of a KV registration: the oldest sglang that sends so many (`_register_kv_args`, in
0.5.23 `build_receiver_registration_message`). Mooncake's 19 frames are those of 0.5.20 too."""

TAKES_CAUSE_SINCE = {"mooncake": "0.5.20", "nixl": "", "mori": ""}
"""NIXL and Mori need no version: a decode that does not read the cause loses nothing over it (`wire/kv_status.py`)."""

HOLDS_PAGES_SINCE = {"mooncake": "0.5.21", "nixl": "0.5.21", "mori": "0.5.22"}
"""From then on decode keeps the pages of a failed transfer until prefill has stopped writing, unless it is switched off
there (sglang `supports_deferred_decode_kv_release`, `SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE`)."""

CONTROL_PLANE = {"ascend": "mooncake"}
"""Backends that speak as another one does (`AscendKVManager` is a `MooncakeKVManager`)."""


class Ground(enum.Enum):
    """What a dialect is believed by. The first one there is counts."""

    DECODE_HALF = "decode half"
    SETTING = "setting"
    REGISTRATION = "registration"
    NOTHING = "nothing"


class Dialect(Struct, frozen=True):
    """`form` is the most the endpoint takes. `sglang` is the version it is at least, "" if not known."""

    form: Form
    holds_pages: bool
    ground: Ground
    sglang: str = ""


class Dialects:
    """`decode_sglang` is the operator's setting, "" without one. It may change."""

    def __init__(self, ranks: RankTable, *, decode_sglang: str) -> None:
        self.decode_sglang = decode_sglang
        self._ranks = ranks

    def of_a_registration(self, rank: Rank, registration: Registration) -> Dialect:
        """Of the decode that registered so."""
        return judged(rank.backend, registration, decode_sglang=self.decode_sglang)

    def of_a_stranger(self, rank: Rank) -> Dialect:
        """Of an endpoint of which nothing is known but its backend."""
        return _of_a_stranger(rank.backend, self.decode_sglang)

    def of(self, endpoint: DecodeEndpoint) -> tuple[Dialect, Registration | None]:
        """For show: by the rank that joined or left last of those that know it."""
        known = self._ranks.known
        for rank in reversed(known):
            if (registration := rank.registration_of(endpoint)) is not None:
                return self.of_a_registration(rank, registration), registration
        return judged(known[-1].backend if known else "", None, decode_sglang=self.decode_sglang), None


def judged(backend: str, registration: Registration | None, *, decode_sglang: str) -> Dialect:
    frames, decode_half = (registration.frames, registration.decode_half) if registration else (0, "")
    return _judge(CONTROL_PLANE.get(backend, backend), frames, decode_half, decode_sglang)


@lru_cache(maxsize=16)
def _of_a_stranger(backend: str, decode_sglang: str) -> Dialect:
    return judged(backend, None, decode_sglang=decode_sglang)


@lru_cache(maxsize=256)
def _judge(spoken: str, frames: int, decode_half: str, decode_sglang: str) -> Dialect:
    by_frames = OLDEST_SENDER.get(spoken, {}).get(frames, "")
    sglang = next((version for version in (decode_half, decode_sglang, by_frames) if _numbers(version)), "")
    holds_pages = spoken in HOLDS_PAGES_SINCE and _is_since(sglang, HOLDS_PAGES_SINCE[spoken])
    if decode_half:
        return Dialect(Form.STATUS, holds_pages, Ground.DECODE_HALF, sglang)
    takes_cause = spoken in TAKES_CAUSE_SINCE and _is_since(sglang, TAKES_CAUSE_SINCE[spoken])
    ground = Ground.SETTING if decode_sglang else Ground.REGISTRATION if sglang else Ground.NOTHING
    return Dialect(Form.CAUSE if takes_cause else Form.BARE, holds_pages, ground, sglang)


def _is_since(version: str, first: str) -> bool:
    return _numbers(version) >= _numbers(first)


def _numbers(version: str) -> tuple[int, ...]:
    """() for a word that is no version."""
    found = _VERSION.match(version)
    return tuple(map(int, found[0].split("."))) if found else ()


_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){1,3}", re.ASCII)
