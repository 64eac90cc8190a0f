"""What may come in."""

import msgspec
import pytest

from sidecar.core.admission import PLAUSIBLE, is_address, unwelcome
from sidecar.model import (
    DecodeAborted,
    DecodeEndpoint,
    DecodeHandshake,
    DecodeRegistered,
    Fact,
    Goodbye,
    RoomConcluded,
    RoomOpened,
    TerminalStatus,
)
from tests.core.scene import E1, hello

FAILED = TerminalStatus.FAILED
NOWHERE = DecodeEndpoint("127.0.0.1", 0)
LONG = "x" * 5000


def test_a_real_hello_is_welcome() -> None:
    assert unwelcome(hello()) is None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("protocol", 2, "upgrade the older one"),
        ("process", "", "process name"),
        ("process", LONG, "process name"),
        ("record_ttl_s", 0.0, "record_ttl_s"),
        ("record_ttl_s", float("nan"), "record_ttl_s"),
        ("record_ttl_s", float("inf"), "record_ttl_s"),
        ("prefill_rank", -1, "prefill_rank"),
    ],
)
def test_the_refusal_names_what_was_wrong(field: str, value: object, said: str) -> None:
    changed = msgspec.structs.replace(hello(), **{field: value})

    assert said in str(unwelcome(changed))


@pytest.mark.parametrize(
    "fact",
    [
        RoomOpened(-1, 1, 1),
        RoomOpened(1, -1, 1),
        RoomOpened(1, 2**63, 1),
        RoomOpened(1, 1, -1),
        RoomOpened(1, 1, 1, "x" * 257),
        DecodeHandshake(1, 1, 1, NOWHERE, "s"),
        DecodeHandshake(1, 1, 1, E1, LONG),
        RoomConcluded(1, -1, 1, FAILED, "", True, 1.0),
        RoomConcluded(1, 1, 1, FAILED, LONG, True, 1.0),
        DecodeAborted(1, 1, 1, NOWHERE),
        DecodeAborted(-1, 1, 1, E1),
        DecodeRegistered(1, NOWHERE, "s", 20),
        DecodeRegistered(1, E1, LONG, 20),
        DecodeRegistered(-1, E1, "s", 20),
        DecodeRegistered(1, E1, "s", 20, LONG),
        Goodbye(-1),
    ],
)
def test_nonsense_is_implausible(fact: Fact) -> None:
    assert PLAUSIBLE[type(fact)]([fact]) == []


@pytest.mark.parametrize(
    "fact",
    [
        RoomOpened(0, 0, 0),
        DecodeHandshake(1, 2**63 - 1, 1, E1, "s"),
        RoomConcluded(1, 1, 1, FAILED, "cause", False, 1.0),
        DecodeAborted(1, 1, 1, E1),
        DecodeRegistered(1, E1, "s", 20),
        DecodeRegistered(1, E1, "s", 20, "0.5.18"),
        Goodbye(1),
    ],
)
def test_real_facts_are_plausible(fact: Fact) -> None:
    assert PLAUSIBLE[type(fact)]([fact]) == [fact]


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "[fe80::1%eth0]", "decode-0.pod.svc"])
def test_addresses_and_names_pass(host: str) -> None:
    assert is_address(DecodeEndpoint(host, 7001))


@pytest.mark.parametrize("host", ["", "a b", "10.0.0.1;tcp://x", "x/y", "é", "x" * 300, "*"])
def test_what_libzmq_would_read_otherwise_does_not(host: str) -> None:
    assert not is_address(DecodeEndpoint(host, 7001))
