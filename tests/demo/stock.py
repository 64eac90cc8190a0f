"""What stock does with each scenario, by version and backend: found by `python -m tests.demo --stock-only`."""

from tests.pair.versions import at_least

ALWAYS = (
    "abort_all",
    "abort_one_waiting",
    "abort_chunked",
    "abort_inflight",
    "bootstrap_queue",
    "disconnect",
    "late_handshake",
    "late_handshake_room_reused",
    "router",
    "too_long",
    "junk",
)


def hangs_in_stock(sglang: str) -> tuple[str, ...]:
    """Stock up to 0.5.19 ignores an abort of a running request and serves it, and prefills a stub of one token for a
    prompt that P cannot hold, so that decode answers at once, wrongly."""
    return (*ALWAYS, "abort_running", "over_capacity") if at_least(sglang, "0.5.20") else ALWAYS


def hears_prefill(sglang: str, backend: str) -> bool:
    """Whether a stock decode of that version can be told anything: with NIXL it reads no such message up to 0.5.19."""
    return backend != "nixl" or at_least(sglang, "0.5.20")
