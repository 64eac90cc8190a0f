"""What bounds the core and how long things take: one frozen value, made by the composition root."""

from msgspec import Struct

from sidecar.core.parcel_lane import ParcelLimits


class RoomLimits(Struct, frozen=True, kw_only=True):
    records: int = 4096
    open_rooms: int = 65_536
    succeeded: int = 8192
    tombstones: int = 262_144


class OutboxLimits(Struct, frozen=True, kw_only=True):
    """`trust_s`: how long a predecessor's hand-off, and what was heard of an endpoint, is believed in while there is no
    connection yet. `settle_grain_s`: how much later than due a settling may be looked at, together with those of other
    endpoints: each look wakes the process. 0: none.
    """

    settle_after_s: float = 5.0
    settle_grain_s: float = 0.0
    idle_close_s: float = 600.0
    notices_per_endpoint: int = 8192
    notices_total: int = 131_072
    connections: int = 4096
    trust_s: float = 3.0


class Limits(Struct, frozen=True, kw_only=True):
    """`idle_exit_s` 0: never. `backends` are those whose status messages the shell can write. `decode_sglang` is the
    version that the operator says decode endpoints run, "" if that is not said.

    `death_grace_s`: how long bytes of a dead rank may be on their way into decode's memory.
    `ack_delay_s`: how long an acknowledgement may wait for company. Each one wakes a thread beside a busy scheduler.
    """

    rooms: RoomLimits = RoomLimits()
    outbox: OutboxLimits = OutboxLimits()
    parcels: ParcelLimits = ParcelLimits()
    retry_first_s: float = 0.02
    retry_cap_s: float = 5.0
    idle_exit_s: float = 0.0
    ack_delay_s: float = 0.0
    death_grace_s: float = 0.1
    backends: frozenset[str] = frozenset({"ascend", "mooncake", "mori", "nixl"})
    decode_sglang: str = ""
