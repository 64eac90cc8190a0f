"""What is played in a cell. D's hangs overlap: those of all cells of one decode server are waited for together."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.demo import scenarios
from tests.demo.figures import told
from tests.demo.stage import Played, Stage, normal_handshake_s, prompt
from tests.matrix.cells import Build, Cell
from tests.matrix.lineup import TIMEOUT_S, Server, ensure_builds, launch, lay_out, pair_of, prefills_at_once
from tests.matrix.verdict import Result, Seen, runs_in_stock, wrongs
from tests.pair.answers import Answer
from tests.pair.progress import say
from tests.pair.side import Role
from tests.pair.traffic import Client, Order

Item = TypeVar("Item")

NEVER_S = 20.0
"""So long after its timeout a D request that has not ended never will."""

NORMAL_TOKENS = 600
WAITING_TOKENS = 4_000
CHUNKED_TOKENS = 24_000


@dataclass(frozen=True)
class Begun:
    """A cell whose traffic is done; D's answers are still owed. `deaths` is how many threads had died before."""

    cell: Cell
    servers: tuple[Server, Server]
    client: Client
    played: Sequence[Played]
    deaths: int


def play(cells: Sequence[Cell], known: Sequence[Result] = ()) -> Iterator[list[Result]]:
    """Cells of one backend; the results of one decode server at a time. `known`: what earlier cells have shown."""
    backend = cells[0].backend
    model = ensure_builds(backend, [build.version for cell in cells for build in (cell.prefill, cell.decode)])
    results = list(known)
    sources = _once(cell.prefill for cell in cells)
    room = prefills_at_once()
    for first in range(0, len(sources), room):
        group = [cell for cell in cells if cell.prefill in sources[first : first + room]]
        for fresh in _play_group(backend, group, model, results):
            results += fresh
            yield fresh


def _play_group(backend: str, cells: Sequence[Cell], model: Path, known: list[Result]) -> Iterator[list[Result]]:
    """All prefill servers stay, the decode servers of one version follow those of another. `known` grows meanwhile."""
    with ExitStack() as stack:
        prefills = lay_out(backend, "prefill", _once(cell.prefill for cell in cells), stack)
        to_launch = prefills
        for version in _once(cell.decode.version for cell in cells):
            wanted = _once(cell.decode for cell in cells if cell.decode.version == version)
            with ExitStack() as decode_stack:
                decodes = lay_out(backend, "decode", wanted, decode_stack)
                launch([*to_launch, *decodes], model)
                to_launch = []
                for decode in decodes:
                    its_own = [cell for cell in cells if cell.decode == decode.build]
                    yield asyncio.run(play_decode(decode, prefills, its_own, known))


def _once(found: Iterable[Item]) -> list[Item]:
    return list(dict.fromkeys(found))


async def play_decode(
    decode: Server, prefills: Sequence[Server], cells: Sequence[Cell], before: Sequence[Result]
) -> list[Result]:
    """All cells of one decode server. Versions that do not run together in stock are not played with the plugin."""
    results: list[Result] = []
    begun: list[Begun] = []
    async with AsyncExitStack() as stack:
        for cell in cells:
            if not runs_in_stock([*before, *results], cell):
                say(f"{cell.name}: not played, stock does not serve with these two versions")
                continue
            prefill = next(server for server in prefills if server.build == cell.prefill)
            limit_s = TIMEOUT_S[cell.backend] + NEVER_S
            client = await stack.enter_async_context(Client(pair_of(prefill, decode), limit_s=limit_s))
            match await _begin(cell, prefill, decode, client):
                case Begun() as one:
                    begun.append(one)
                case str() as error:
                    results.append(_shown(Result(cell, error)))
        for one in begun:
            results.append(_shown(await _finish(one)))
    return results


async def served(client: Client) -> str:
    """Two requests of normal traffic; why they were not served, or nothing."""
    sent = [client.send(Order(text=prompt(NORMAL_TOKENS))) for _ in range(2)]
    answers = [await half for one in sent for half in (one.decode, one.prefill)]
    return next((f"{bad.role} answered {bad.status}: {bad.error}" for bad in answers if not bad.is_good), "")


async def _begin(cell: Cell, prefill: Server, decode: Server, client: Client) -> Begun | str:
    deaths = _deaths(prefill, decode)
    if error := await served(client):
        return error
    pair = pair_of(prefill, decode)
    try:
        played = await _play(Stage(pair, client, await normal_handshake_s(pair, client)))
    except (TimeoutError, RuntimeError) as error:
        return f"playing it failed: {error!r}"
    if cell.is_told:
        await asyncio.wait([owed.decode for one in played for owed in one.owed])
    return Begun(cell, (prefill, decode), client, played, deaths)


async def _play(stage: Stage) -> list[Played]:
    return [
        await scenarios.abort_one_waiting(stage, count=3, tokens=WAITING_TOKENS),
        await scenarios.abort_chunked(stage, tokens=CHUNKED_TOKENS, chunk=2),
        await scenarios.late_handshake(stage, count=1),
    ]


async def _finish(begun: Begun) -> Result:
    seen: list[Seen] = []
    complaints: list[str] = []
    for one in begun.played:
        answers = [await owed.decode for owed in one.owed]
        seen += [_seen(one.name, answer, owed.given_up_at) for answer, owed in zip(answers, one.owed, strict=True)]
        complaints += [f"{one.name}: {complaint}" for complaint in one.complaints]
    after = await served(begun.client)
    complaints += await _of_plugin(begun)
    if died := _deaths(*begun.servers) - begun.deaths:
        complaints.append(f"{died} threads died")
    return Result(begun.cell, "", tuple(seen), after, tuple(complaints))


def _seen(scenario: str, answer: Answer, given_up_at: float) -> Seen:
    end = told(answer, given_up_at)
    error = answer.error or str((answer.finish_reason or {}).get("message", ""))
    return Seen(scenario, answer.status, error, end.lag_s, end.is_hung)


async def _of_plugin(begun: Begun) -> list[str]:
    """Whether it is at work where it was installed, and has not had to contain a fault of its own."""
    found = []
    sides: tuple[tuple[Role, Build], ...] = (("prefill", begun.cell.prefill), ("decode", begun.cell.decode))
    for role, build in sides:
        state = (await begun.client.server_info(role))["internal_states"][0]
        report = state.get("pd_sidecar")
        if (report is not None) != build.plugin:
            found.append(f"the plugin {'stands down' if build.plugin else 'is at work'} at {role}")
        elif report and report["faults"]:
            found.append(f"the plugin contained faults at {role}: {report['faults']}")
    return found


def _deaths(*servers: Server) -> int:
    return sum(len(server.events.all("thread_died")) for server in servers)


def _shown(result: Result) -> Result:
    found = [] if result.cell.is_stock and result.before else wrongs(result)
    say(f"{result.cell.name}: {result.outcome}{'' if not found else ', WRONG: ' + '; '.join(found)}")
    for one in result.seen:
        say(f"    {one.scenario}: {one.status} after {one.lag_s:.3f} s, {one.error[:200]}")
    return result
