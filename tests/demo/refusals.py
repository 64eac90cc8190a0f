"""What prefill refuses before it has a sender, while decode takes it and waits."""

from collections.abc import Sequence

from tests.demo.stage import Owed, Played, Stage, prompt
from tests.pair.answers import Answer
from tests.pair.traffic import Order

BEYOND = 2_000


async def too_long(stage: Stage, count: int = 2) -> Played:
    """Longer than P's --context-length: refused in P's tokenizer process, no scheduler sees it."""
    return await _refused(stage, "too_long", count, tokens=stage.pair.spec.prefill.context_length + BEYOND)


async def over_capacity(stage: Stage, count: int = 2) -> Played:
    """More tokens than P's KV pool holds: refused in P's scheduler. Stock 0.5.18 prefills a stub of one token instead,
    and D answers from its KV."""
    return await _refused(stage, "over_capacity", count, tokens=stage.pair.spec.prefill.max_total_tokens + BEYOND)


async def _refused(stage: Stage, name: str, count: int, *, tokens: int) -> Played:
    """D's handshake may come before P's refusal or after it: D is owed an answer from the later of the two."""
    sent = [stage.client.send(Order(text=prompt(tokens))) for _ in range(count)]
    answers = [await one.prefill for one in sent]
    owed = [
        Owed(one.decode, max(answer.answered_at, await stage.handshake_at(one.order)))
        for one, answer in zip(sent, answers, strict=True)
    ]
    complaints = [f"P answered {answer.status}, not 400" for answer in answers if answer.status != 400]
    return Played(name, count, owed, complaints, _served)


def _served(answers: Sequence[Answer]) -> list[str]:
    """Text for a prompt that P never read."""
    return [f"D answered {answer.status} with {answer.text!r}" for answer in answers if answer.is_good]
