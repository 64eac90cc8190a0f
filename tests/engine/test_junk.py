"""Anybody can write to the control sockets. Stock's threads end over it; with the plugin they serve on, and it counts.

The bursts are drawn by seed. On sglang's own threads, of each backend and both roles.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from sglang.srt.disaggregation.base.conn import KVPoll

from sglang_hooks.hooks.control import prefill_stock
from sglang_hooks.messages.decode import DecodeStock, read_for_decode
from sglang_hooks.messages.prefill import read_for_prefill
from sglang_hooks.messages.values import Family, Junk, Reason, Registration
from sidecar.model import DecodeAcknowledged, DecodeEndpoint, DecodeRegistered
from sidecar.wire.decode_half import acknowledgement, announcement
from tests.engine.control_stage import Served, serving
from tests.engine.stage import Stage, StoppedError, wait_until
from tests.sglang_hooks.samples import (
    ABORT,
    AUX,
    CHUNK,
    DECODE_JUNK,
    DUMMIES,
    METADATA,
    PREFILL_JUNK,
    REGISTRATIONS,
    REQUEST,
    changed,
)

pytestmark = pytest.mark.engine

ROOM = 815
SEEDS = range(4)
BURST = 400
SESSIONS = {Family.MOONCAKE: "127.0.0.1:9", Family.NIXL: "agent", Family.MORI: "agent"}
STATUS_TAGS = {Family.MOONCAKE: [], Family.NIXL: [b"KV_STATUS"], Family.MORI: [b"MoriMsgGuard"]}

NO_THREADS_END = {"port_zero", "port_too_high", "host_that_zmq_refuses", "too_many_frames", "too_many_bytes"}
"""What costs stock something else: a transfer worker, or memory."""
SCHEDULERS_END = {"session_without_port", "session_with_a_word_for_port"}
STOOD_BY_0_5_18 = {"aux_of_another_length", "abort_ack_no_rank"}
"""The second one ends a decode of 0.5.19 to 0.5.21 that holds pages."""
NEVER_SENT = {"no_frames", "nothing", "ack_of_no_room", "many"}

every_backend = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)


@pytest.fixture(autouse=True)
def quiet_deaths(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Threads may die here. By what."""
    died: Counter[str] = Counter()
    monkeypatch.setattr(threading, "excepthook", lambda args: died.update([args.exc_type.__name__]))
    yield died
    died.pop(StoppedError.__name__, None)


def registration(served: Served, family: Family) -> list[bytes]:
    """Of a decode that listens where the test does."""
    at = 2 if family is Family.MOONCAKE else 3
    frames = changed(changed(REGISTRATIONS[family], at - 1, b"127.0.0.1"), at, b"%d" % served.port)
    frames = changed(frames, at + 1, SESSIONS[family].encode())
    return changed(frames, at + 2, b"nixl agent") if family is Family.NIXL else frames


def metadata(served: Served, family: Family, room: int = ROOM) -> list[bytes]:
    at = 2 if family is Family.MOONCAKE else 3
    frames = changed(changed(METADATA[family], at - 2, b"%d" % room), at, b"%d" % served.port)
    return changed(changed(frames, at - 1, b"127.0.0.1"), at + 1, SESSIONS[family].encode())


def shakes_hands(served: Served, family: Family) -> bool:
    served.manager.request_status[ROOM] = KVPoll.Bootstrapping
    served.send(registration(served, family), metadata(served, family))
    wait_until(lambda: served.status(ROOM) == KVPoll.WaitingForInput, "the bootstrap thread is gone")
    return True


# -- bursts


def drawn(rng: random.Random, good: list[list[bytes]]) -> list[bytes]:
    """Noise, or a message of sglang's with one frame spoiled or some missing."""
    match rng.randrange(4):
        case 0:
            return [rng.randbytes(rng.randrange(12)) for _ in range(rng.randint(1, 12))]
        case 1:
            words = (
                b"ABORT",
                b"None",
                b"WATERMARK",
                b"STAGING_RSP",
                b"BOOTSTRAP",
                b"0",
                b"17",
                b"",
                b"-1",
                b"KV_STATUS",
            )
            return [rng.choice(words) for _ in range(rng.randint(1, 12))]
        case 2:
            frames = rng.choice(good)
            return frames[: rng.randint(1, len(frames))]
        case _:
            frames = rng.choice(good)
            frame = rng.choice([rng.randbytes(rng.randrange(9)), b"x", b"", b"-1", b"9" * 30, b"\xff"])
            return changed(frames, rng.randrange(len(frames)), frame)


def prefill_burst(rng: random.Random, family: Family) -> list[list[bytes]]:
    good = [REGISTRATIONS[family], METADATA[family], DUMMIES[family], ABORT]
    known = [frames for name, (frames, _) in PREFILL_JUNK.items() if frames and "too_many" not in name]
    burst = [drawn(rng, good) for _ in range(BURST)] + known * 2
    rng.shuffle(burst)
    return burst


