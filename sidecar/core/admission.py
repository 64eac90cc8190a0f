"""What may come in. A stream's first word is judged here, and each fact: local senders have bugs, and decode's words
pass through them.
"""

import string
from collections.abc import Callable
from typing import Any, TypeVar

from sidecar.model import (
    PROTOCOL,
    ROOM_LIMIT,
    DecodeAborted,
    DecodeAcknowledged,
    DecodeEndpoint,
    DecodeHandshake,
    DecodeRegistered,
    Fact,
    Goodbye,
    Hello,
    ParcelGiven,
    RoomAnswered,
    RoomConcluded,
    RoomOpened,
    RoomQueried,
    RoomRefused,
)

NAME_LIMIT = 256
TEXT_LIMIT = 4096
TTL_LIMIT_S = 4e9
"""Public recipes set sglang's timeouts to 1e9 s."""

OfDecode = TypeVar("OfDecode", DecodeHandshake, DecodeAborted, DecodeAcknowledged)
OfTokenizer = TypeVar("OfTokenizer", RoomRefused, RoomAnswered)

_HOST_CHARACTERS = frozenset(string.ascii_letters + string.digits + ".:-_%[]")


def unwelcome(hello: Hello) -> str | None:
    """Why this stream is not served."""
    if hello.protocol != PROTOCOL:
        return f"this sidecar speaks protocol {PROTOCOL}, the hello says {hello.protocol}: upgrade the older one"
    if not 0 < len(hello.process) <= NAME_LIMIT:
        return f"the process name has {len(hello.process)} characters; 1 to {NAME_LIMIT} are allowed"
    if not 0.0 < hello.record_ttl_s <= TTL_LIMIT_S:
        return f"record_ttl_s is {hello.record_ttl_s}; above 0 and at most {TTL_LIMIT_S:.0f} is allowed"
    if not 0 <= hello.prefill_rank < 2**31:
        return f"prefill_rank is {hello.prefill_rank}; it counts from 0"
    return None


def is_address(endpoint: DecodeEndpoint) -> bool:
    """Whether it can be connected to at all; names are not looked up here."""
    is_host = 0 < len(endpoint.host) <= NAME_LIMIT and _HOST_CHARACTERS.issuperset(endpoint.host)
    return is_host and 0 < endpoint.port < 65_536


def _lives(facts: list[RoomOpened]) -> list[RoomOpened]:
    return [
        fact
        for fact in facts
        if fact.seq >= 0 and 0 <= fact.room < ROOM_LIMIT and fact.life >= 0 and len(fact.traceparent) <= NAME_LIMIT
    ]


def _conclusions(facts: list[RoomConcluded]) -> list[RoomConcluded]:
    return [
        fact
        for fact in facts
        if fact.seq >= 0 and 0 <= fact.room < ROOM_LIMIT and fact.life >= 0 and len(fact.cause) <= TEXT_LIMIT
    ]


def _words_of_decode(facts: list[OfDecode]) -> list[OfDecode]:
    return [
        fact
        for fact in facts
        if fact.seq >= 0 and 0 <= fact.room < ROOM_LIMIT and fact.life >= 0 and is_address(fact.endpoint)
    ]


def _handshakes(facts: list[DecodeHandshake]) -> list[DecodeHandshake]:
    return [fact for fact in _words_of_decode(facts) if len(fact.session) <= TEXT_LIMIT]


def _registrations(facts: list[DecodeRegistered]) -> list[DecodeRegistered]:
    return [
        fact
        for fact in facts
        if fact.seq >= 0
        and is_address(fact.endpoint)
        and len(fact.session) <= TEXT_LIMIT
        and len(fact.decode_half) <= NAME_LIMIT
    ]


def _goodbyes(facts: list[Goodbye]) -> list[Goodbye]:
    return [fact for fact in facts if fact.seq >= 0]


def _queries(facts: list[RoomQueried]) -> list[RoomQueried]:
    return [fact for fact in facts if fact.seq >= 0 and 0 <= fact.room < ROOM_LIMIT]


def _parcels(facts: list[ParcelGiven]) -> list[ParcelGiven]:
    """The rest is for `Parcels` to refuse: what is dropped here nobody would push."""
    return [fact for fact in facts if fact.seq >= 0]


def _words_of_tokenizers(facts: list[OfTokenizer]) -> list[OfTokenizer]:
    return [fact for fact in facts if fact.seq >= 0 and 0 <= fact.room < ROOM_LIMIT and len(fact.cause) <= TEXT_LIMIT]


PLAUSIBLE: dict[type[Fact], Callable[[list[Any]], list[Any]]] = {
    RoomOpened: _lives,
    DecodeHandshake: _handshakes,
    RoomConcluded: _conclusions,
    DecodeAborted: _words_of_decode,
    DecodeAcknowledged: _words_of_decode,
    DecodeRegistered: _registrations,
    Goodbye: _goodbyes,
    RoomRefused: _words_of_tokenizers,
    RoomQueried: _queries,
    RoomAnswered: _words_of_tokenizers,
    ParcelGiven: _parcels,
}
"""For each kind, those of some facts that an engine can have meant."""
