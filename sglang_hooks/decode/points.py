"""What the decode half takes hold of in sglang, beside the manager itself. Without both it stands down; the guard of
the control thread needs neither.
"""

from sglang_hooks.compat import FOUND, verdict_of
from sglang_hooks.hook_points import HookPoint

CONNECTION = HookPoint(
    "prefill_connection",
    "sglang.srt.disaggregation.common.conn.CommonKVReceiver._connect_to_bootstrap_server",
    ("bootstrap_info",),
)
"""Everything that decode says to a prefill rank goes over what this returns: a socket and its lock."""

FAILED_REQUEST = HookPoint(
    "failed_request",
    "sglang.srt.disaggregation.utils.prepare_abort",
    ("req", "error_message", "status_code"),
)
"""Gives a failed request the message and the HTTP status that its client sees."""

DECODE_POINTS = (CONNECTION, FAILED_REQUEST)


def missing_points() -> dict[str, str]:
    verdicts = {point.name: verdict_of(point) for point in DECODE_POINTS}
    return {name: verdict for name, verdict in verdicts.items() if verdict != FOUND}
