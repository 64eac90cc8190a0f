"""The truth about delivery: each situation a notice can meet, on real sockets, with the timings of production.

docs/delivery.md has one row for each test. A notice is known to be undelivered after, is tried again so often, ends or
stays owed, and shows in these metrics.
"""

import asyncio
import contextlib
import logging
import math
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
import zmq

from sidecar.app import LINGER_MS
from sidecar.model import DecodeEndpoint, DecodeRegistered
from sidecar.shell import link
from tests.pair.ports import free_port
from tests.shell import scene
from tests.shell.scene import decode
from tests.shell.truth import (
    SETTLE_AFTER_S,
    SLACK_S,
    Truth,
    black_hole,
    drop_packets,
    in_a_namespace,
    joined,
    mortal,
    no_namespaces,
    owe,
    sockets_at,
    take_packets,
)

UP = zmq.Event.HANDSHAKE_SUCCEEDED
DOWN = zmq.Event.DISCONNECTED
RETRIED = zmq.Event.CONNECT_RETRIED
CLOSED = zmq.Event.CLOSED
NO_HANDSHAKE = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL

HANDSHAKE_LIMIT_S = link.OPTIONS[zmq.HANDSHAKE_IVL] / 1000
CONNECT_LIMIT_S = link.OPTIONS[zmq.CONNECT_TIMEOUT] / 1000
LEAST = 0.75
"""Share of these limits that an endpoint may have (`link.UNEVEN`)."""
RECONNECT_LAST_S = link.OPTIONS[zmq.RECONNECT_IVL_MAX] / 1000


@pytest_asyncio.fixture
async def truth(place: Path) -> AsyncIterator[Truth]:
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)  # a line for each of thousands costs seconds
    structlog.configure(wrapper_class=silent, cache_logger_on_first_use=False)
    async with Truth(place) as running:
        yield running
        stats = running.notifier.stats
        print(f"{stats.hand_offs} hand-offs, {stats.hand_offs_again} again, {stats.refusals} refusals")
        print(f"ended {dict(stats.notices_ended)}, push {dict(running.push.failures)}")


def attempts_within(seconds: float) -> int:
    """The most that the schedule allows: each wait is at least half of 0.02 s doubled so many times."""
    return math.ceil(math.log2(seconds / 0.01 + 1)) + 1


async def test_a_living_peer(truth: Truth) -> None:
    with decode() as waiting:
        async with joined(truth) as rank:
            since = await owe(rank, waiting.endpoint)
            assert await waiting.told() == [b"1", b"0", b"0"]
            assert truth.why_owed(1) == ["waits for evidence that it arrived"]
            await truth.ended("held_up")

            assert 4.9 < time.monotonic() - since < 5.0 + SLACK_S
            assert truth.metric("hand_offs_total") == 1
            assert truth.metric("hand_offs_again_total") == 0
            assert truth.metric("notices_ended_total", outcome="held_up") == 1


async def test_a_refused_port(truth: Truth) -> None:
    nobody = DecodeEndpoint("127.0.0.1", free_port())
    async with joined(truth, ttl_s=1.5) as rank:
        since = await owe(rank, nobody)
        known_after_s = await truth.report(nobody, RETRIED, since=since)
        assert truth.why_owed(1) == ["owed: no connection to the endpoint"]
        await truth.ended("expired")

        assert known_after_s < SLACK_S
        assert 2 <= truth.metric("refusals_total") <= attempts_within(1.5 + SLACK_S)
        assert truth.metric("push_failures_total", kind="retried") >= 2
        assert truth.metric("hand_offs_total") == 0
        assert truth.metric("owed") == 0


async def test_a_port_that_opens_later(truth: Truth) -> None:
    port = free_port()
    async with joined(truth) as rank:
        since = await owe(rank, DecodeEndpoint("127.0.0.1", port))
        await truth.until(lambda: truth.push.failures["retried"] >= 3)
        refused = truth.metric("refusals_total")
        with decode(port) as opened:
            opened_at = time.monotonic()
            assert await opened.told() == [b"1", b"0", b"0"]

            assert time.monotonic() - opened_at < RECONNECT_LAST_S + SLACK_S
            assert 1 <= refused <= attempts_within(opened_at - since)
            assert truth.metric("hand_offs_total") == 1
            assert truth.metric("owed_pending") == 0


