"""What Prometheus reads: a collector that looks at the core's counters and tables when it is asked.

Labels come from closed sets and rank numbers only, by sglang's names: never a room, a request or an endpoint.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sidecar.core.endpoint_queue import Connection
from sidecar.core.keys import Outcome, Untold
from sidecar.core.notifier import Notifier
from sidecar.core.parcel import ParcelOutcome, ParcelRefusal
from sidecar.core.stats import BUCKETS_S, Histogram
from sidecar.model import PROTOCOL, TOKENIZER, Fact, Form, Hello
from sidecar.shell.descriptors import DescriptorBudget
from sidecar.shell.ingress import IngressServer
from sidecar.shell.log import Repeats
from sidecar.shell.pulse import Pulse
from sidecar.shell.push import PushPool
from sidecar.shell.visitors import Visitors

PREFIX = "pd_sidecar"
RANK_LABELS = ("engine_type", "tp_rank", "pp_rank", "dp_rank")
ENGINE_TYPES = ("prefill", "decode", "unified", TOKENIZER)
"""sglang `DisaggregationMode.to_engine_type`, and the process in front of prefill's ranks."""

BACKENDS = ("mooncake", "mori", "nixl", "ascend", "fake")
"""sglang `TransferBackend`."""

OTHER = "other"
RANK_NUMBERS = 4096
"""Rank numbers from here on are no rank's."""

FOUND = "found"
MISSING = "missing"

WRITTEN_ELSEWHERE = {
    "streams_refused": (
        *("foreign_user", "implausible_hello", "malformed", "no_hello", "protocol", "replaced"),
        *("second_hello", "slow_reader", "too_many_streams"),
    ),
    "rooms_dropped": ("early", "left", "limit"),
    "connections_closed": ("idle", "limit"),
    "push_failures": ("closed", "handshake_failed", "lookup", "open", "other", "retried", "send"),
    "http_connections_cut": ("limit", "time"),
}
"""Values of a label that other modules write as literals. Each is there from the start, as 0: to Prometheus a counter
that comes later begins with its first value, so it sees no increase in the first event, often the only one.
"""


class Counted(Struct, frozen=True, kw_only=True):
    """Counters and gauges that are not the core's."""

    push: PushPool
    ingress: IngressServer
    pulse: Pulse
    repeats: Repeats
    budget: DescriptorBudget
    visitors: Callable[[], Visitors | None] = lambda: None
    spans: Mapping[str, int] = {}


