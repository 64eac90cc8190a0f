"""What the plugin has counted at one rank, beside its stream and its lives."""

from dataclasses import dataclass, field

from sglang_hooks.dropped import no_junk


@dataclass
class RankCounts:
    """`junk`: control messages that were dropped, by reason."""

    late_handshakes: int = 0
    told_lives: int = 0
    undrained_lives: int = 0
    shared_endpoint_aborts: int = 0
    guarded_aborts: int = 0
    revivals_purged: int = 0
    deaths_of_siblings: int = 0
    refused_lives: int = 0
    refusals_of_others: int = 0
    doubts_released: int = 0
    doubts_unanswered: int = 0
    doubts_over_limit: int = 0
    handshakes_over_limit: int = 0
    junk: dict[str, int] = field(default_factory=no_junk)