async def test_a_peer_killed_before_the_hand_off(truth: Truth) -> None:
    async with joined(truth, ttl_s=1.5) as rank:
        async with mortal(free_port()) as first:
            rank.handshake(1, first.endpoint)
            await truth.until(lambda: truth.metric("endpoint_ups_total") == 1)
            since = time.monotonic()
            first.process.kill()
            known_after_s = await truth.report(first.endpoint, DOWN, since=since)
        rank.failed(1)
        await truth.ended("expired")

        assert known_after_s < SLACK_S
        assert truth.metric("endpoint_downs_total") == 1
        assert 1 <= truth.metric("refusals_total") <= attempts_within(1.5 + SLACK_S)
        assert truth.metric("hand_offs_total") == 0


async def test_a_peer_killed_after_the_hand_off(truth: Truth) -> None:
    """It may have read the notice or not: nobody can know, so it stays owed until it expires."""
    async with joined(truth, ttl_s=1.5) as rank:
        async with mortal(free_port()) as first:
            await owe(rank, first.endpoint)
            assert await first.line() == "1 0 0"
            since = time.monotonic()
            first.process.kill()
            known_after_s = await truth.report(first.endpoint, DOWN, since=since)
        assert truth.metric("owed_pending") == 1
        assert truth.why_owed(1) == ["owed: no connection to the endpoint"]
        await truth.ended("expired")

        assert known_after_s < SLACK_S
        assert truth.metric("hand_offs_total") == 1
        assert 1 <= truth.metric("refusals_total") <= attempts_within(1.5 + SLACK_S)
        assert truth.metric("notices_ended_total", outcome="held_up") == 0


async def test_a_peer_restarted_on_the_same_port(truth: Truth) -> None:
    port = free_port()
    async with joined(truth) as rank:
        async with mortal(port) as first:
            await owe(rank, first.endpoint)
            assert await first.line() == "1 0 0"
        await truth.until(lambda: truth.metric("owed_pending") == 1)
        async with mortal(port) as second:
            started_at = time.monotonic()
            assert await second.line() == "1 0 0"

            assert time.monotonic() - started_at < RECONNECT_LAST_S + SLACK_S
            assert truth.metric("endpoint_ups_total") == 2
            assert truth.metric("hand_offs_again_total") == 1
            assert truth.why_owed(1) == ["waits for evidence that it arrived"]


async def test_a_peer_killed_as_it_is_told_and_owed_more_while_it_is_down(truth: Truth) -> None:
    """Whatever had become of the first notice, the process that comes back hears of both rooms."""
    port = free_port()
    async with joined(truth) as rank, contextlib.AsyncExitStack() as stack:
        peer = await stack.enter_async_context(mortal(port))
        for trial in range(5):
            told, more = 2 * trial, 2 * trial + 1
            for room in (told, more):
                rank.handshake(room, peer.endpoint)
            await truth.until(lambda trial=trial: truth.metric("endpoint_ups_total") == trial + 1)
            rank.failed(told)
            await truth.until(lambda told=told: truth.why_owed(told) == ["waits for evidence that it arrived"])
            peer.process.kill()
            await truth.until(lambda trial=trial: truth.metric("endpoint_downs_total") == trial + 1)
            rank.failed(more)
            peer = await stack.enter_async_context(mortal(port))
            heard: set[str] = set()
            while not heard >= {f"{told} 0 0", f"{more} 0 0"}:  # older ones come again too
                heard.add(await peer.line())


async def test_a_peer_frozen_and_killed_that_comes_back(truth: Truth) -> None:
    """All that the kernel had taken for the frozen process is gone with it, and is told again."""
    port, rooms = free_port(), range(1, 201)
    async with joined(truth) as rank:
        async with mortal(port) as first:
            for room in rooms:
                rank.handshake(room, first.endpoint)
            await truth.until(lambda: truth.metric("endpoint_ups_total") == 1)
            first.process.send_signal(signal.SIGSTOP)
            for room in rooms:
                rank.failed(room)
            await truth.until(lambda: truth.metric("hand_offs_total") == len(rooms))
            first.process.kill()
        await truth.until(lambda: truth.metric("owed_pending") == len(rooms))
        async with mortal(port) as second:
            heard = {await second.line() for _ in rooms}

            assert heard == {f"{room} 0 0" for room in rooms}


async def test_a_notice_handed_off_just_before_the_end(truth: Truth) -> None:
    with decode() as waiting:
        async with joined(truth) as rank:
            rank.handshake(1, waiting.endpoint)
            await truth.until(lambda: truth.metric("endpoint_ups_total") == 1)
            rank.failed(1)
            await truth.until(lambda: truth.metric("hand_offs_total") == 1)
            truth.push.close_all(linger_ms=LINGER_MS)

            assert await waiting.told() == [b"1", b"0", b"0"]


