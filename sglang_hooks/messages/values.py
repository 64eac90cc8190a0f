"""What a control message says, as far as the plugin needs to know; and why one is junk."""

import enum
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from sidecar.model import DecodeEndpoint


class Family(enum.StrEnum):
    """Backends by their control plane. Ascend has Mooncake's."""

    MOONCAKE = "mooncake"
    NIXL = "nixl"
    MORI = "mori"


class Reason(enum.Enum):
    """Why a message was dropped. `MISMATCHED`: well formed, but not what its fields are for, or not for this rank.
    `RAISED`: it looked right, and stock raised an exception over it.
    """

    UNKNOWN_TAG = "unknown_tag"
    NOT_ASCII = "not_ascii"
    TOO_SHORT = "too_short"
    OVERSIZED = "oversized"
    MISMATCHED = "mismatched"
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Junk:
    reason: Reason


@dataclass(frozen=True, slots=True)
class Other:
    """Taken by stock, and of no concern to the plugin."""


# -- to prefill


@dataclass(frozen=True, slots=True)
class Registration:
    """Decode's KV buffers. `frames`: as many as decode's sglang sent, without what its decode half has added.

    `session`: "" with Mori, which has it in a form of the vendor's. `decode_half`: what that half announced, or "".
    `acknowledged`: the room whose notice it says it has.
    """

    endpoint: DecodeEndpoint
    session: str
    frames: int
    decode_half: str = ""
    acknowledged: int | None = None


class Metadata(Struct, frozen=True):
    """One decode rank's handshake for a room. A dummy expects no data and hears no status."""

    room: int
    endpoint: DecodeEndpoint
    session: str
    is_dummy: bool


@dataclass(frozen=True, slots=True)
class Abort:
    """Decode gives the room up. `endpoint` is None where stock takes the message without one."""

    room: int
    endpoint: DecodeEndpoint | None


@dataclass(frozen=True, slots=True)
class Watermark:
    """Of the staging buffers: stock takes it only if it has some."""


PrefillMessage: TypeAlias = Registration | Metadata | Abort | Watermark | Other | Junk


# -- to decode


@dataclass(frozen=True, slots=True)
class Status:
    """One prefill rank's end of a room. `reason` is "" if there is none. `http_status`: for decode's client, if given.

    `is_ours`: written by a prefill of this project, which wants to know that it has come. Stock says no reason, except
    with Mori, where it takes an acknowledgement for a registration that it knows.
    """

    room: int
    status: int
    prefill_rank: int
    reason: str = ""
    http_status: int | None = None
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class AuxData:
    """Output metadata over the control socket: stock writes `size` bytes at the slot without looking."""

    buffer_index: int
    aux_index: int
    size: int


@dataclass(frozen=True, slots=True)
class Staging:
    """Of the staging buffers: stock takes it only if it has a staging handler."""


DecodeMessage: TypeAlias = Status | AuxData | Staging | Other | Junk
