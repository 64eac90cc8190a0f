"""From a rank's stream to decode's socket, as processes and peers come and go."""

import signal
import socket

import msgspec
import pytest

from sidecar.core.endpoint_queue import Connection
from sidecar.model import DecodeAborted, DecodeEndpoint, DecodeRegistered, Settled
from tests.pair.ports import free_port
from tests.shell.scene import Rank, Service, decode, decode_process, hello, ranks


async def test_a_failed_room_reaches_decode_byte_for_byte(service: Service) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            rank.opened(4711)
            rank.handshake(4711, waiting.endpoint)
            rank.failed(4711)

            assert await waiting.told() == [b"4711", b"0", b"0"]
            assert await rank.hear(Settled) == Settled(4711, 1, waiting.endpoint, rank.seq - 1)


async def test_each_endpoint_is_told_in_its_own_dialect(service: Service) -> None:
    with decode() as old, decode() as new, decode() as own:
        async with ranks(service.path, "p") as [rank]:
            rank.say(DecodeRegistered(rank.next_seq(), new.endpoint, "s", 20))
            rank.say(DecodeRegistered(rank.next_seq(), own.endpoint, "s", 18, "0.5.18"))
            for one in (old, new, own):
                rank.handshake(4711, one.endpoint)
            rank.failed(4711, http_status=503)
            three = [b"4711", b"0", b"0"]

            assert await old.told() == three
            assert await new.told() == [*three, b"DRAINED_ABORT: gone"]
            assert await own.told() == [*three, b"DRAINED_ABORT: gone", b"503"]


@pytest.mark.parametrize(
    ("backend", "frames"),
    [
        ("nixl", [b"KV_STATUS", b"4711", b"0", b"0", b"gone"]),
        ("mori", [b"MoriMsgGuard", b"4711", b"0", b"0", b"gone"]),
        ("ascend", [b"4711", b"0", b"0"]),
    ],
)
async def test_every_backend_is_told_in_its_own_words(service: Service, backend: str, frames: list[bytes]) -> None:
    rank = await Rank.join(service.path, msgspec.structs.replace(hello(), backend=backend))
    with decode() as waiting:
        rank.handshake(4711, waiting.endpoint)
        rank.failed(4711)

        assert await waiting.told() == frames
    await rank.leave()


async def test_a_decode_of_another_version_on_the_same_port_is_sent_what_any_decode_takes(service: Service) -> None:
    """The process that took the cause has gone; what the one now there takes is not known before it says so."""
    port = free_port()
    async with ranks(service.path, "p") as [rank]:
        with decode(port) as first:
            rank.say(DecodeRegistered(rank.next_seq(), first.endpoint, "s", 20))
            rank.handshake(1, first.endpoint)
            rank.failed(1)

            assert len(await first.told()) == 4
        await service.until(lambda: service.notifier.stats.endpoint_downs == 1)
        with decode(port) as second:
            assert await second.told() == [b"1", b"0", b"0"]


async def test_a_late_handshake_is_answered(service: Service) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            rank.opened(1)
            rank.failed(1)
            await rank.accepted()
            rank.handshake(1, waiting.endpoint)

            assert await waiting.told() == [b"1", b"0", b"0"]


async def test_every_rank_tells_in_its_own_name(service: Service) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p0", "p1") as both:
            for rank in both:
                rank.handshake(1, waiting.endpoint)
                rank.failed(1)
            told = [await waiting.told(), await waiting.told()]

    assert sorted(told) == [[b"1", b"0", b"0"], [b"1", b"0", b"1"]]


async def test_a_port_that_opens_later_is_told_when_it_opens(service: Service) -> None:
    port = free_port()
    async with ranks(service.path, "p") as [rank]:
        rank.handshake(1, DecodeEndpoint("127.0.0.1", port))
        rank.failed(1)
        await service.until(lambda: service.push.failures["retried"] >= 2)
        with decode(port) as opened:
            assert await opened.told() == [b"1", b"0", b"0"]


async def test_a_thousand_rooms_arrive_in_order(service: Service) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            for room in range(1000):
                rank.handshake(room, waiting.endpoint)
                rank.failed(room)
            told = [int((await waiting.told())[0]) for _ in range(1000)]

            assert told == list(range(1000))
            await service.ended("held_up", 1000)


async def test_a_peer_killed_before_the_hand_off_is_told_when_it_is_back(patient: Service) -> None:
    port = free_port()
    async with ranks(patient.path, "p") as [rank]:
        async with decode_process(port) as first:
            rank.handshake(1, first.endpoint)
            await patient.until(lambda: patient.notifier.stats.endpoint_ups == 1)
        rank.failed(1)
        await rank.accepted()
        async with decode_process(port) as second:
            assert await second.line() == "1 0 0"


