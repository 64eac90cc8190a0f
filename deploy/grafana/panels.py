"""What the dashboard shows, as a table: rows of panels, each with its queries. How that becomes Grafana's JSON is
`dashboard.py`.

SELECTED stands for the instances chosen at the top of the dashboard.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    STAT = "stat"
    LINES = "lines"
    STACK = "stack"


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`warn_from`: a stat turns red from there on."""

    title: str
    text: str
    unit: str
    kind: Kind
    queries: tuple[Query, ...]
    warn_from: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


SELECTED = 'instance=~"$instance"'


def _query(expression: str, legend: str = "") -> Query:
    return Query(expression.replace("SELECTED", SELECTED), legend)


def _stat(title: str, text: str, expression: str, *, unit: str = "short", warn_from: float | None = None) -> Panel:
    return Panel(title, text, unit, Kind.STAT, (_query(expression),), warn_from)


def _lines(title: str, text: str, *queries: Query, unit: str = "short", kind: Kind = Kind.LINES) -> Panel:
    return Panel(title, text, unit, kind, queries)


def _rate(name: str, legend: str, more: str = "") -> Query:
    return _query(f"sum(rate(pd_sidecar_{name}_total{{SELECTED{more}}}[$__rate_interval]))", legend)


def _rate_by(label: str, name: str, legend: str = "") -> Query:
    expression = f"sum by ({label}) (rate(pd_sidecar_{name}_total{{SELECTED}}[$__rate_interval]))"
    return _query(expression, legend or f"{{{{{label}}}}}")


def _now(name: str, legend: str, *, by: str = "sum", more: str = "") -> Query:
    return _query(f"{by}(pd_sidecar_{name}{{SELECTED{more}}})", legend)


