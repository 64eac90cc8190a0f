"""One prefill server whose hooks are taken out and put in again (`shim/switch.py`): all else is the same in both
halves, the processes, where their memory lies, what they are connected to. Two servers differ by some per cent even
where both are stock.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from bench.turns import Turn, turns
from tests.pair.running import Pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client

Spent = Callable[[Client], Awaitable[float]]


def switched_spec(sglang: str) -> PairSpec:
    return PairSpec.of(sglang=sglang, plugin=False, prefill={"plugin": True, "env": {"PD_SHIM_SWITCH": "1"}})


class Switch:
    """Raises RuntimeError where the hooks are not as they were last switched."""

    def __init__(self, pair: Pair, client: Client) -> None:
        self._client = client
        self._events = pair.events
        self._pids = [*pair.prefill.scheduler_pids(), *pair.prefill.pids("sglang.launch_server")]
        self._turned = 0
        self._is_on = True
        self._facts = 0

    async def turn(self, *, is_on: bool) -> None:
        await self._look()
        self._turned += 1
        for pid in self._pids:
            os.kill(pid, signal.SIGUSR2 if is_on else signal.SIGUSR1)
        for pid in self._pids:
            await self._events.wait_for("switched", pid=pid, count=self._turned)
        self._is_on = is_on

    async def _look(self) -> None:
        """Answered by an iteration of the scheduler after that which was done with the last request."""
        state: dict[str, Any] = (await self._client.server_info("prefill"))["internal_states"][0]
        said = state["pd_tables"]["plugin"]["stream"]["facts_sent"]
        if (said > self._facts) != self._is_on and self._turned:
            raise RuntimeError(f"the hooks were {'on' if self._is_on else 'off'}, and {said - self._facts} facts sent")
        self._facts = said


async def in_turns(switch: Switch, client: Client, spent_s: Spent, *, limit_s: float) -> list[Turn]:
    """Without the hooks and with them."""

    async def turn(*, is_on: bool) -> float:
        await switch.turn(is_on=is_on)
        return await spent_s(client)

    return await turns(lambda: turn(is_on=False), lambda: turn(is_on=True), limit_s=limit_s)
