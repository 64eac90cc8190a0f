"""The order of events: stock's scenarios, our launch while stock's D hangs, normal traffic on both, our scenarios, and
what a stock P does not survive: junk, and its own death.

Short of time (`--quick`), all is launched at once and both play while stock's D hangs.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from tests.demo.behind_router import RouterPlayed, behind_router
from tests.demo.figures import Measured, Ok
from tests.demo.junk import JunkPlayed, junk
from tests.demo.normal_traffic import ok
from tests.demo.scenarios import p_killed
from tests.demo.settings import Settings
from tests.demo.stage import Played, Scenario, Stage, normal_handshake_s
from tests.demo.watched import Seen, watch
from tests.pair.engine import Engine
from tests.pair.progress import say
from tests.pair.running import Pair, running_pair
from tests.pair.traffic import Client

Entered = TypeVar("Entered")
AnyPlayed = Played | RouterPlayed | JunkPlayed
NEVER_S = 20.0
"""So long after its timeout a D request that has not ended never will."""


@dataclass(frozen=True)
class Shown:
    stock: list[Measured]
    ours: list[Measured]
    ok: Ok
    seen: Seen | None = None


async def play_stock(settings: Settings) -> list[Measured]:
    async with AsyncExitStack() as outer:
        pair, fatal = await _stock_pair(settings, outer)
        async with _client(settings, pair) as client:
            stock = await measured(fatal + await play(settings, pair, client, settings.survived_by_stock))
        if not settings.quick:
            (ends,) = await lethal(settings, pair)
            stock += ends
        _end_at_once(pair)
    return stock


async def play_both(settings: Settings) -> Shown:
    async with AsyncExitStack() as outer:
        stock_pair, fatal = await _stock_pair(settings, outer)
        async with _client(settings, stock_pair) as client:
            played = fatal + await play(settings, stock_pair, client, settings.survived_by_stock)
            decode = None if settings.needs_decode_half else stock_pair.decode
            launching_ours = await outer.enter_async_context(_launched(settings, plugin=True, decode=decode))
            stock = await measured(played)
        our_pair = await launching_ours
        normal = await _normal(settings, stock_pair, our_pair)
        watching = await outer.enter_async_context(in_background(watch(our_pair))) if settings.watched else None
        async with _client(settings, our_pair) as client:
            ours = await measured(await play(settings, our_pair, client, settings.scenarios, one_by_one=True))
        stock_ends, our_ends = await lethal(settings, stock_pair, our_pair)
        seen = await asyncio.to_thread((await watching).seen) if watching else None
        _end_at_once(stock_pair, our_pair)
    return Shown(stock + stock_ends, ours + our_ends, normal, seen)


async def _stock_pair(settings: Settings, stack: AsyncExitStack) -> tuple[Pair, list[AnyPlayed]]:
    """And what was played on a stock P before it, which computed nothing more after that. Its D is the pair's."""
    if not settings.fatal_to_stock:
        return await (await stack.enter_async_context(_launched(settings, plugin=False))), []
    spent = await (await stack.enter_async_context(_launched(settings, plugin=False, with_router=False)))
    stack.callback(spent.kill)
    client = await stack.enter_async_context(_client(settings, spent))
    launching = await stack.enter_async_context(_launched(settings, plugin=False, decode=spent.decode))
    played = await play(settings, spent, client, settings.fatal_to_stock)
    return await launching, played


async def play_both_quickly(settings: Settings) -> Shown:
    """One prefill server beside another on the same D: launched together, none of it killed for show."""
    loop = asyncio.get_running_loop()
    decode: asyncio.Future[Engine] = loop.create_future()

    def laid_out(pair: Pair) -> None:
        loop.call_soon_threadsafe(decode.set_result, pair.decode)

    async with AsyncExitStack() as outer, _launched(settings, plugin=False, laid_out=laid_out) as launching:
        await asyncio.wait([decode, launching], return_when=asyncio.FIRST_COMPLETED)
        if not decode.done():
            await launching  # it has failed
        shared = None if settings.needs_decode_half else decode.result()
        launching_ours = await outer.enter_async_context(_launched(settings, plugin=True, decode=shared))
        stock_pair, our_pair = await launching, await launching_ours
        async with _client(settings, stock_pair) as client, _client(settings, our_pair) as our_client:
            played = await play(settings, stock_pair, client, settings.scenarios)
            ours = await measured(await play(settings, our_pair, our_client, settings.scenarios, one_by_one=True))
            stock = await measured(played)
        normal = await _normal(settings, stock_pair, our_pair)
        _end_at_once(stock_pair, our_pair)
    return Shown(stock, ours, normal)


