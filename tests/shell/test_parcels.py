"""Stock's own messages on real sockets: from a rank's stream to decode's, as it comes and goes."""

import time

from sidecar.model import DecodeEndpoint, DecodeRegistered, Fact, ParcelGiven, ParcelRefused, ParcelsTaken
from tests.pair.ports import free_port
from tests.shell.scene import Rank, Service, decode, ranks


def registers(rank: Rank, endpoint: DecodeEndpoint, session: str = "s") -> None:
    rank.say(DecodeRegistered(rank.next_seq(), endpoint, session, 18))


def gives(rank: Rank, room: int, endpoint: DecodeEndpoint, *, session: str = "s", in_s: float = 10.0) -> Fact:
    frames = (b"%d" % room, b"4", b"0")
    fact = ParcelGiven(rank.next_seq(), room, endpoint, session, frames, time.monotonic() + in_s)
    rank.say(fact)
    return fact


async def test_parcels_reach_decode_in_order_and_the_rank_is_told(service: Service) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            registers(rank, waiting.endpoint)
            for room in range(100):
                last = gives(rank, room, waiting.endpoint)

            assert [[b"%d" % room, b"4", b"0"] for room in range(100)] == [await waiting.told() for _ in range(100)]
            assert last.seq == (await rank.hear(ParcelsTaken)).seq


async def test_a_decode_that_is_back_on_its_port_hears_all_that_is_about_it_now(service: Service) -> None:
    """S1: stock's socket swallows everything for good after one push that found the port closed."""
    port = free_port()
    async with ranks(service.path, "p") as [rank]:
        with decode(port) as first:
            registers(rank, first.endpoint)
            gives(rank, 1, first.endpoint)
            assert await first.told() == [b"1", b"4", b"0"]
        await service.until(lambda: service.notifier.stats.endpoint_downs == 1)
        gives(rank, 2, first.endpoint)
        await service.until(lambda: service.notifier.parcels.pending == 2)
        with decode(port) as second:
            registers(rank, second.endpoint, session="new")
            for room in (3, 4):
                gives(rank, room, second.endpoint, session="new")

            assert [await second.told() for _ in range(2)] == [[b"3", b"4", b"0"], [b"4", b"4", b"0"]]
            assert service.notifier.stats.parcels_ended["restarted"] == 2


async def test_a_dead_decode_delays_no_other(service: Service) -> None:
    dead = DecodeEndpoint("127.0.0.1", free_port())
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            registers(rank, dead)
            registers(rank, waiting.endpoint)
            for room in range(2000):
                gives(rank, room, dead)
            gives(rank, 7, waiting.endpoint)

            assert await waiting.told() == [b"7", b"4", b"0"]


async def test_a_message_of_one_frame_goes_as_it_is(service: Service) -> None:
    """None of sglang's is so short; a local sender with a bug must not cost other ranks theirs."""
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            registers(rank, waiting.endpoint)
            rank.say(
                ParcelGiven(rank.next_seq(), 1, waiting.endpoint, "s", (b"alone",), take_by_s=time.monotonic() + 10.0)
            )
            gives(rank, 2, waiting.endpoint)

            assert [await waiting.told(), await waiting.told()] == [[b"alone"], [b"2", b"4", b"0"]]


async def test_a_parcel_that_is_read_too_late_is_pushed_by_nobody(service: Service) -> None:
    """The sidecar was stopped for a while: stock has pushed it, and the room may be another request's by now."""
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            registers(rank, waiting.endpoint)
            late = gives(rank, 1, waiting.endpoint, in_s=-0.001)
            gives(rank, 2, waiting.endpoint)

            assert ParcelRefused(late.seq, "late") == await rank.hear(ParcelRefused)
            assert await waiting.told() == [b"2", b"4", b"0"]
