"""Replies to ranks that read slowly: what they can do without goes first, and it takes a lot to lose a stream."""

import time

import pytest
from msgspec import structs

from sidecar.model import TOKENIZER, Accepted, RoomEnded, RoomRefused
from sidecar.shell import stream
from tests.shell.scene import Rank, Service, hello, ranks

LONG_CAUSE = "x" * 1_000
"""As long as the plugin lets it be."""


async def refuse(door: Rank, rooms: range) -> None:
    for room in rooms:
        door.say(RoomRefused(door.next_seq(), room, LONG_CAUSE, 400, time.monotonic()))
    await door.accepted()


async def test_a_rank_that_comes_after_a_storm_of_refusals_is_told_of_all(service: Service) -> None:
    """They came at once and were more than a slow reader may leave lying, so that no rank could ever connect again."""
    door = await Rank.join(service.path, structs.replace(hello("door"), role=TOKENIZER, hears_refusals=True))
    await refuse(door, range(4_096))
    rank = await Rank.join(service.path, structs.replace(hello("p"), hears_refusals=True))
    told = {(await rank.hear(RoomEnded)).room for _ in range(4_096)}

    assert told == set(range(4_096))
    assert service.ingress.junk == {}
    await rank.leave()
    await door.leave()


async def test_a_rank_that_reads_slowly_is_spared_what_it_can_do_without(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ranks(service.path, "p") as [rank]:
        monkeypatch.setattr(stream, "SPARABLE_LIMIT_BYTES", -1)
        rank.opened(1)
        await service.until(lambda: service.ingress.replies_spared == 1)
        monkeypatch.undo()
        rank.opened(2)

        assert await rank.hear(Accepted) == Accepted(2)
        assert service.ingress.junk == {}
