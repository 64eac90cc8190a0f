"""Status messages as decode's control thread takes them, byte for byte (sglang `sync_status_to_decode_endpoint`)."""

from collections.abc import Callable

from sidecar.model import Notice

KV_POLL_FAILED = b"0"


def mooncake_failed(notice: Notice) -> list[bytes]:
    """The three-frame form for Mooncake and Ascend. A fourth frame ends the control thread of a decode up to sglang
    0.5.19.
    """
    return [b"%d" % notice.room, KV_POLL_FAILED, b"%d" % notice.prefill_rank]


FORMS: dict[str, Callable[[Notice], list[bytes]]] = {"ascend": mooncake_failed, "mooncake": mooncake_failed}
"""By transfer backend. A backend that is not here has a decode that nothing is known to reach."""


def failed_frames(notice: Notice) -> list[bytes]:
    return FORMS[notice.backend](notice)
