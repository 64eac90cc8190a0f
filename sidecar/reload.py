"""The settings of a running sidecar: which of them can be read again, and what that changes."""

from collections.abc import Callable

import structlog
from msgspec import structs

from sidecar.config import RELOADABLE, Config
from sidecar.core.limits import Limits, OutboxLimits, RoomLimits
from sidecar.errors import ConfigError
from sidecar.wire.kv_status import LAYOUTS

ACK_DELAY_S = 1.0
SETTLE_GRAIN_S = 0.05


def limits_of(config: Config, *, connections: int) -> Limits:
    return Limits(
        rooms=RoomLimits(records=config.record_limit),
        outbox=OutboxLimits(
            settle_after_s=config.settle_after_s,
            settle_grain_s=SETTLE_GRAIN_S,
            idle_close_s=config.idle_close_s,
            connections=connections,
        ),
        idle_exit_s=config.idle_exit_s,
        ack_delay_s=ACK_DELAY_S,
        backends=frozenset(LAYOUTS),
        decode_sglang=config.decode_sglang or "",
    )


class Settings:
    """`now` is what holds. `reread` gives the settings as they are set at this moment, or raises ConfigError."""

    def __init__(self, config: Config, *, reread: Callable[[], Config], set_level: Callable[[str], None]) -> None:
        self.now = config
        self._reread = reread
        self._set_level = set_level

    def reload(self, apply: Callable[[Config], None]) -> None:
        """All of what can change, or nothing: a file with one bad value leaves everything as it is."""
        logger = structlog.get_logger("sidecar")
        try:
            wanted = self._reread()
        except ConfigError as error:
            logger.warning("settings not reread", reason=str(error))
            return
        differing = {name: value for name, value in structs.asdict(wanted).items() if value != getattr(self.now, name)}
        changed = {name: value for name, value in differing.items() if name in RELOADABLE}
        self.now = structs.replace(self.now, **changed)
        self._set_level(self.now.log_level)
        apply(self.now)
        needs_restart = sorted(set(differing) - set(changed))
        report = logger.warning if needs_restart else logger.info
        report("settings reread", changed=changed, needs_restart=needs_restart, log_level=self.now.log_level)
