"""Scenario `ok`: normal traffic on both pairs. Equal outputs, equal speed.

The machine is small and noisy, so the pairs take turns request by request. A round is a few turns of each; its ratio is
that of the median turns, and the figure is the median of the rounds.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

from tests.demo.figures import Ok, half_width
from tests.demo.stage import prompt
from tests.pair.cores import prefill_apart
from tests.pair.progress import say
from tests.pair.running import Pair
from tests.pair.traffic import Client, Order

OUTPUT_LENGTHS = (40, 90, 150, 260, 400, 700, 1_100, 1_600, 2_500, 3_600, 5_000)
TOKENS_A_REQUEST = 1_000
REPORT_EVERY = 5
ROUNDS_AT_LEAST = 4
WELL_KNOWN = 0.008


async def ok(stock: Pair, ours: Pair, *, limit_s: float, outputs: int, turns: int) -> Ok:
    """As many rounds as it takes to know the ratio well, or as there is time for; `turns` of each pair are a round."""
    with prefill_apart([stock, ours]):
        return await _ok(stock, ours, limit_s=limit_s, outputs=outputs, turns=turns)


async def _ok(stock: Pair, ours: Pair, *, limit_s: float, outputs: int, turns: int) -> Ok:
    async with Client(stock) as stock_client, Client(ours) as our_client:
        for client in (stock_client, our_client):  # stock's has been filled by its scenarios
            await client.flush_cache("prefill")
        identical = await _same_outputs(stock_client, our_client, OUTPUT_LENGTHS[:outputs])
        ratios: list[float] = []
        deadline = time.monotonic() + limit_s
        while len(ratios) < ROUNDS_AT_LEAST or (half_width(ratios) > WELL_KNOWN and time.monotonic() < deadline):
            ratios.append(await _ratio_of_a_round(stock_client, our_client, turns))
            if len(ratios) % REPORT_EVERY == 0:
                say(f"  ok: {len(ratios)} rounds, throughput ratio {statistics.median(ratios):.3f} so far")
    return Ok(identical, tuple(ratios))


async def _ratio_of_a_round(stock_client: Client, our_client: Client, turns: int) -> float:
    seconds: dict[Client, list[float]] = {stock_client: [], our_client: []}
    for number in range(turns):
        order = [stock_client, our_client] if number % 2 == 0 else [our_client, stock_client]
        for client in order:
            seconds[client].append(await _seconds_a_turn(client))
    return statistics.median(seconds[stock_client]) / statistics.median(seconds[our_client])


async def _seconds_a_turn(client: Client) -> float:
    began = time.monotonic()
    sent = client.send(Order(text=prompt(TOKENS_A_REQUEST)))
    answers = await asyncio.gather(sent.prefill, sent.decode)
    spent = time.monotonic() - began
    if not all(answer.is_good for answer in answers):
        raise RuntimeError(f"an answer to normal traffic was bad: {answers}")
    return spent


async def _same_outputs(stock_client: Client, our_client: Client, lengths: Sequence[int]) -> bool:
    """One request at a time: batches of different sizes may round differently, and that is not the plugin's doing."""
    texts = [prompt(length) for length in lengths]
    expected = [await _output(stock_client, text) for text in texts]
    found = [await _output(our_client, text) for text in texts]
    distinct = len(set(expected))
    equal = sum(a == b for a, b in zip(expected, found, strict=True))
    say(f"  ok: {equal} of {len(texts)} outputs are equal, {distinct} are distinct")
    if distinct < len(texts) // 2:
        raise RuntimeError("outputs do not depend on prompts: comparing them says nothing")
    return expected == found


async def _output(client: Client, text: str) -> tuple[int, ...]:
    sent = client.send(Order(text=text, max_new_tokens=12))
    answers = await asyncio.gather(sent.prefill, sent.decode)
    if not all(answer.is_good for answer in answers):
        raise RuntimeError(f"normal traffic failed: {answers}")
    return answers[1].output_ids
