"""The guard of a prefill rank's control thread, where the plugin does nothing else: sglang tells decode itself."""

from typing import Any

from sglang_hooks.contain import contained
from sglang_hooks.dropped import Dropped, no_junk
from sglang_hooks.hooks.control import has_never_registered, is_without_staging, prefill_stock
from sglang_hooks.hooks.gate import Frames, Gate
from sglang_hooks.messages.prefill import read_for_prefill
from sglang_hooks.messages.values import Family, Junk, Metadata, Reason, Watermark


class PrefillGuard:
    def __init__(self, manager: Any) -> None:
        self.junk = no_junk()
        self._manager = manager
        self._stock = prefill_stock(manager)
        self._dropped = Dropped(self.junk, where="prefill's control socket")

    def install(self) -> None:
        """Before the manager's threads exist."""
        Gate(self._manager, take=self._take, handled=lambda: None, dropped=self._dropped).install()

    def _take(self, frames: Frames) -> Frames | None:
        reason = self._why_not(frames)
        if reason is None:
            return frames
        self._dropped.note(reason, frames)
        return None

    @contained(otherwise=None)
    def _why_not(self, frames: Frames) -> Reason | None:
        match read_for_prefill(frames, self._stock):
            case Junk(reason):
                return reason
            case Metadata(session=session, is_dummy=False):
                looks_up = self._stock.family is not Family.MORI
                return Reason.MISMATCHED if looks_up and has_never_registered(self._manager, session) else None
            case Watermark() if is_without_staging(self._manager):
                return Reason.MISMATCHED
            case _:
                return None

    @contained(otherwise=None)
    def report(self, result: Any) -> None:
        """For sglang's `/server_info`."""
        result.internal_state.setdefault("pd_sidecar", {"role": "prefill", "junk": dict(self.junk)})