class SidecarCollector(Collector):
    def __init__(self, *, notifier: Notifier, counted: Counted, version: str) -> None:
        self._notifier = notifier
        self._counted = counted
        self._version = version

    def collect(self) -> Iterator[Metric]:
        yield self._build_info()
        yield from self._facts()
        yield from self._rooms()
        yield from self._notices()
        yield from self._parcels()
        yield from self._connections()
        yield from self._ranks()
        yield from self._process()

    def _build_info(self) -> Metric:
        value = {"version": self._version, "protocol": str(PROTOCOL)}
        return InfoMetricFamily(f"{PREFIX}_build", "Version and protocol of what runs.", value=value)

    def _facts(self) -> Iterator[Metric]:
        stats = self._notifier.stats
        kinds = dict.fromkeys((kind.__name__ for kind in Fact.__args__), 0)
        yield _by_label("facts", "Facts received from ranks.", "kind", {**kinds, **stats.facts})
        yield _counter("facts_replayed", "Facts that an earlier stream had brought already.", stats.facts_replayed)
        yield _counter("facts_implausible", "Facts dropped because no engine can mean them.", stats.facts_implausible)
        yield _counter("facts_dropped", "Facts that did not fit a rank's queue; it replayed.", stats.facts_dropped)
        refused: Counter[str] = stats.refused_streams + self._counted.ingress.junk
        yield _by_label("streams_refused", "Streams refused or closed for what they sent.", "reason", refused)
        yield _counter("streams", "Streams accepted.", self._counted.ingress.accepted)
        spared = "Replies not written to ranks that read too slowly."
        yield _counter("replies_spared", spared, self._counted.ingress.replies_spared)
        malformed = {
            "stream": self._counted.ingress.junk["malformed"],
            "hello": stats.refused_streams["implausible_hello"] + stats.refused_streams["protocol"],
            "fact": stats.facts_implausible,
        }
        yield _by_label("malformed_input", "What could not be meant, by where it came from.", "source", malformed)

    def _rooms(self) -> Iterator[Metric]:
        rooms, stats = self._notifier.rooms, self._notifier.stats
        ends = {"failed": stats.rooms_failed, "undrained": stats.rooms_undrained, "succeeded": stats.rooms_succeeded}
        yield _by_label("rooms_concluded", "Lives of rooms that ended, at one rank each.", "status", ends)
        yield _counter("rooms_contradicted", "Second, different ends, ignored.", stats.rooms_contradicted)
        yield _gauge("rooms_open", "Lives that have not ended.", rooms.open_rooms)
        yield _by_label("rooms_dropped", "Open lives forgotten.", "reason", stats.open_rooms_dropped)
        yield _gauge("records", "Terminal records held.", rooms.records)
        yield _gauge("records_limit", "Terminal records that may be held.", rooms.record_limit)
        yield _counter("records_expired", "Terminal records past decode's own timeout.", stats.records_expired)
        yield _counter("records_evicted_early", "Terminal records pushed out.", stats.records_evicted_early)
        yield _gauge("tombstones", "Evicted records of which the number and expiry are kept.", rooms.tombstones)
        yield _counter("tombstones_lost", "Tombstones pushed out: a late decode goes untold.", stats.tombstones_lost)
        yield _counter("handshakes_late", "Handshakes after the end, answered.", stats.handshakes_late)
        superseded = "Handshakes for a life older than the one the endpoint is in."
        yield _counter("handshakes_superseded", superseded, stats.handshakes_superseded)
        yield _counter("handshakes_over_limit", "Handshakes over the bound of one life.", stats.handshakes_over_limit)

    def _notices(self) -> Iterator[Metric]:
        outbox, stats = self._notifier.outbox, self._notifier.stats
        outcomes = dict.fromkeys((outcome.value for outcome in Outcome), 0)
        yield _counter("notices_owed", "Notices that became owed.", stats.notices_owed)
        yield _by_label("notices_ended", "Notices by how they ended.", "outcome", {**outcomes, **stats.notices_ended})
        reasons = dict.fromkeys((reason.value for reason in Untold), 0)
        suppressed = {**reasons, **stats.notices_suppressed}
        yield _by_label("notices_suppressed", "Notices not owed after all.", "reason", suppressed)
        attempts = stats.hand_offs + stats.refusals
        yield _counter("attempts", "Attempts: hand-offs and refusals.", attempts)
        yield _counter("hand_offs", "Attempts that a connected socket took.", stats.hand_offs)
        forms = {form.value: stats.hand_offs_by_form[form] for form in Form}
        yield _by_label("hand_offs_by_form", "Hand-offs by how much the notice said.", "form", forms)
        yield _counter("hand_offs_again", "Hand-offs after the first of a notice.", stats.hand_offs_again)
        yield _counter("refusals", "Attempts that found no peer or no room.", stats.refusals)
        yield _gauge("owed", "Notices owed now.", len(outbox))
        yield _gauge("owed_pending", "Notices owed and not handed off.", outbox.pending)
        oldest = outbox.oldest_owed_since
        age_s = 0.0 if oldest is None else time.monotonic() - oldest
        yield _gauge("owed_oldest_age_seconds", "Age of the notice owed longest.", age_s)
        yield _histogram("owed_to_hand_off_seconds", "From owed to the first hand-off.", stats.owed_to_hand_off)
        yield _histogram("owed_to_settled_seconds", "From owed to settled.", stats.owed_to_settled)

    def _parcels(self) -> Iterator[Metric]:
        parcels, stats = self._notifier.parcels, self._notifier.stats
        yield _counter("parcels_taken", "Messages of stock's own taken to be carried.", stats.parcels_taken)
        reasons = {**dict.fromkeys((reason.value for reason in ParcelRefusal), 0), **stats.parcels_refused}
        yield _by_label("parcels_refused", "Such messages left to stock.", "reason", reasons)
        yield _counter("parcels_handed_off", "Hand-offs of such messages.", stats.parcels_handed_off)
        again = "Hand-offs after the first of such a message."
        yield _counter("parcels_handed_off_again", again, stats.parcels_handed_off_again)
        outcomes = {**dict.fromkeys((outcome.value for outcome in ParcelOutcome), 0), **stats.parcels_ended}
        yield _by_label("parcels_ended", "Such messages by how they ended.", "outcome", outcomes)
        yield _gauge("parcels", "Such messages in care.", len(parcels))
        yield _gauge("parcels_pending", "Such messages not handed off.", parcels.pending)

    def _connections(self) -> Iterator[Metric]:
        stats = self._notifier.stats
        states = dict.fromkeys((state.value for state in Connection), 0)
        states.update(Counter(queue.connection.value for queue in self._notifier.outbox.queues()))
        yield _gauges("endpoints", "Decode endpoints known, by connection.", "connection", states)
        yield _gauge("sockets", "PUSH sockets open.", len(self._counted.push))
        yield _counter("connections_opened", "Sockets opened.", stats.connections_opened)
        yield _by_label("connections_closed", "Sockets closed.", "reason", stats.connections_closed)
        yield _counter("connections_over_limit", "Openings put off by the budget.", stats.connections_over_limit)
        yield _counter("endpoint_ups", "Connections that came up.", stats.endpoint_ups)
        yield _counter("reconnects", "Connections that came up again.", stats.reconnects)
        yield _counter("endpoint_downs", "Connections that were up and went down.", stats.endpoint_downs)
        yield _by_label("push_failures", "What libzmq reported.", "kind", self._counted.push.failures)

    def _ranks(self) -> Iterator[Metric]:
        stats = self._notifier.stats
        yield _counter("ranks_joined", "Hellos accepted.", stats.ranks_joined)
        yield _counter("ranks_forgotten", "Processes long gone, pushed out.", stats.ranks_forgotten)
        yield _counter("ranks_left", "Streams of ranks that ended, for whatever reason.", stats.ranks_left)
        yield _counter("ranks_lost", "Streams that ended without a goodbye while rooms were open.", stats.ranks_lost)
        yield _counter("ranks_died", "Rank processes whose death was told to decode.", stats.ranks_died)
        yield _counter("rooms_refused", "Requests refused by a tokenizer process.", stats.rooms_refused)
        yield _counter("rooms_refused_evicted", "Such refusals pushed out before their time.", stats.refusals_evicted)
        yield _counter("rooms_orphaned", "Rooms open at a rank when it died.", stats.rooms_orphaned)
        ranks = GaugeMetricFamily(f"{PREFIX}_ranks", "Ranks connected.", labels=(*RANK_LABELS, "backend"))
        text = "Hook points of connected ranks by verdict."
        hooks = GaugeMetricFamily(f"{PREFIX}_hooks", text, labels=(*RANK_LABELS, "verdict"))
        verdicts: Counter[tuple[str, ...]] = Counter()
        connected: Counter[tuple[str, ...]] = Counter()
        for hello in self._notifier.ranks.hellos:
            rank = _rank_labels(hello)
            connected[*rank, _known(hello.backend, BACKENDS)] += 1
            found = sum(verdict == FOUND for verdict in hello.hooks.values())
            verdicts[*rank, FOUND] += found
            verdicts[*rank, MISSING] += len(hello.hooks) - found
        yield _filled(ranks, connected)
        yield _filled(hooks, verdicts)

    def _process(self) -> Iterator[Metric]:
        counted, budget = self._counted, self._counted.budget
        yield _gauge("event_loop_lag_seconds", "Latest delay of a wake-up of the event loop.", counted.pulse.lag_s)
        yield _gauge("event_loop_lag_max_seconds", "Longest such delay within a minute.", counted.pulse.max_lag_s)
        yield _gauge("descriptors_limit", "File descriptors that may be open.", budget.limit)
        yield _gauge("connections_limit", "Sockets to decode endpoints that fit into them.", budget.connections)
        yield _gauge("streams_limit", "Streams of ranks that fit into them.", budget.streams)
        yield _gauge("streams_open", "Streams of ranks open.", len(counted.ingress))
        yield _counter("log_lines_suppressed", "Lines over the rate of their event.", counted.repeats.suppressed)
        yield _by_label("spans", "Spans of lives that are over.", "outcome", {"made": 0, "dropped": 0, **counted.spans})
        visitors = counted.visitors()
        yield _gauge("http_connections", "HTTP connections open.", len(visitors) if visitors else 0)
        sent_away = visitors.sent_away if visitors else {}
        yield _by_label("http_connections_cut", "HTTP connections ended by a bound.", "reason", sent_away)


def _rank_labels(hello: Hello) -> tuple[str, ...]:
    numbers = (hello.tp_rank, hello.pp_rank, hello.dp_rank)
    named = (str(number) if 0 <= number < RANK_NUMBERS else OTHER for number in numbers)
    return (_known(hello.role, ENGINE_TYPES), *named)


def _known(name: str, names: tuple[str, ...]) -> str:
    return name if name in names else OTHER


def _filled(family: GaugeMetricFamily, values: Mapping[tuple[str, ...], int]) -> Metric:
    for labels, number in sorted(values.items()):
        family.add_metric(labels, number)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _by_label(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=(label,))
    known = dict.fromkeys(WRITTEN_ELSEWHERE.get(name, ()), 0)
    for value, number in sorted({**known, **values}.items()):
        family.add_metric((value,), number)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=(label,))
    for value, number in sorted(values.items()):
        family.add_metric((value,), number)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(f"{PREFIX}_{name}", text, buckets=buckets, sum_value=histogram.sum_s)
