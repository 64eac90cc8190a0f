"""Every metric there is: its name, its help, its labels and the values these may take; and what a full scrape costs."""

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric

from sidecar.core.keys import Outcome, Untold
from sidecar.core.notifier import Notifier
from sidecar.core.parcel import ParcelOutcome, ParcelRefusal
from sidecar.model import DecodeEndpoint, Fact, Form
from sidecar.shell.metrics import BACKENDS, ENGINE_TYPES, OTHER
from tests.core.scene import E1, Scene, hello
from tests.shell.admin import collector_of, registry_of
from tests.shell.scene import Service

SOURCES = Path(__file__).parents[2] / "sidecar"

NUMBERS = {"0", "1", "2", "3", OTHER}
RANK = {"engine_type": {*ENGINE_TYPES, OTHER}, "tp_rank": NUMBERS, "pp_rank": NUMBERS, "dp_rank": NUMBERS}

REASONS_OF_STREAMS = {
    *("malformed", "foreign_user", "too_many_streams", "no_hello", "slow_reader"),
    *("no_hello", "second_hello", "protocol", "implausible_hello", "replaced"),
}

COUNTERS: dict[str, dict[str, set[str]]] = {
    "facts": {"kind": {kind.__name__ for kind in Fact.__args__}},
    "facts_replayed": {},
    "facts_implausible": {},
    "facts_dropped": {},
    "replies_spared": {},
    "streams": {},
    "streams_refused": {"reason": REASONS_OF_STREAMS},
    "malformed_input": {"source": {"stream", "hello", "fact"}},
    "rooms_concluded": {"status": {"failed", "undrained", "succeeded"}},
    "rooms_contradicted": {},
    "rooms_dropped": {"reason": {"limit", "left", "early"}},
    "rooms_orphaned": {},
    "rooms_refused": {},
    "rooms_refused_evicted": {},
    "records_expired": {},
    "records_evicted_early": {},
    "tombstones_lost": {},
    "handshakes_late": {},
    "handshakes_superseded": {},
    "handshakes_over_limit": {},
    "notices_owed": {},
    "notices_ended": {"outcome": {outcome.value for outcome in Outcome}},
    "notices_suppressed": {"reason": {reason.value for reason in Untold}},
    "attempts": {},
    "hand_offs": {},
    "hand_offs_again": {},
    "hand_offs_by_form": {"form": {form.value for form in Form}},
    "refusals": {},
    "parcels_taken": {},
    "parcels_refused": {"reason": {reason.value for reason in ParcelRefusal}},
    "parcels_handed_off": {},
    "parcels_handed_off_again": {},
    "parcels_ended": {"outcome": {outcome.value for outcome in ParcelOutcome}},
    "connections_opened": {},
    "connections_closed": {"reason": {"limit", "idle"}},
    "connections_over_limit": {},
    "endpoint_ups": {},
    "endpoint_downs": {},
    "reconnects": {},
    "push_failures": {"kind": {"closed", "retried", "handshake_failed", "send", "open", "lookup", "other"}},
    "ranks_joined": {},
    "ranks_left": {},
    "ranks_lost": {},
    "ranks_died": {},
    "ranks_forgotten": {},
    "log_lines_suppressed": {},
    "spans": {"outcome": {"made", "dropped"}},
    "http_connections_cut": {"reason": {"limit", "time"}},
}

GAUGES: dict[str, dict[str, set[str]]] = {
    "rooms_open": {},
    "records": {},
    "records_limit": {},
    "tombstones": {},
    "owed": {},
    "owed_pending": {},
    "owed_oldest_age_seconds": {},
    "parcels": {},
    "parcels_pending": {},
    "endpoints": {"connection": {"absent", "down", "up"}},
    "sockets": {},
    "ranks": RANK | {"backend": {*BACKENDS, OTHER}},
    "hooks": RANK | {"verdict": {"found", "missing"}},
    "event_loop_lag_seconds": {},
    "event_loop_lag_max_seconds": {},
    "descriptors_limit": {},
    "connections_limit": {},
    "streams_limit": {},
    "streams_open": {},
    "http_connections": {},
}

HISTOGRAMS = {"owed_to_hand_off_seconds", "owed_to_settled_seconds"}


def kind_of(name: str) -> str | None:
    if name == "build":
        return "info"
    if name in HISTOGRAMS:
        return "histogram"
    return "counter" if name in COUNTERS else "gauge" if name in GAUGES else None


def collected(service: Service) -> Iterator[tuple[str, Metric]]:
    for metric in collector_of(service).collect():
        yield metric.name.removeprefix("pd_sidecar_"), metric