async def test_a_peer_restarted_and_registered_anew(truth: Truth) -> None:
    """The new process never knew the room: what was owed to the old one ends, untried."""
    port = free_port()
    async with joined(truth) as rank:
        async with mortal(port) as first:
            await owe(rank, first.endpoint)
            assert await first.line() == "1 0 0"
        await truth.until(lambda: truth.metric("owed_pending") == 1)
        since = time.monotonic()
        rank.say(DecodeRegistered(rank.next_seq(), first.endpoint, "new", 18))
        await truth.ended("restarted")
        known_after_s = time.monotonic() - since
        async with mortal(port) as second:
            rank.handshake(2, second.endpoint, session="new")
            rank.failed(2)
            assert await second.line() == "2 0 0"

        assert known_after_s < SLACK_S
        assert truth.metric("hand_offs_again_total") == 0
        assert truth.metric("notices_ended_total", outcome="restarted") == 1


ROOMS = range(2**62, 2**62 + 800)  # long numbers fill buffers sooner


@pytest.fixture
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they fill soon; by default the kernel takes some 4 MB."""
    monkeypatch.setitem(link.OPTIONS, zmq.SNDHWM, 100)
    monkeypatch.setitem(link.OPTIONS, zmq.SNDBUF, 4096)
    program = scene.DECODE_PROGRAM.replace("pull.bind", "pull.setsockopt(zmq.RCVBUF, 4096)\npull.bind")
    monkeypatch.setattr(scene, "DECODE_PROGRAM", program)


async def freeze_and_fill(truth: Truth, process: asyncio.subprocess.Process, endpoint: DecodeEndpoint) -> float:
    """Stops the peer and owes it more than the buffers take. Answers since when it is frozen."""
    async with joined(truth) as rank:
        rank.handshake(ROOMS[0], endpoint)
        await truth.until(lambda: truth.metric("endpoint_ups_total") == 1)
        process.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        for room in ROOMS:
            rank.handshake(room, endpoint)
            rank.failed(room)
        await rank.accepted()
    return since


@pytest.mark.usefixtures("_small_buffers")
async def test_a_peer_frozen_with_full_buffers_that_goes_on_soon(truth: Truth) -> None:
    async with mortal(free_port()) as frozen:
        await freeze_and_fill(truth, frozen.process, frozen.endpoint)
        await truth.until(lambda: truth.metric("refusals_total") >= 1)
        assert truth.metric("endpoint_downs_total") == 0
        assert truth.metric("owed_pending") >= 1
        assert truth.why_owed(ROOMS[-1]) == ["owed: the connection takes no more"]
        frozen.process.send_signal(signal.SIGCONT)
        told = [await frozen.line() for _ in ROOMS]

        assert sorted(told) == [f"{room} 0 0" for room in ROOMS]
        assert truth.metric("hand_offs_total") == len(ROOMS)
        assert truth.metric("hand_offs_again_total") == 0
        assert truth.metric("refusals_total") < len(ROOMS)


async def test_a_peer_frozen_for_longer(truth: Truth) -> None:
    """Its kernel acknowledges everything: the heartbeat ends the connection, and all of it is owed again."""
    async with mortal(free_port()) as frozen:
        since = await freeze_and_fill(truth, frozen.process, frozen.endpoint)
        known_after_s = await truth.report(frozen.endpoint, DOWN, since=since)
        assert truth.metric("owed_pending") == len(ROOMS)
        frozen.process.send_signal(signal.SIGCONT)
        told: set[str] = set()
        while len(told) < len(ROOMS):
            told.add(await frozen.line())
        await truth.until(lambda: truth.metric("owed_pending") == 0)  # what its kernel had kept came first

        assert 1.8 < known_after_s < link.FROZEN_PEER_LIMIT_S + SLACK_S
        assert truth.metric("endpoint_downs_total") == 1
        assert truth.metric("hand_offs_again_total") > 0
        assert truth.metric("notices_ended_total", outcome="held_up") == 0


@pytest.mark.usefixtures("_small_buffers")
async def test_a_peer_frozen_with_full_buffers_for_longer(truth: Truth) -> None:
    """Nothing settles on a connection that takes no more, though libzmq's ping waits behind the data and finds
    nothing out."""
    async with mortal(free_port()) as frozen:
        since = await freeze_and_fill(truth, frozen.process, frozen.endpoint)
        await truth.until(
            lambda: truth.metric("endpoint_downs_total") or time.monotonic() - since > SETTLE_AFTER_S + SLACK_S
        )

        assert truth.metric("notices_ended_total", outcome="held_up") == 0


async def meet_a_black_hole(truth: Truth, swallowed: DecodeEndpoint) -> None:
    with decode() as alive:
        async with joined(truth, ttl_s=3.5) as rank:
            rank.handshake(2, alive.endpoint)
            since = await owe(rank, swallowed)
            rank.failed(2)
            assert await alive.told() == [b"2", b"0", b"0"]
            other_told_after_s = time.monotonic() - since
            known_after_s = await truth.report(swallowed, CLOSED, RETRIED, since=since)
            await truth.until(lambda: not truth.metric("owed_pending"))

            assert other_told_after_s < SLACK_S
            assert CONNECT_LIMIT_S * LEAST - 0.2 < known_after_s < CONNECT_LIMIT_S + SLACK_S
            assert 2 <= truth.metric("refusals_total") <= attempts_within(3.5 + SLACK_S)
            assert truth.metric("push_failures_total", kind="closed") >= 1
            assert truth.metric("notices_ended_total", outcome="expired") >= 1
            assert truth.metric("hand_offs_total") == 1


async def test_an_address_that_drops_packets(truth: Truth) -> None:
    """Not even a refusal comes back, and nobody else waits for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        drop_packets(listener)
        await meet_a_black_hole(truth, DecodeEndpoint("127.0.0.1", listener.getsockname()[1]))


