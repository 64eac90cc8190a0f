"""Requests to a pair, both halves with one rid and room or one half alone; aborts; what an engine says of itself."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.pair.answers import Answer, answer_of, lost_answer
from tests.pair.running import Pair
from tests.pair.side import Role

ROOM_LIMIT = 2**63
REQUEST_LIMIT_S = 600.0
CONTROL_LIMIT_S = 30.0


def new_room() -> int:
    return secrets.randbelow(ROOM_LIMIT)


def new_rid() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True, kw_only=True)
class Order:
    """One request as both halves get it. `traceparent`: the header (W3C) of a client that traces."""

    text: str
    max_new_tokens: int = 4
    rid: str = field(default_factory=new_rid)
    room: int = field(default_factory=new_room)
    traceparent: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"traceparent": self.traceparent} if self.traceparent else {}

    def body(self, bootstrap_port: int) -> dict[str, Any]:
        sampling = {"max_new_tokens": self.max_new_tokens, "ignore_eos": True, "temperature": 0}
        where = {"bootstrap_host": "127.0.0.1", "bootstrap_port": bootstrap_port, "bootstrap_room": self.room}
        return {"text": self.text, "rid": self.rid, "sampling_params": sampling, **where}


@dataclass(frozen=True)
class Sent:
    """A request under way. Await a half for its answer; cancelling a half hangs up on that server."""

    order: Order
    prefill: asyncio.Task[Answer]
    decode: asyncio.Task[Answer]


class Client:
    """Use as an async context manager. What is still under way at its end is hung up on."""

    def __init__(self, pair: Pair, *, limit_s: float = REQUEST_LIMIT_S) -> None:
        self._urls: Mapping[Role, str] = {"prefill": pair.prefill.url, "decode": pair.decode.url}
        self._bootstrap_port = pair.prefill.ports.bootstrap
        self._limit_s = limit_s
        self._under_way: set[asyncio.Task[Answer]] = set()

    async def __aenter__(self) -> Self:
        # Each request has its own connection: hanging up on one must not disturb another.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._http.close()

    def send(self, order: Order) -> Sent:
        """Both halves at once."""
        return Sent(order, self.send_prefill(order), self.send_decode(order))

    def send_prefill(self, order: Order) -> asyncio.Task[Answer]:
        return self._start("prefill", order)

    def send_decode(self, order: Order) -> asyncio.Task[Answer]:
        return self._start("decode", order)

    def _start(self, role: Role, order: Order) -> asyncio.Task[Answer]:
        task = asyncio.create_task(self._generate(role, order))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _generate(self, role: Role, order: Order) -> Answer:
        sent_at = time.monotonic()
        url, body = f"{self._urls[role]}/generate", order.body(self._bootstrap_port)
        try:
            posting = self._http.post(url, json=body, headers=order.headers)
            async with asyncio.timeout(self._limit_s), posting as response:
                content = await response.read()
                return answer_of(role, order.rid, order.room, response.status, content, sent_at)
        except TimeoutError:
            return lost_answer(role, order.rid, order.room, f"no answer in {self._limit_s:.0f} s", sent_at)
        except aiohttp.ClientError as error:
            return lost_answer(role, order.rid, order.room, repr(error), sent_at)

    async def abort(self, rid: str, *, role: Role = "prefill") -> float:
        """Returns when the server had taken the order (monotonic seconds)."""
        return await self._abort(role, {"rid": rid})

    async def abort_all(self, *, role: Role = "prefill") -> float:
        return await self._abort(role, {"abort_all": True, "rid": ""})

    async def _abort(self, role: Role, body: dict[str, Any]) -> float:
        async with asyncio.timeout(CONTROL_LIMIT_S):
            async with self._http.post(f"{self._urls[role]}/abort_request", json=body) as response:
                response.raise_for_status()
            return time.monotonic()

    async def flush_cache(self, role: Role) -> None:
        """Empties the prefix cache of a server that is idle."""
        async with asyncio.timeout(CONTROL_LIMIT_S), self._http.post(f"{self._urls[role]}/flush_cache") as response:
            response.raise_for_status()

    async def server_info(self, role: Role) -> dict[str, Any]:
        async with asyncio.timeout(CONTROL_LIMIT_S), self._http.get(f"{self._urls[role]}/server_info") as response:
            response.raise_for_status()
            info: dict[str, Any] = await response.json()
            return info

    async def tables(self, role: Role) -> dict[str, Any]:
        """What the shim saw inside that server's first scheduler (shim/pd_sidecar_shim/tables.py)."""
        info = await self.server_info(role)
        tables: dict[str, Any] = info["internal_states"][0]["pd_tables"]
        return tables