def decode_burst(rng: random.Random, family: Family) -> list[list[bytes]]:
    good = [[*STATUS_TAGS[family], b"17", b"0", b"0", b"why"], CHUNK, REQUEST, [b"ABORT_ACK", b"17", b"0"], AUX]
    known = [frames for frames, _ in DECODE_JUNK.values() if frames]
    burst = [drawn(rng, good) for _ in range(BURST)] + known * 2
    rng.shuffle(burst)
    return burst


@every_backend
@pytest.mark.parametrize("seed", SEEDS)
def test_prefill_serves_after_a_burst(family: Family, seed: int) -> None:
    burst = prefill_burst(random.Random(seed), family)  # noqa: S311 - dice
    with serving(family, "prefill") as served:
        stock = prefill_stock(served.manager)
        served.send(*burst)
        assert shakes_hands(served, family)

        expected = Counter(m.reason.value for m in (read_for_prefill(f, stock) for f in burst) if isinstance(m, Junk))
        counted = Counter({name: count for name, count in served.junk.items() if count})
        unregistered = counted[Reason.MISMATCHED.value] - expected[Reason.MISMATCHED.value]
        assert unregistered >= 0
        counted[Reason.MISMATCHED.value] -= unregistered
        raised = counted.pop(Reason.RAISED.value, 0)
        assert +counted == expected
        assert raised <= sum(isinstance(read_for_prefill(f, stock), Registration) for f in burst)


@every_backend
@pytest.mark.parametrize("seed", SEEDS)
def test_decode_serves_after_a_burst(family: Family, seed: int) -> None:
    """NIXL's decode up to 0.5.19 has no such thread: the decode half's own."""
    burst = decode_burst(random.Random(seed), family)  # noqa: S311 - dice
    with serving(family, "decode") as served:
        served.manager._handle_aux_data = lambda _frames: None  # noqa: SLF001 - it writes to memory
        served.send(*burst)
        served.manager.update_status(ROOM, KVPoll.Bootstrapping)
        served.manager.required_prefill_response_num_table[ROOM] = 1
        served.manager.prefill_response_tracker[ROOM] = set()
        served.manager.required_prefill_response_num_table[ROOM + 1] = 1
        served.manager.update_status(ROOM + 1, KVPoll.Bootstrapping)
        tag = STATUS_TAGS[family]
        served.send([*tag, b"%d" % ROOM, b"4", b"0"], [*tag, b"%d" % (ROOM + 1), b"0", b"0", b"too long", b"400"])
        wait_until(lambda: served.status(ROOM + 1) == KVPoll.Failed, "the control thread is gone")

        assert served.status(ROOM) in (KVPoll.Success, KVPoll.Bootstrapping if family is Family.NIXL else None)
        assert served.manager.failure_records[ROOM + 1] == "too long"
        stands_unknown = family is not Family.MOONCAKE or hasattr(served.manager, "parse_kv_status_message")
        stock = DecodeStock(family, stands_unknown)
        expected = Counter(m.reason.value for m in (read_for_decode(f, stock) for f in burst) if isinstance(m, Junk))
        counted = Counter({name: count for name, count in served.junk.items() if count})
        assert counted[Reason.MISMATCHED.value] >= expected[Reason.MISMATCHED.value]
        assert not counted[Reason.RAISED.value]
        del counted[Reason.MISMATCHED.value], expected[Reason.MISMATCHED.value]
        assert counted == expected


# -- one message is enough for stock


@pytest.mark.parametrize("name", sorted(PREFILL_JUNK.keys() - NO_THREADS_END - SCHEDULERS_END - NEVER_SENT))
def test_one_message_ends_stock_prefills_thread(name: str) -> None:
    """Mooncake. If this fails, sglang has become better, and the reader may let more through."""
    with serving(Family.MOONCAKE, "prefill", plugin=False) as served:
        if hasattr(served.manager, "handle_abort_ack_message") and name.startswith("abort"):
            pytest.skip("from 0.5.22 on a malformed ABORT is dropped")
        served.send(PREFILL_JUNK[name][0])
        assert served.dies()


@pytest.mark.parametrize("name", sorted(DECODE_JUNK.keys() - NEVER_SENT - STOOD_BY_0_5_18))
def test_one_message_ends_stock_decodes_thread(name: str) -> None:
    with serving(Family.MOONCAKE, "decode", plugin=False) as served:
        if hasattr(served.manager, "parse_kv_status_message"):
            pytest.skip("from 0.5.20 on most of these are dropped")
        served.send(DECODE_JUNK[name][0])
        assert served.dies()