def test_an_address_where_nobody_is(place: Path) -> None:
    """The same on the way to a host, in a network namespace of its own."""
    if why_not := no_namespaces():
        pytest.skip(why_not)

    async def scene_there() -> None:
        async with Truth(place) as truth:
            await meet_a_black_hole(truth, black_hole())

    in_a_namespace(scene_there)


async def test_a_half_open_connection(truth: Truth) -> None:
    """The peer's host fell off the net after the handshake: nothing ends the connection but our heartbeat."""
    with decode() as lost, sockets_at(lost.endpoint.port) as [listening]:
        async with joined(truth) as rank:
            rank.handshake(1, lost.endpoint)
            await truth.until(lambda: truth.metric("endpoint_ups_total") == 1)
            with sockets_at(lost.endpoint.port) as its_end:
                for one in its_end:
                    drop_packets(one)
            since = time.monotonic()
            rank.failed(1)
            await truth.until(lambda: truth.metric("hand_offs_total") == 1)
            assert truth.why_owed(1) == ["waits for evidence that it arrived"]
            known_after_s = await truth.report(lost.endpoint, DOWN, since=since)
            assert truth.why_owed(1) == ["owed: no connection to the endpoint"]
            await truth.until(lambda: truth.metric("refusals_total") >= 1)
            assert truth.metric("notices_ended_total", outcome="held_up") == 0
            take_packets(listening)  # back on the net, and the old connection stays dead

            assert await lost.told() == [b"1", b"0", b"0"]
            assert 1.4 < known_after_s < link.FROZEN_PEER_LIMIT_S + SLACK_S
            assert truth.metric("endpoint_downs_total") == 1
            assert truth.metric("hand_offs_again_total") == 1


async def test_a_peer_that_accepts_and_never_speaks(truth: Truth) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = DecodeEndpoint("127.0.0.1", mute.getsockname()[1])
        async with joined(truth, ttl_s=3.5) as rank:
            since = await owe(rank, silent)
            known_after_s = await truth.report(silent, NO_HANDSHAKE, since=since)
            await truth.ended("expired")

            assert HANDSHAKE_LIMIT_S * LEAST - 0.2 < known_after_s < HANDSHAKE_LIMIT_S + SLACK_S
            assert 2 <= truth.metric("refusals_total") <= attempts_within(3.5 + SLACK_S)
            assert truth.metric("push_failures_total", kind="handshake_failed") >= 1
            assert truth.metric("endpoint_ups_total") == 0
            assert truth.metric("hand_offs_total") == 0


async def test_a_server_of_something_else(truth: Truth) -> None:
    """Its greeting can pass for a peer that speaks ZMTP 1 and takes everything: a hand-off there proves nothing."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n" * 2)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        other = DecodeEndpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        async with joined(truth, ttl_s=8.0) as rank:
            await owe(rank, other)
            await truth.until(lambda: not len(truth.notifier.outbox))

            assert truth.metric("notices_ended_total", outcome="held_up") == 0
            assert truth.metric("notices_ended_total", outcome="expired") == 1
