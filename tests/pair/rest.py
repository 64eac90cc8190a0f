"""Whether a pair is at rest, and what it still holds then: on every rank, of every stage."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from tests.pair.answers import Answer
from tests.pair.running import Pair
from tests.pair.side import Role
from tests.pair.traffic import Client, Order, Sent

Tables = dict[str, Any]

ROOM_TABLES = ("request_status", "transfer_infos", "failure_records", "req_to_decode_prefix_len")
QUEUES = {
    "prefill": ("waiting", "bootstrap", "inflight", "pending_chunks"),
    "decode": ("waiting", "prealloc", "transfer"),
}


async def tables_of_ranks(pair: Pair, client: Client, role: Role = "prefill") -> list[Tables]:
    """What each rank answers to one question."""
    side = pair.spec.prefill if role == "prefill" else pair.spec.decode
    ranks = side.ranks
    before = len(pair.events.all("tables", role=role))
    await client.server_info(role)
    await pair.events.wait_for("tables", role=role, count=before + ranks)
    return pair.events.all("tables", role=role)[before : before + ranks]


def is_at_rest(tables: Tables) -> bool:
    busy = any(tables[name] for name in QUEUES[tables["mode"]])
    return not busy and not tables.get("chunked", False) and tables["running"] == 0


def free_kv(tables: Tables) -> int:
    return int(tables["kv_available"]) + int(tables["kv_evictable"])


def remains(tables: Tables, room: int) -> list[str]:
    """Which of prefill's tables still know the room."""
    return [name for name in ROOM_TABLES if str(room) in tables[name]]


async def send_prefill_first(client: Client, order: Order, *, limit_s: float = 60.0) -> Sent:
    """Decode's half only once prefill has accepted its own.

    For a room that has ended before: a handshake that comes earlier is one for the old request, as far as anybody can
    tell.
    """
    prefill = client.send_prefill(order)
    async with asyncio.timeout(limit_s):
        await accepted(client, order, prefill)
    return Sent(order, prefill, client.send_decode(order))


async def accepted(client: Client, order: Order, prefill: "asyncio.Task[Answer]") -> None:
    """Prefill's scheduler has taken the request, or it is over already."""
    while not prefill.done():
        if remains(await client.tables("prefill"), order.room):
            return


def leftovers(tables: Tables, rooms: Sequence[int] | None = None) -> list[str]:
    """What one rank that is at rest still holds; of these rooms, or of any."""
    rank = f"{tables['mode']} tp {tables['tp_rank']} pp {tables['pp_rank']}"
    left = []
    for name in ROOM_TABLES:
        held = tables.get(name, {})
        found = list(held) if rooms is None else [room for room in rooms if str(room) in held]
        if found and tables["mode"] == "prefill":
            left.append(f"{rank}: {name} still holds {len(found)} rooms")
    if tables["metadata_free"] != tables["metadata_total"]:
        left.append(f"{rank}: {tables['metadata_free']} of {tables['metadata_total']} metadata slots are free")
    if free_kv(tables) != tables["kv_total"] or tables["kv_protected"]:
        left.append(f"{rank}: {free_kv(tables)} of {tables['kv_total']} KV tokens are free")
    return left


async def comes_to_rest(pair: Pair, client: Client, role: Role, *, limit_s: float) -> list[Tables]:
    """The ranks' tables once all of them are at rest. Raises TimeoutError with those that are not."""
    deadline = time.monotonic() + limit_s
    while True:
        found = await tables_of_ranks(pair, client, role)
        busy = [{name: one[name] for name in (*QUEUES[role], "running")} for one in found if not is_at_rest(one)]
        if not busy:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{role} does not come to rest in {limit_s:.0f} s: {busy}")
        await asyncio.sleep(0.05)