async def test_a_peer_killed_after_the_hand_off_is_told_again_when_it_is_back(patient: Service) -> None:
    port = free_port()
    async with ranks(patient.path, "p") as [rank]:
        async with decode_process(port) as first:
            rank.handshake(1, first.endpoint)
            rank.failed(1)

            assert await first.line() == "1 0 0"
        await patient.until(lambda: patient.notifier.outbox.pending == 1)
        async with decode_process(port) as second:
            assert await second.line() == "1 0 0"


async def test_a_peer_that_comes_back_as_something_else_is_not_told(patient: Service) -> None:
    port = free_port()
    async with ranks(patient.path, "p") as [rank]:
        async with decode_process(port) as first:
            rank.handshake(1, first.endpoint, session="old")
            rank.failed(1)
            await first.line()
        rank.say(DecodeRegistered(rank.next_seq(), first.endpoint, "new", 18))
        await patient.ended("restarted")
        with decode(port) as second:
            rank.handshake(2, second.endpoint, session="new")
            rank.failed(2)

            assert await second.told() == [b"2", b"0", b"0"]


async def test_decodes_abort_ends_the_matter(patient: Service) -> None:
    with decode() as waiting:
        async with ranks(patient.path, "p") as [rank]:
            rank.handshake(1, waiting.endpoint)
            rank.failed(1)
            await waiting.told()
            rank.say(DecodeAborted(rank.next_seq(), 1, 1, waiting.endpoint))

            assert await rank.hear(Settled) == Settled(1, 1, waiting.endpoint, 1)


async def test_a_peer_that_accepts_and_never_speaks_delays_nobody(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, decode() as waiting:
        silent = DecodeEndpoint("127.0.0.1", mute.getsockname()[1])
        async with ranks(service.path, "p") as [rank]:
            for room in range(50):
                rank.handshake(room, silent)
                rank.handshake(room, waiting.endpoint)
                rank.failed(room)
            for room in range(50):
                assert int((await waiting.told())[0]) == room

            queues = {queue.endpoint: queue for queue in service.notifier.outbox.queues()}
            assert queues[silent].connection is Connection.DOWN
            assert len(queues[silent].pending) == 50


async def test_what_cannot_be_delivered_expires(service: Service) -> None:
    rank = await Rank.join(service.path, hello(ttl_s=0.2))
    rank.handshake(1, DecodeEndpoint("127.0.0.1", free_port()))
    rank.failed(1)
    await service.ended("expired")
    await rank.leave()

    assert service.notifier.stats.hand_offs == 0


async def test_a_replay_after_a_reconnect_tells_nobody_twice(patient: Service) -> None:
    with decode() as waiting:
        rank = await Rank.join(patient.path)
        facts = [rank.opened(1), rank.handshake(1, waiting.endpoint), rank.failed(1)]
        await waiting.told()
        await rank.leave()
        again = await Rank.join(patient.path)
        for fact in facts:
            again.say(fact)
        again.seq = rank.seq
        again.handshake(2, waiting.endpoint)
        again.failed(2)

        assert await waiting.told() == [b"2", b"0", b"0"]
        await again.leave()


async def test_an_unknown_host_is_refused_and_delays_nobody(service: Service) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            rank.handshake(1, DecodeEndpoint("no-such-host.invalid", 7001))
            rank.handshake(1, waiting.endpoint)
            rank.failed(1)

            assert await waiting.told() == [b"1", b"0", b"0"]
            await service.until(lambda: service.push.failures["lookup"] > 0)


async def test_a_host_name_is_looked_up(service: Service) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p") as [rank]:
            rank.handshake(1, DecodeEndpoint("localhost", waiting.endpoint.port))
            rank.failed(1)

            assert await waiting.told() == [b"1", b"0", b"0"]


async def test_an_ipv6_endpoint_is_reached(service: Service) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with decode(host="::1") as waiting:
        async with ranks(service.path, "p") as [rank]:
            rank.handshake(1, waiting.endpoint)
            rank.handshake(2, DecodeEndpoint("[::1]", waiting.endpoint.port))
            rank.failed(1)

            assert await waiting.told() == [b"1", b"0", b"0"]


async def test_a_frozen_peer_is_found_out_and_told_when_it_is_back(patient: Service) -> None:
    """The kernel of a frozen peer acknowledges everything: only a heartbeat tells, and settling must wait for it."""
    service, port = patient, free_port()
    async with ranks(service.path, "p") as [rank]:
        async with decode_process(port) as first:
            rank.handshake(1, first.endpoint)
            await service.until(lambda: service.notifier.stats.endpoint_ups == 1)
            first.process.send_signal(signal.SIGSTOP)
            rank.failed(1)
            await service.until(lambda: service.notifier.stats.hand_offs == 1)
            await service.until(lambda: service.notifier.outbox.pending == 1)
        async with decode_process(port) as second:
            assert await second.line() == "1 0 0"
