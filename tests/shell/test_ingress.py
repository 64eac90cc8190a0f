"""IngressServer: one bad client costs only itself."""

import msgspec
import pytest

from sidecar.model import PROTOCOL, Accepted, Goodbye, Refusal, RoomOpened
from sidecar.shell import stream
from sidecar.shell.credentials import Credentials
from sidecar.shell.ingress import IngressServer
from sidecar.wire.ingress import FRAME_LIMIT_BYTES, encode
from tests.shell.scene import Rank, Service, decode, hello, ranks


async def test_facts_are_acknowledged(service: Service) -> None:
    async with ranks(service.path, "p") as [rank]:
        rank.opened(1)

        assert await rank.hear(Accepted) == Accepted(1)


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n\r\n", (FRAME_LIMIT_BYTES + 1).to_bytes(4, "big"), b"\0\0\0\1\xc1"],
    ids=["http", "oversized", "no_message"],
)
async def test_junk_ends_its_own_stream_and_no_other(service: Service, junk: bytes) -> None:
    with decode() as waiting:
        async with ranks(service.path, "p", "q") as [good, bad]:
            good.handshake(1, waiting.endpoint)
            bad.say_raw(junk)
            last = (await bad.hear_end())[-1]
            good.failed(1)

            assert isinstance(last, Refusal)
            assert await waiting.told() == [b"1", b"0", b"0"]
            assert service.ingress.junk == {"malformed": 1}


async def test_facts_before_the_junk_count(service: Service) -> None:
    rank = await Rank.join(service.path)
    rank.say_raw(encode(RoomOpened(1, 1, 1)) + b"\0\0\0\1\xc1")

    assert Accepted(1) in await rank.hear_end()
    assert service.notifier.stats.facts["RoomOpened"] == 1
    await rank.leave()


async def test_a_frame_may_come_byte_by_byte(service: Service) -> None:
    async with ranks(service.path, "p") as [rank]:
        for byte in encode(RoomOpened(1, 1, 1)):
            rank.say_raw(bytes([byte]))

        assert await rank.hear(Accepted) == Accepted(1)


async def test_another_protocol_is_refused_by_name(service: Service) -> None:
    rank = await Rank.connect(service.path)
    rank.say(msgspec.structs.replace(hello(), protocol=PROTOCOL + 1))

    assert isinstance((await rank.hear_end())[-1], Refusal)
    await rank.leave()
    assert service.notifier.stats.refused_streams == {"protocol": 1}


async def test_an_orderly_end_is_no_loss(service: Service) -> None:
    rank = await Rank.join(service.path)
    rank.say(Goodbye(rank.next_seq()))
    await rank.leave()
    await service.until(lambda: len(service.ingress) == 0)

    assert service.notifier.stats.ranks_lost == 0


async def test_a_broken_stream_is_a_loss(service: Service) -> None:
    rank = await Rank.join(service.path)
    rank.opened(1)
    await rank.accepted()
    await rank.leave()
    await service.until(lambda: service.notifier.stats.ranks_lost == 1)


async def test_a_stream_that_ends_with_nothing_open_is_no_loss(service: Service) -> None:
    rank = await Rank.join(service.path)
    await rank.leave()
    await service.until(lambda: service.notifier.stats.ranks_left == 1)

    assert service.notifier.stats.ranks_lost == 0


async def test_a_client_that_says_nothing_is_sent_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HELLO_LIMIT_S", 0.01)
    rank = await Rank.connect(service.path)

    assert await rank.hear_end() == []
    assert service.ingress.junk == {"no_hello": 1}
    await rank.leave()


async def test_a_client_that_never_reads_is_sent_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WRITE_BUFFER_LIMIT_BYTES", -1)
    rank = await Rank.join(service.path)
    rank.opened(1)
    await rank.hear_end()

    assert service.ingress.junk["slow_reader"] >= 1
    await rank.leave()


async def test_streams_are_bounded(service: Service) -> None:
    service.ingress._stream_limit = 1  # noqa: SLF001 - as the composition root would have said
    async with ranks(service.path, "p"):
        with pytest.raises((AssertionError, ConnectionError)):
            await Rank.join(service.path, hello("q"))

    assert service.ingress.junk == {"too_many_streams": 1}


async def test_a_client_that_floods_delays_no_other(service: Service) -> None:
    """Its facts are read a piece at a time, and everybody has a turn in between."""
    flood = 60_000
    with decode() as waiting:
        async with ranks(service.path, "p", "q") as [good, loud]:
            good.handshake(1, waiting.endpoint)
            await service.until(lambda: service.notifier.stats.endpoint_ups == 1)
            loud.say_raw(b"".join(encode(RoomOpened(number, number, number)) for number in range(1, flood + 1)))
            good.failed(1)
            await waiting.told()

            assert service.notifier.stats.facts["RoomOpened"] < flood


class Listener:
    def receive(self, stream: int, message: object) -> None: ...

    def pump(self) -> None: ...

    def stream_closed(self, stream: int) -> None: ...

    def process_died(self, stream: int) -> None: ...


@pytest.mark.parametrize(
    ("uid", "groups", "is_admitted"),
    [(1000, {1000}, True), (0, {0}, True), (1001, {1001, 0}, False), (1001, {77}, True), (1001, {1001, 77}, True)],
    ids=["own_user", "root", "other_user", "admitted_group", "admitted_supplementary_group"],
)
async def test_only_our_user_root_and_the_group_are_served(uid: int, groups: set[int], is_admitted: bool) -> None:
    server = IngressServer(Listener(), uid=1000, group=77)
    who = Credentials(1, uid, frozenset(groups))

    assert (server.admit(object(), who) is not None) is is_admitted  # type: ignore[arg-type]
    assert server.junk["foreign_user"] == (not is_admitted)
