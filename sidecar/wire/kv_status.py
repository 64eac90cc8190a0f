"""Status messages as decode's control thread takes them, byte for byte (sglang `sync_status_to_decode_endpoint`)."""

from sidecar.model import Notice

KV_POLL_FAILED = b"0"


def mooncake_failed(notice: Notice) -> list[bytes]:
    """The three-frame form for Mooncake and Ascend. A fourth frame ends the control thread of a decode up to sglang 0.5.19."""
    return [str(notice.room).encode("ascii"), KV_POLL_FAILED, str(notice.prefill_rank).encode("ascii")]
