"""The decode half on sglang's own receiver, control thread and failure path, facing a prefill rank's own thread."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sglang
from sglang.srt.disaggregation import decode as decode_module
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVReceiver
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVReceiver

from sglang_hooks.messages.values import Family
from sidecar.model import DecodeAcknowledged, DecodeHandshake, DecodeRegistered
from tests.engine.control_stage import Served, serving
from tests.engine.stage import wait_until

if TYPE_CHECKING:
    from sglang_hooks.plugin import Plugin

pytestmark = pytest.mark.engine

ROOM = 4719
NOTICE = [b"%d" % ROOM, b"0", b"0", b"DRAINED_ABORT: the input is too long", b"400"]
STOCK_WORDS = "Failed to get kvcache from prefill instance, it might be dead"


@dataclass
class Pair:
    prefill: Served
    decode: Served

    def receiver(self) -> Any:
        """As decode makes one for a request, less the bootstrap server: it knows its prefill rank."""
        manager = self.decode.manager
        receiver = MooncakeKVReceiver(manager, "127.0.0.1:1", ROOM)
        manager.required_prefill_response_num_table[ROOM] = 1
        port = self.prefill.manager.rank_port
        receiver.bootstrap_infos = [{"rank_ip": "127.0.0.1", "rank_port": port, "is_dummy": False}]
        receiver.required_dst_info_num = 1
        assert receiver._register_kv_args()  # noqa: SLF001 - what `init` calls
        manager.update_status(ROOM, KVPoll.WaitingForInput)
        return receiver

    def shake_hands(self) -> Any:
        receiver = self.receiver()
        self.prefill.manager.request_status[ROOM] = KVPoll.Bootstrapping
        receiver.send_metadata(np.arange(3, dtype=np.int32), aux_index=0)
        wait_until(lambda: self.prefill.status(ROOM) == KVPoll.WaitingForInput, "prefill heard nothing")
        return receiver

    def facts(self, kind: type) -> list[Any]:
        return [fact for fact in self.prefill.facts if isinstance(fact, kind)]


def prepare_decode(manager: Any) -> None:
    """What the receiver says of its buffers."""
    vars(manager).update(get_session_id=lambda: "127.0.0.1:9", waiting_timeout=300, enable_trace=False)
    vars(manager.kv_args).update(
        state_data_ptrs=[], state_item_lens=[], state_layer_ids=[], state_dim_per_tensor=[], kv_layer_ids=[0]
    )


@pytest.fixture
def pair(plugin: "Plugin", request: pytest.FixtureRequest) -> Iterator[Pair]:
    """With the decode half as the plugin attaches it; `stock` marks a decode without anything of ours."""
    is_stock = getattr(request, "param", None) == "stock"
    with ExitStack() as stack:
        prefill = stack.enter_context(serving(Family.MOONCAKE, "prefill"))
        attached = (lambda _manager: None) if is_stock else (lambda manager: plugin.after_manager_init(None, manager))
        decode = stack.enter_context(serving(Family.MOONCAKE, "decode", by=attached))
        prepare_decode(decode.manager)
        stack.callback(_forget_connections)
        if is_stock:
            plugin.decode.half = plugin.decode.control = None
        else:
            assert plugin.decode.control is not None
            decode.junk, decode.half = plugin.decode.control.junk, plugin.decode.half
        yield Pair(prefill, decode)
        plugin.decode.half = plugin.decode.control = None


def _forget_connections() -> None:
    """sglang keeps them at the class, for the process."""
    for endpoint in list(CommonKVReceiver._socket_cache):  # noqa: SLF001
        CommonKVReceiver.disconnect_endpoint(endpoint)


def answered(receiver: Any) -> Any:
    """The client's answer to the failed request, as `pop_transferred` makes it."""
    with pytest.raises(Exception, match="KVTransferError") as failed:
        receiver.failure_exception()
    req = SimpleNamespace(bootstrap_room=ROOM, return_logprob=False, finished_reason=None)
    decode_module.prepare_abort(req, f"Decode transfer failed: {failed.value}", status_code=500)
    return req.finished_reason


def test_it_is_announced_by_sglangs_own_receiver(pair: Pair) -> None:
    pair.shake_hands()

    (registered,) = pair.facts(DecodeRegistered)
    assert registered.decode_half == sglang.__version__
    assert registered.endpoint.port == pair.decode.manager.rank_port
    assert len(pair.facts(DecodeHandshake)) == 1
    assert not any(pair.prefill.junk.values())


def test_the_client_sees_prefills_cause_and_status(pair: Pair) -> None:
    receiver = pair.shake_hands()
    pair.decode.send(NOTICE)
    wait_until(lambda: receiver.poll() == KVPoll.Failed, "decode was not told")

    reason = answered(receiver)

    assert "the input is too long" in reason.message
    assert STOCK_WORDS not in reason.message
    assert reason.status_code == 400


def test_the_notice_is_acknowledged_over_the_ranks_own_socket(pair: Pair) -> None:
    pair.shake_hands()
    rank = vars(pair.prefill.manager)["_pd_sidecar_rank"]
    life = rank.open(ROOM)
    rank.release(life, "the input is too long")
    pair.decode.send(NOTICE)
    wait_until(lambda: bool(pair.facts(DecodeAcknowledged)), "no acknowledgement")

    (acknowledged,) = pair.facts(DecodeAcknowledged)
    assert (acknowledged.room, acknowledged.life) == (ROOM, life.number)
    assert acknowledged.endpoint.port == pair.decode.manager.rank_port
    assert not any(pair.prefill.junk.values())


def test_a_notice_of_a_room_that_decode_has_finished_leaves_nothing(pair: Pair) -> None:
    receiver = pair.shake_hands()
    pair.decode.send(NOTICE)
    wait_until(lambda: receiver.poll() == KVPoll.Failed, "decode was not told")
    answered(receiver)
    pair.decode.send(NOTICE)
    other = [b"%d" % (ROOM + 1), b"0", b"0"]
    pair.decode.manager.update_status(ROOM + 1, KVPoll.Bootstrapping)
    pair.decode.send(other)
    wait_until(lambda: pair.decode.status(ROOM + 1) == KVPoll.Failed, "the thread is gone")

    assert ROOM not in pair.decode.manager.failure_records
    assert pair.decode.status(ROOM) is None


@pytest.mark.parametrize("pair", ["stock"], indirect=True)
def test_stock_decode_hears_the_bare_notice_in_its_own_words(pair: Pair) -> None:
    receiver = pair.shake_hands()
    (registered,) = pair.facts(DecodeRegistered)
    assert registered.decode_half == ""
    pair.decode.send(NOTICE[:3])
    wait_until(lambda: receiver.poll() == KVPoll.Failed, "decode was not told")

    reason = answered(receiver)
    assert STOCK_WORDS in reason.message
    assert reason.status_code == 500
