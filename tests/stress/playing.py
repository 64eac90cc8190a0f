"""Plays one round and looks at what is left of it."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.demo.figures import OWN_TIMEOUT
from tests.pair.answers import LOST, Answer
from tests.pair.rest import accepted, comes_to_rest, leftovers, send_prefill_first
from tests.pair.running import Pair
from tests.pair.side import Role
from tests.pair.traffic import Client, Order, Sent
from tests.stress.plan import KEPT_LENGTHS, Doing, Fate, Round

REST_LIMIT_S = 90.0
OUTPUT_TOKENS = 8
ROLES: tuple[Role, ...] = ("prefill", "decode")

Output = tuple[int, ...]


def known_text(number: int) -> str:
    return (f"prompt {number}: " + "pack my box with five dozen liquor jugs " * 300)[: KEPT_LENGTHS[number]]


def fresh_text(length: int) -> str:
    """Nothing of it is in prefill's prefix cache."""
    return (secrets.token_hex(8) + "how vexingly quick daft zebras jump " * (length // 36 + 1))[:length]


@dataclass
class Tally:
    """What was seen; `wrongs` must stay empty."""

    counts: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)


async def expected_outputs(client: Client) -> list[Output]:
    """One at a time, nobody else there, nothing aborted."""
    outputs = []
    for number in range(len(KEPT_LENGTHS)):
        sent = client.send(Order(text=known_text(number), max_new_tokens=OUTPUT_TOKENS))
        answers = [await sent.prefill, await sent.decode]
        if not all(answer.is_good for answer in answers):
            raise RuntimeError(f"the pair does not serve normal traffic: {answers}")
        outputs.append(answers[1].output_ids)
    return outputs


class Player:
    def __init__(self, pair: Pair, client: Client, expected: Sequence[Output]) -> None:
        self.tally = Tally()
        self._pair = pair
        self._client = client
        self._expected = expected

    async def play(self, told: Round) -> None:
        if told.flush:
            for role in ROLES:
                await self._client.flush_cache(role)
        spared = told.abort_all_s is None
        async with asyncio.TaskGroup() as group:
            for doing in told.doings:
                group.create_task(self._do(doing, spared=spared))
            if told.abort_all_s is not None:
                group.create_task(self._abort_all(told.abort_all_s))
        await self._look_at_what_is_left(told)
        self.tally.counts["rounds"] += 1

    async def _abort_all(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._client.abort_all()
        self.tally.counts["abort_all"] += 1

    async def _do(self, doing: Doing, *, spared: bool) -> None:
        """`spared`: nobody aborts all in this round, so a kept request must do well."""
        self.tally.counts[doing.fate.value] += 1
        match doing.fate:
            case Fate.KEPT:
                await asyncio.sleep(doing.after_s)
                order = Order(text=known_text(doing.known), max_new_tokens=OUTPUT_TOKENS)
                await self._keep(doing.known, self._client.send(order), spared)
            case Fate.LATE:
                await self._come_late(doing, spared)
            case _:
                await self._end(doing)

    async def _keep(self, known: int, sent: Sent, spared: bool) -> None:
        prefill, decode = await sent.prefill, await sent.decode
        self._answered(decode)
        if spared and not (prefill.is_good and decode.is_good):
            self._wrong(f"nobody aborted it, and it was answered {prefill.status} {prefill.error} / {decode.error}")
        if decode.is_good and decode.output_ids != self._expected[known]:
            self._wrong(f"prompt {known} gave {decode.output_ids}, expected {self._expected[known]}")

    async def _end(self, doing: Doing) -> None:
        """Once prefill has accepted it: of a request that never came there prefill has nothing to tell."""
        sent = self._client.send(Order(text=fresh_text(doing.length), max_new_tokens=OUTPUT_TOKENS))
        await accepted(self._client, sent.order, sent.prefill)
        await asyncio.sleep(doing.after_s)
        if doing.fate is Fate.HUNG_UP:
            sent.prefill.cancel()
        else:
            await self._client.abort(sent.order.rid, role="decode" if doing.fate is Fate.DECODE_ABORTED else "prefill")
        self._answered(await sent.decode)
        await asyncio.wait([sent.prefill])

    async def _come_late(self, doing: Doing, spared: bool) -> None:
        order = Order(text=fresh_text(doing.length))
        prefill = self._client.send_prefill(order)
        await accepted(self._client, order, prefill)
        await self._client.abort(order.rid)
        await prefill
        await asyncio.sleep(doing.after_s)
        late = await self._client.send_decode(order)
        self._answered(late)
        if late.is_good:
            self._wrong("decode came after prefill had given up, and was served")
        again = Order(text=known_text(doing.known), max_new_tokens=OUTPUT_TOKENS, room=order.room)
        await self._keep(doing.known, await send_prefill_first(self._client, again), spared)

    def _answered(self, decode: Answer) -> None:
        self.tally.counts["decode good" if decode.is_good else "decode ended"] += 1
        if decode.status == LOST or OWN_TIMEOUT in decode.error:
            self._wrong(f"decode hung: {decode.error}")

    async def _look_at_what_is_left(self, told: Round) -> None:
        for role in ROLES:
            try:
                ranks = await comes_to_rest(self._pair, self._client, role, limit_s=REST_LIMIT_S)
            except TimeoutError as error:
                self._wrong(f"round {told.number}: {error}")
                continue
            for tables in ranks:
                for left in leftovers(tables):
                    self._wrong(f"round {told.number}: {left}")
                faults = (tables.get("plugin") or {}).get("faults")
                if faults:
                    self._wrong(f"round {told.number}: contained faults {faults}")

    def _wrong(self, what: str) -> None:
        self.tally.wrongs.append(what)
