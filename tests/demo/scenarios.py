"""Ways in which P gives requests up. Each scenario returns once P is done; who waits for D is the caller's choice."""

import asyncio
import time
from collections.abc import Sequence

from tests.demo.stage import HANDSHAKE_SLACK_S, Owed, Played, Stage, prompt
from tests.pair.answers import Answer
from tests.pair.deaths import last_death
from tests.pair.rest import send_prefill_first
from tests.pair.traffic import Order


async def abort_all(stage: Stage, count: int = 24) -> Played:
    """A batch of long prompts; the operator aborts everything on P."""
    began = time.monotonic()
    sent = [stage.client.send(Order(text=prompt(16_000))) for _ in range(count)]
    await stage.handshakes([one.order for one in sent])
    await asyncio.sleep(max(0.0, began + 1.2 - time.monotonic()))
    aborted_at = await stage.client.abort_all()
    return Played("abort_all", count, await stage.given_up(sent, aborted_at))


async def abort_one_waiting(stage: Stage, count: int = 6, *, tokens: int = 6_000) -> Played:
    """One goes while it waits for its turn; the others must not notice."""
    sent = [stage.client.send(Order(text=prompt(tokens))) for _ in range(count)]
    victim = sent[-2]
    await stage.handshakes([one.order for one in sent])
    aborted_at = await stage.client.abort(victim.order.rid)
    owed = await stage.given_up([victim], aborted_at)
    others = [await half for one in sent if one is not victim for half in (one.prefill, one.decode)]
    complaints = [f"a request nobody aborted ended with {bad.status}" for bad in others if not bad.is_good]
    return Played("abort_one_waiting", count, owed, complaints)


async def abort_chunked(stage: Stage, *, tokens: int = 60_000, chunk: int = 3) -> Played:
    """Between the chunks of a very long prompt."""
    sent = stage.client.send(Order(text=prompt(tokens)))
    await stage.computing(sent.order, chunk=chunk)
    aborted_at = await stage.client.abort(sent.order.rid)
    return Played("abort_chunked", 1, await stage.given_up([sent], aborted_at))


async def abort_running(stage: Stage, count: int = 3) -> Played:
    """While the forward pass of the only chunk runs, so that its result is still outstanding when the abort is read."""
    owed: list[Owed] = []
    for _ in range(count):
        sent = stage.client.send(Order(text=prompt(4_000)))
        await stage.computing(sent.order)
        aborted_at = await stage.client.abort(sent.order.rid)
        owed += await stage.given_up([sent], aborted_at)
        await asyncio.wait([sent.decode], timeout=2.0)  # stock ignores this abort: let D finish before the next one
    return Played("abort_running", count, owed)


async def abort_inflight(stage: Stage) -> Played:
    """With chunks on the way to D: loopback is too quick to be hit, so the shim holds the writes for half a second."""
    with stage.pair.held_transfers():
        sent = stage.client.send(Order(text=prompt(9_000)))
        await stage.in_queue("inflight", 1)
        aborted_at = await stage.client.abort(sent.order.rid)
        await asyncio.sleep(0.5)
    return Played("abort_inflight", 1, await stage.given_up([sent], aborted_at))


async def disconnect(stage: Stage, count: int = 3) -> Played:
    """P's clients go away. P's HTTP process looks only from time to time, so what counts is P's engine aborting: its
    last rank, of several."""
    sent = [stage.client.send(Order(text=prompt(20_000))) for _ in range(count)]
    await stage.handshakes([one.order for one in sent])
    for one in sent:
        one.prefill.cancel()
    owed = []
    for one in sent:
        aborted = await stage.pair.events.wait_for(
            "abort", role="prefill", rid=one.order.rid, count=stage.pair.spec.prefill.ranks
        )
        owed.append(Owed(one.decode, aborted["t"]))
    return Played("disconnect", count, owed)


async def bootstrap_queue(stage: Stage, count: int = 4) -> Played:
    """P alone, aborted before D has come: nothing may be left of it on P, and D must be answered when it comes."""
    orders = await _abort_before_decode(stage, count)
    complaints = await stage.leftovers([order.room for order in orders])
    return await _come_late(stage, "bootstrap_queue", orders, complaints)


async def late_handshake(stage: Stage, count: int = 4) -> Played:
    """D's half comes a second after P's half was aborted."""
    orders = await _abort_before_decode(stage, count)
    await asyncio.sleep(1.0)
    return await _come_late(stage, "late_handshake", orders, [])


async def late_handshake_room_reused(stage: Stage) -> Played:
    """A new pair of requests uses the room soon after the late D has shaken hands: the new ones must do well."""
    (order,) = await _abort_before_decode(stage, 1)
    await asyncio.sleep(1.0)
    played = await _come_late(stage, "late_handshake_room_reused", [order], [])
    await asyncio.wait([owed.decode for owed in played.owed], timeout=1.0)  # in stock it never ends
    again = await send_prefill_first(stage.client, Order(text=prompt(2_000), room=order.room))
    await asyncio.wait([again.prefill, again.decode], timeout=20.0)
    complaints = [
        f"the new {half} on the same room: {task.result().status if task.done() else 'no answer in 20 s'}"
        for half, task in (("prefill", again.prefill), ("decode", again.decode))
        if not (task.done() and task.result().is_good)
    ]
    return Played(played.name, 1, played.owed, complaints, played.check)


async def p_killed(stage: Stage, count: int = 3) -> Played:
    """The whole prefill server dies, all its processes at once, with D waiting. The last thing a pair is good for.

    With several ranks D can only be told once the last of them is dead (until then it may still write), and that
    moment is what counts. After `junk` a stock P reads no handshakes any more; what its death means to D is the same.
    """
    hanging = (await stage.client.tables("decode"))["transfer"]
    sent = [stage.client.send(Order(text=prompt(16_000))) for _ in range(count)]
    await stage.in_queue("transfer", hanging + count, role="decode")
    if stage.pair.spec.prefill.plugin:
        await stage.handshakes([one.order for one in sent])
    ranks = stage.pair.prefill.scheduler_pids()
    dead = last_death(ranks)
    killed_at = time.monotonic()
    stage.pair.prefill.kill()
    last_dead_at = await asyncio.to_thread(dead)
    given_up_at = killed_at if len(ranks) == 1 else last_dead_at
    return Played("p_killed", count, [Owed(one.decode, given_up_at) for one in sent])


async def _abort_before_decode(stage: Stage, count: int) -> list[Order]:
    orders = [Order(text=prompt(500)) for _ in range(count)]
    prefills = [stage.client.send_prefill(order) for order in orders]
    await stage.in_queue("bootstrap", count)
    for order in orders:
        await stage.client.abort(order.rid)
    await asyncio.gather(*prefills)
    return orders


async def _come_late(stage: Stage, name: str, orders: Sequence[Order], complaints: Sequence[str]) -> Played:
    decodes = [stage.client.send_decode(order) for order in orders]
    owed = [Owed(decode, await stage.handshake_at(order)) for decode, order in zip(decodes, orders, strict=True)]
    limit_s = stage.normal_handshake_s + HANDSHAKE_SLACK_S

    def slow(answers: Sequence[Answer]) -> list[str]:
        worst = max(answer.took_s for answer in answers)
        return [f"D's whole answer took {worst:.3f} s, more than {limit_s:.3f} s"] if worst > limit_s else []

    return Played(name, len(orders), owed, complaints, slow)