@pytest.mark.parametrize("frames", [[b"HELLO"], METADATA[Family.MOONCAKE], REGISTRATIONS[Family.NIXL]])
def test_one_message_ends_stock_nixls_thread(frames: list[bytes]) -> None:
    """The registration is in order; its agent's metadata is not."""
    with serving(Family.NIXL, "prefill", plugin=False) as served:
        served.send(frames)
        assert served.dies()


# -- what cannot be seen in the bytes


def test_a_registration_that_the_engine_refuses_does_not_end_the_thread() -> None:
    with serving(Family.NIXL, "prefill") as served:
        served.send(changed(REGISTRATIONS[Family.NIXL], 4, b"another"))
        assert shakes_hands(served, Family.NIXL)
        assert served.junk[Reason.RAISED.value] == 1


@pytest.mark.parametrize("family", [Family.MOONCAKE, Family.NIXL], ids=lambda family: family.value)
def test_a_registration_of_another_geometry_does_not_end_the_thread(family: Family) -> None:
    """Decode with two DCP ranks, prefill with one and no MLA."""
    with serving(family, "prefill") as served:
        at = 16 if family is Family.MOONCAKE else 22
        served.send(changed(registration(served, family), at, b"2"))
        wait_until(lambda: served.junk[Reason.RAISED.value] == 1, "nothing was raised")
        assert shakes_hands(served, family)


def test_metadata_of_a_session_that_never_registered_is_dropped() -> None:
    """Mooncake's transfer worker looks the session up, and ends over it."""
    with serving(Family.MOONCAKE, "prefill") as served:
        served.send(metadata(served, Family.MOONCAKE, ROOM + 1))
        assert shakes_hands(served, Family.MOONCAKE)
        assert served.junk[Reason.MISMATCHED.value] == 1
        assert ROOM + 1 not in served.manager.transfer_infos


@pytest.mark.parametrize(("session", "ended"), [("session", (IndexError, ValueError)), ("127.0.0.1:1", ())])
def test_one_handshake_ends_stocks_scheduler_or_its_worker(
    stock: Stage, session: str, ended: tuple[type[Exception], ...]
) -> None:
    """The scheduler adds up the ports of the sessions; the worker looks the session up."""
    decode, req = stock.decode(), stock.request(ROOM)
    decode.session = session
    decode.handshake(ROOM)
    wait_until(lambda: stock.status(ROOM) == KVPoll.WaitingForInput, "no handshake")
    if ended:
        with pytest.raises(ended):
            stock.send(req, 8)
        return
    stock.send(req, 8)
    wait_until(lambda: not all(thread.is_alive() for thread in stock._threads), "the worker lives")  # noqa: SLF001


@pytest.mark.parametrize("session", ["session", "127.0.0.1:1"])
def test_with_the_plugin_the_request_waits_for_its_decode(stage: Stage, session: str) -> None:
    decode, req = stage.decode(), stage.request(ROOM)
    registered, decode.session = decode.session, session
    decode.handshake(ROOM)
    decode.session = registered
    decode.handshake(ROOM)
    wait_until(lambda: stage.status(ROOM) == KVPoll.WaitingForInput, "no handshake")
    stage.send(req, 8)

    assert decode.hear()[1] == b"%d" % KVPoll.Success
    assert stage.rank is not None
    assert stage.rank.counts.junk[Reason.MISMATCHED.value] == 1


# -- the decode half, at prefill


@every_backend
def test_prefill_takes_an_announcement_and_an_acknowledgement(family: Family) -> None:
    with serving(family, "prefill") as served:
        frames = registration(served, family)
        served.send(announcement(frames, "0.5.18"))
        assert shakes_hands(served, family)
        rank = vars(served.manager)["_pd_sidecar_rank"]
        life = rank.open(ROOM)
        rank.release(life, "gone")
        served.send(acknowledgement(frames, ROOM))
        wait_until(lambda: any(isinstance(fact, DecodeAcknowledged) for fact in served.facts), "no ack came through")

        endpoint = DecodeEndpoint("127.0.0.1", served.port)
        said = [fact for fact in served.facts if isinstance(fact, DecodeRegistered)]
        assert [(fact.endpoint, fact.session, fact.frames, fact.decode_half) for fact in said] == [
            (endpoint, SESSIONS[family], len(frames), "0.5.18"),
            (endpoint, SESSIONS[family], len(frames), ""),
        ]
        assert not any(served.junk.values())


@every_backend
def test_stock_prefill_takes_them_as_well(family: Family) -> None:
    with serving(family, "prefill", plugin=False) as served:
        frames = registration(served, family)
        served.send(announcement(frames, "0.5.18"), acknowledgement(frames, ROOM), acknowledgement(frames, ROOM))
        assert shakes_hands(served, family)
        assert list(served.manager.decode_kv_args_table) == [SESSIONS[family]]