def _quantiles(name: str) -> tuple[Query, ...]:
    buckets = f"sum by (le) (rate(pd_sidecar_{name}_bucket{{SELECTED}}[$__rate_interval]))"
    return tuple(_query(f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f}") for share in (0.5, 0.99))


_ENDED = "pd_sidecar_notices_ended_total{SELECTED%s}[$__range]"
_SETTLED = _ENDED % ', outcome!~"expired|dropped"'

TOLD = Row(
    "Is decode told?",
    (
        _stat(
            "Prefill ranks",
            "Ranks that have said hello. 0 beside a running engine: its hooks are not in.",
            'sum(pd_sidecar_ranks{SELECTED, engine_type="prefill"})',
        ),
        _stat(
            "Hook points missing",
            "At connected ranks.",
            'sum(pd_sidecar_hooks{SELECTED, verdict="missing"})',
            warn_from=1,
        ),
        _stat(
            "Pending",
            "Notices owed now that no decode endpoint has been handed. pd-sidecar status says whom they are for.",
            "sum(pd_sidecar_owed_pending{SELECTED})",
        ),
        _stat(
            "Owed longest",
            "Age of the oldest notice that is not settled.",
            "max(pd_sidecar_owed_oldest_age_seconds{SELECTED})",
            unit="s",
            warn_from=60,
        ),
        _stat(
            "Expired",
            "In the time shown: decode was not told, or nothing showed it, until its own timeout.",
            'sum(increase(pd_sidecar_notices_ended_total{SELECTED, outcome="expired"}[$__range]))',
            warn_from=1,
        ),
        _stat(
            "Settled",
            "Of the notices that ended in the time shown, the share that was neither expired nor dropped.",
            f"sum(increase({_SETTLED})) / sum(increase({_ENDED % ''}))",
            unit="percentunit",
        ),
    ),
)

NOTICES = Row(
    "Notices",
    (
        _lines(
            "Notices by how they ended",
            "For each outcome, notices a second. Expired and dropped are the bad ones.",
            _rate_by("outcome", "notices_ended"),
            kind=Kind.STACK,
        ),
        _lines(
            "Owed",
            "What is owed is settled some seconds after the hand-off; what is pending waits for decode.",
            _now("owed", "owed"),
            _now("owed_pending", "of these pending"),
        ),
        _lines(
            "From owed to the first hand-off",
            "How late decode is told.",
            *_quantiles("owed_to_hand_off_seconds"),
            unit="s",
        ),
        _lines(
            "From owed to settled",
            "Without evidence from decode: the time that a connection must hold.",
            *_quantiles("owed_to_settled_seconds"),
            unit="s",
        ),
        _lines(
            "Attempts",
            "A refusal found no peer or no room, and is tried again.",
            _rate("hand_offs", "handed off"),
            _rate("hand_offs_again", "of these again"),
            _rate("refusals", "refused"),
        ),
        _lines(
            "How much decode is told",
            "bare: room and rank; cause: and why; status: and an HTTP status.",
            _rate_by("form", "hand_offs_by_form"),
            kind=Kind.STACK,
        ),
        _lines(
            "Not owed after all",
            "undrained and wire leave decode to its own timeout.",
            _rate_by("reason", "notices_suppressed"),
        ),
    ),
)

ROOMS = Row(
    "Rooms",
    (
        _lines("Ended", "Lives of rooms, at one rank each.", _rate_by("status", "rooms_concluded"), kind=Kind.STACK),
        _lines(
            "Held",
            "Terminal records answer a late decode, with the cause; tombstones without it.",
            _now("rooms_open", "open"),
            _now("records", "records"),
            _now("records_limit", "records at most"),
            _now("tombstones", "tombstones"),
        ),
        _lines(
            "Pushed out",
            "A bound was reached.",
            _rate("records_evicted_early", "records"),
            _rate("tombstones_lost", "tombstones"),
            _rate("rooms_dropped", "open rooms", ', reason="limit"'),
            _rate("notices_ended", "notices", ', outcome="dropped"'),
        ),
        _lines(
            "Handshakes after the end",
            "late: answered; superseded: for an older life than the one the endpoint is in.",
            _rate("handshakes_late", "late"),
            _rate("handshakes_superseded", "superseded"),
        ),
    ),
)

ENDPOINTS = Row(
    "Decode endpoints",
    (
        _lines(
            "Endpoints by connection",
            "absent: no socket, nothing is owed.",
            _query("sum by (connection) (pd_sidecar_endpoints{SELECTED})", "{{connection}}"),
            kind=Kind.STACK,
        ),
        _lines(
            "Sockets",
            "At the limit endpoints take turns.",
            _now("sockets", "open"),
            _now("connections_limit", "at most"),
        ),
        _lines("What libzmq reported", "By kind.", _rate_by("kind", "push_failures")),
        _lines(
            "Connections",
            "That came up, came up again, and went down.",
            _rate("endpoint_ups", "up"),
            _rate("reconnects", "of these again"),
            _rate("endpoint_downs", "down"),
        ),
    ),
)

RANKS = Row(
    "Ranks and their streams",
    (
        _lines(
            "Connected",
            "By sglang's rank numbers.",
            _query(
                "sum by (engine_type, tp_rank, pp_rank, dp_rank) (pd_sidecar_ranks{SELECTED})",
                "{{engine_type}} tp {{tp_rank}} pp {{pp_rank}} dp {{dp_rank}}",
            ),
            kind=Kind.STACK,
        ),
        _lines("Facts", "What ranks say, by kind.", _rate_by("kind", "facts"), kind=Kind.STACK),
        _lines(
            "Gone",
            "lost: with rooms open; died: and decode was told.",
            _rate("ranks_left", "left"),
            _rate("ranks_lost", "lost"),
            _rate("ranks_died", "died"),
        ),
        _lines(
            "Refused",
            "Streams by reason, and input that could not be meant by its source.",
            _rate_by("reason", "streams_refused", "stream: {{reason}}"),
            _rate_by("source", "malformed_input", "malformed: {{source}}"),
        ),
    ),
)

ITSELF = Row(
    "The sidecar itself",
    (
        _lines(
            "Lag of the event loop",
            "How late it wakes up; the longest within a minute.",
            _now("event_loop_lag_seconds", "now", by="max"),
            _now("event_loop_lag_max_seconds", "longest", by="max"),
            unit="s",
        ),
        _lines(
            "Used of each bound",
            "The fullest instance.",
            _query("max(pd_sidecar_records{SELECTED} / pd_sidecar_records_limit{SELECTED})", "records"),
            _query("max(pd_sidecar_sockets{SELECTED} / pd_sidecar_connections_limit{SELECTED})", "connections"),
            _query("max(pd_sidecar_streams_open{SELECTED} / pd_sidecar_streams_limit{SELECTED})", "streams"),
            unit="percentunit",
        ),
        _lines(
            "Facts that did not count",
            "dropped: a rank's queue was full, it replayed; implausible: no engine can mean them.",
            _rate("facts_replayed", "replayed"),
            _rate("facts_dropped", "dropped"),
            _rate("facts_implausible", "implausible"),
        ),
        _lines(
            "Alerts",
            "Those of deploy/prometheus, pending or firing.",
            _query(
                'count by (alertname, alertstate) (ALERTS{alertname=~"PdSidecar.+"})', "{{alertname}} {{alertstate}}"
            ),
        ),
    ),
)

ROWS = (TOLD, NOTICES, ROOMS, ENDPOINTS, RANKS, ITSELF)