async def _normal(settings: Settings, stock: Pair, ours: Pair) -> Ok:
    return await ok(stock, ours, limit_s=settings.ok_limit_s, outputs=settings.outputs, turns=settings.turns)


def _end_at_once(*pairs: Pair) -> None:
    """There is nothing left to drain, and a stock server takes ten seconds to end in order."""
    for pair in pairs:
        pair.kill()
        if (sidecar := pair.sidecar_pid()) is not None:
            os.kill(sidecar, signal.SIGKILL)  # it still owes what the killed D has not confirmed


async def lethal(settings: Settings, *pairs: Pair) -> list[list[Measured]]:
    """What stock's P does not survive; one list for each pair. Nothing else is measured while stock hangs in `junk`."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(_client(settings, pair)) for pair in pairs]
        stages = [Stage(pair, client, normal_handshake_s=0.0) for pair, client in zip(pairs, clients, strict=True)]
        ends = await asyncio.gather(*(_after_junk(stage) for stage in stages))
        return [[end, *await measured([await p_killed(stage)])] for end, stage in zip(ends, stages, strict=True)]


async def _after_junk(stage: Stage) -> Measured:
    (figures,) = await measured([await junk(stage)])
    return figures


async def measured(played: Sequence[AnyPlayed]) -> list[Measured]:
    figures = []
    for one in played:
        figures.append(await one.measured())
        last = figures[-1]
        say(f"  {last.name}: {last.decode_hung} hung, lag {last.lag_s_median:.3f} s (at most {last.lag_s_max:.3f} s)")
    return figures


@asynccontextmanager
async def in_background(context: AbstractContextManager[Entered]) -> AsyncIterator["asyncio.Future[Entered]"]:
    """Enter a slow context manager in a thread: answers that come in meanwhile are timed rightly."""
    entering = asyncio.ensure_future(asyncio.to_thread(context.__enter__))
    try:
        yield entering
    finally:
        await asyncio.wait([entering])
        if not entering.cancelled() and entering.exception() is None:
            await asyncio.to_thread(context.__exit__, None, None, None)


def _launched(
    settings: Settings,
    *,
    plugin: bool,
    decode: Engine | None = None,
    with_router: bool = True,
    laid_out: Callable[[Pair], None] = lambda _: None,
) -> AbstractAsyncContextManager["asyncio.Future[Pair]"]:
    name = "demo-pd-sidecar" if plugin else "demo-stock"
    spec = settings.pair(plugin=plugin, with_router=with_router)
    return in_background(running_pair(spec, name, decode=decode, laid_out=laid_out))


def _client(settings: Settings, pair: Pair) -> Client:
    return Client(pair, limit_s=settings.timeout_s + NEVER_S)


async def play(
    settings: Settings, pair: Pair, client: Client, scenarios: Sequence[Scenario], *, one_by_one: bool = False
) -> list[AnyPlayed]:
    """Stock's hangs overlap: nobody waits for D's answers in here, unless told to."""
    title = "pd-sidecar" if pair.spec.prefill.plugin else "stock"
    stage = Stage(pair, client, await normal_handshake_s(pair, client))
    say(f"{title}: a normal handshake takes {stage.normal_handshake_s:.3f} s")
    played: list[AnyPlayed] = []
    for scenario in scenarios:
        one = await scenario(stage)
        if one_by_one:
            await asyncio.wait([owed.decode for owed in one.owed])
        say(f"{title}: {one.name} played")
        played.append(one)
    if pair.router is not None:
        played.append(await behind_router(stage, pair.router, settings.timeout_s))
        say(f"{title}: router played")
    return played
