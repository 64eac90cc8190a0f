"""What decode is owed, and where it listens. Part of the vocabulary (`model.py`), which is where to import it from."""

import enum

from msgspec import Struct


class DecodeEndpoint(Struct, frozen=True, array_like=True, order=True, cache_hash=True, gc=False):
    """Where one decode rank listens for status messages (sglang `TransferInfo.endpoint`, `dst_port`)."""

    host: str
    port: int


class Form(enum.Enum):
    """How much a notice says. Which one an endpoint takes is its *dialect*."""

    BARE = "bare"  # room and rank: what every decode takes
    CAUSE = "cause"  # and why
    STATUS = "status"  # and an HTTP status for decode's client: decode's own half alone reads that

    __hash__ = object.__hash__  # looked up for each notice; an enum would hash its name each time


class Notice(Struct, frozen=True, gc=False):
    """What decode is told of a room that has failed at `prefill_rank`, the same of all that ended alike. `cause` and
    `http_status` travel only as its Form says.

    `backend` is the transfer backend of both engines (sglang `disaggregation_transfer_backend`): it decides the frames.
    Not `drained`: prefill may still be writing, and this endpoint holds its pages until it does not.
    """

    prefill_rank: int
    cause: str
    backend: str = "mooncake"
    http_status: int = 0
    drained: bool = True
