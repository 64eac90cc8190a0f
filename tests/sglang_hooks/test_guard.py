"""The guard alone, where sglang tells decode itself and the plugin stands down: junk is dropped all the same."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hooks.hooks.gate import Frames
from sglang_hooks.hooks.guard import PrefillGuard
from sglang_hooks.messages.values import Family
from tests.sglang_hooks.samples import ABORT, HERE, METADATA, REGISTRATIONS


class MooncakeKVManager:
    """By name, as sglang's, with `--disaggregation-decode-allocation-policy prefill_complete`."""

    def __init__(self, *arriving: Frames) -> None:
        self.arriving = list(arriving)
        self.server_socket = SimpleNamespace(recv_multipart=lambda: self.arriving.pop(0))
        self.server_args = SimpleNamespace()
        self.deferred_bootstrap = object()
        self.decode_kv_args_table: dict[str, Any] = {}

    def handle_abort_ack_message(self) -> None: ...


def test_junk_is_dropped_and_what_stock_takes_is_passed() -> None:
    good = [REGISTRATIONS[Family.MOONCAKE], ABORT, ABORT[:2], [b"BOOTSTRAP", b"4711", *HERE]]
    junk = [[b"HELLO"], METADATA[Family.MOONCAKE], [b"WATERMARK", b"1", b"2"]]
    manager = MooncakeKVManager(*junk, *good)
    guard = PrefillGuard(manager)
    guard.install()

    assert [manager.server_socket.recv_multipart() for _ in good] == good
    assert {name: count for name, count in guard.junk.items() if count} == {"unknown_tag": 1, "mismatched": 2}


def test_metadata_of_a_registered_session_is_passed() -> None:
    manager = MooncakeKVManager(METADATA[Family.MOONCAKE])
    manager.decode_kv_args_table["10.0.0.7:9"] = object()
    PrefillGuard(manager).install()

    assert manager.server_socket.recv_multipart() == METADATA[Family.MOONCAKE]


def test_a_fault_of_ours_lets_stock_have_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_hooks.hooks.guard.read_for_prefill", lambda *_: 1 / 0)
    manager = MooncakeKVManager([b"HELLO"])
    PrefillGuard(manager).install()

    assert manager.server_socket.recv_multipart() == [b"HELLO"]


def test_server_info_has_the_counts_where_nobody_else_reports() -> None:
    guard = PrefillGuard(MooncakeKVManager())
    alone, beside = SimpleNamespace(internal_state={}), SimpleNamespace(internal_state={"pd_sidecar": {"role": "x"}})
    guard.report(alone)
    guard.report(beside)

    assert alone.internal_state["pd_sidecar"]["junk"]["unknown_tag"] == 0
    assert beside.internal_state["pd_sidecar"] == {"role": "x"}
