"""A rank's process: it builds the rank, then runs sglang's own event loop, which the test feeds."""

import itertools
import os
import time
import traceback
from array import array
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from tests.engine.ranks import faults
from tests.engine.ranks.collectives import Collectives
from tests.engine.ranks.controls import Controls
from tests.engine.ranks.prefill import Pools, make_manager, make_scheduler, pretend_configuration
from tests.engine.ranks.spec import DRAIN_TIMEOUT_S, Admit, Message, Order, RankSpec
from tests.engine.ranks.transfers import Engine
from tests.engine.stage import installed_plugin

WENT_ROUND = "went round"


def install() -> None:
    """The plugin's hooks, through sglang's registry, for all ranks that are forked from this process."""
    installed_plugin(drain_timeout_s=DRAIN_TIMEOUT_S)


def rank_main(spec: RankSpec, orders: Connection) -> None:
    """Ends by `os._exit`: the engine's threads know no other end."""
    orders.close()
    torch.set_num_threads(1)
    connection = Client(spec.address, "AF_UNIX")
    connection.send(spec.number)
    try:
        _Rank(spec, connection).run()
    except EOFError:
        pass
    except BaseException:
        connection.send(("died", traceback.format_exc()))
    finally:
        os._exit(0)


def join_groups(spec: RankSpec) -> dict[str, dist.ProcessGroup]:
    """Attention TP and attention CP, by the layout that sglang uses. Every rank makes all groups in one order."""
    limit = timedelta(seconds=spec.limit_s)
    layout = spec.layout
    dist.init_process_group(
        "gloo",
        init_method=f"file://{spec.rendezvous}",
        rank=spec.number,
        world_size=layout.world,
        timeout=timedelta(seconds=20),
    )
    here = layout.place(spec.number)
    numbers = range(layout.world)
    mine: dict[str, dist.ProcessGroup] = {}
    for name, key in (("attn_tp", lambda p: (p.dp, p.cp)), ("attn_cp", lambda p: (p.dp, p.tp))):
        for wanted in sorted({key(layout.place(number)) for number in numbers}):
            members = [number for number in numbers if key(layout.place(number)) == wanted]
            group = dist.new_group(members, timeout=limit, backend="gloo")
            if key(here) == wanted:
                mine[name] = group
    return mine


class _Rank:
    def __init__(self, spec: RankSpec, connection: Connection) -> None:
        self._connection = connection
        place = spec.layout.place(spec.number)
        engine = Engine()
        groups = join_groups(spec)
        pretend_configuration(place, engine)
        pools = Pools()
        manager = make_manager(pools, place)
        self._scheduler = make_scheduler(spec, pools, manager, groups)
        self._overlap = spec.overlap
        self._owes_answer = False
        self._laps: list[float] = []
        self._laps_to_go = 0
        if spec.fault:
            faults.take_out(spec.fault)
        self._controls = Controls(self._scheduler, manager, engine, Collectives(groups), sidecar=spec.sidecar)
        self._scheduler.request_receiver = SimpleNamespace(recv_requests=self._next_messages)
        self._scheduler._request_dispatcher = self._dispatch  # noqa: SLF001 - sglang's own name

    def run(self) -> None:
        if self._overlap:
            self._scheduler.event_loop_overlap_disagg_prefill()
        else:
            self._scheduler.event_loop_normal_disagg_prefill()

    def _next_messages(self) -> list[Message]:
        """Where the event loop asks for input: the iteration before is over, and the test decides what comes next."""
        if self._laps_to_go:
            return self._next_lap()
        if self._owes_answer:
            self._owes_answer = False
            self._connection.send((WENT_ROUND, None))
        while True:
            order: Order = self._connection.recv()
            if order.name == "iterate":
                self._owes_answer = True
                return list(order.arguments)
            if order.name == "spin":
                (self._laps_to_go,) = order.arguments
                self._laps = []
                return self._next_lap()
            try:
                answer = ("answer", getattr(self._controls, order.name)(*order.arguments))
            except Exception:
                answer = ("failed", traceback.format_exc())
            self._connection.send(answer)

    def _next_lap(self) -> list[Message]:
        """The loop goes round by itself, without input; the time of each iteration is the answer."""
        self._laps.append(time.perf_counter())
        self._laps_to_go -= 1
        if not self._laps_to_go:
            self._connection.send(("answer", [later - earlier for earlier, later in itertools.pairwise(self._laps)]))
            return self._next_messages()
        return []

    def _dispatch(self, message: Message) -> Any:
        if isinstance(message, Admit):
            self._scheduler.disagg_prefill_bootstrap_queue.add(make_request(message), 1)
            return
        self._scheduler.abort_request(AbortReq(rid=message.rid, abort_all=message.everything))


def make_request(message: Admit) -> Req:
    return Req(
        message.rid,
        "",
        array("q", [1] * message.tokens),
        SamplingParams(max_new_tokens=1),
        bootstrap_host="127.0.0.1",
        bootstrap_port=1,
        bootstrap_room=message.room,
        disagg_mode=DisaggregationMode.PREFILL,
        disagg_prefill_dp_rank=0,
    )