def tell_everything(notifier: Notifier) -> None:
    """Strange ranks among the ordinary ones, and at least one of most things that are counted."""
    said = hello("p")
    strange = msgspec.structs.replace(hello("q"), role="what", backend="own", tp_rank=-1, pp_rank=10**9, dp_rank=7000)
    verdicts = msgspec.structs.replace(hello("r", backend="nixl"), hooks={"a": "found", "b": "sglang.x is missing"})
    for stream, greeting in enumerate((said, strange, verdicts, msgspec.structs.replace(said, protocol=99)), start=1):
        notifier.receive(stream, [greeting], time.monotonic())


async def test_every_metric_is_listed_with_its_type_help_and_labels(patient: Service) -> None:
    tell_everything(patient.notifier)
    found = dict(collected(patient))

    assert {name: metric.type for name, metric in found.items()} == {name: kind_of(name) for name in found}
    missing = {*COUNTERS, *GAUGES, *HISTOGRAMS, "build"} - set(found)
    assert missing == set()
    for metric in found.values():
        assert metric.name.startswith("pd_sidecar_")
        assert metric.documentation.endswith(".")
        assert len(metric.documentation) > 10


async def test_units_are_base_units_and_counters_end_in_total(patient: Service) -> None:
    tell_everything(patient.notifier)
    for name, metric in collected(patient):
        assert not name.endswith(("_ms", "_us", "_milliseconds", "_kb", "_mb", "_percent", "_total"))
        assert ("seconds" in name) == (name.endswith("_seconds"))
        if metric.type == "counter":
            assert {sample.name for sample in metric.samples} <= {f"pd_sidecar_{name}_total"}


async def test_labels_take_listed_values_only(patient: Service) -> None:
    tell_everything(patient.notifier)
    for name, metric in collected(patient):
        allowed = {**COUNTERS, **GAUGES}.get(name, {})
        if metric.type in ("counter", "gauge"):
            for sample in metric.samples:
                assert set(sample.labels) == set(allowed), name
                for label, value in sample.labels.items():
                    assert value in allowed[label], f"{name}{{{label}={value!r}}}"


@pytest.mark.parametrize(
    ("written", "name", "label"),
    [
        (r'refused_streams\["(\w+)"\]|_refuse\(\w+, "(\w+)"|junk\["(\w+)"\]', "streams_refused", "reason"),
        (r'open_rooms_dropped\["(\w+)"\]', "rooms_dropped", "reason"),
        (r'(?:forget|_close)\(queue, "(\w+)"\)', "connections_closed", "reason"),
        (r'_fault\("(\w+)"', "push_failures", "kind"),
        (r'send_away\([^"]*"(\w+)"\)', "http_connections_cut", "reason"),
    ],
)
def test_the_values_are_those_that_the_code_writes(written: str, name: str, label: str) -> None:
    """A label's values are literals of the program, so they can be listed."""
    source = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    values = {
        value for found in re.findall(written, source) for value in ([found] if isinstance(found, str) else found)
    }

    assert values - {""} <= COUNTERS[name][label]


async def test_a_counter_is_there_before_its_first_event(patient: Service) -> None:
    """Prometheus sees no increase in a series whose first sample is 1: the event would be in no alert."""
    for name, metric in collected(patient):
        if metric.type == "counter":
            values = {tuple(sample.labels.values()) for sample in metric.samples}
            labels = COUNTERS[name]
            assert values == set(itertools.product(*labels.values())), name


async def test_ranks_carry_sglangs_labels(patient: Service) -> None:
    ordinary = msgspec.structs.replace(hello("p"), tp_rank=1, pp_rank=2, dp_rank=3, hooks={"a": "found"})
    patient.notifier.receive(1, [ordinary], time.monotonic())
    registry = registry_of(patient)
    labels = {"engine_type": "prefill", "tp_rank": "1", "pp_rank": "2", "dp_rank": "3"}

    assert registry.get_sample_value("pd_sidecar_ranks", {**labels, "backend": "mooncake"}) == 1
    assert registry.get_sample_value("pd_sidecar_hooks", {**labels, "verdict": "found"}) == 1
    assert registry.get_sample_value("pd_sidecar_hooks", {**labels, "verdict": "missing"}) == 0


@pytest.mark.parametrize("endpoints", [10, 1000])
async def test_a_full_sidecar_is_scraped_in_bounded_size_and_time(patient: Service, endpoints: int) -> None:
    """4,096 records, each owed to an endpoint, and as many endpoints as may be."""
    core = Scene()
    core.alive = set()
    core.join()
    for room in range(4096):
        core.handshake(room, room + 1, DecodeEndpoint("127.0.0.1", 10_000 + room % endpoints))
        core.failed(room, room + 1)
    patient.notifier = core.notifier
    best_s = 10.0
    for _ in range(3):
        begin = time.perf_counter()
        text = generate_latest(registry_of(patient))
        best_s = min(best_s, time.perf_counter() - begin)

    assert core.notifier.rooms.records == 4096
    assert f'pd_sidecar_endpoints{{connection="down"}} {endpoints}.0'.encode() in text
    assert len(text) < 32_768
    assert best_s < 0.1
    assert E1.host.encode() not in text
