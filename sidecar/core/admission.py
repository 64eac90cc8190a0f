"""What may come in. A stream's first word is judged here, and each fact: local senders have bugs, and decode's words
pass through them.
"""

import string
from typing import assert_never

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
    RoomConcluded,
    RoomOpened,
)

NAME_LIMIT = 256
TEXT_LIMIT = 4096
TTL_LIMIT_S = 4e9
"""Public recipes set sglang's timeouts to 1e9 s."""

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


def implausible(fact: Fact) -> bool:
    """Whether no engine can have meant it."""
    match fact:
        case Goodbye():
            return fact.seq < 0
        case DecodeRegistered():
            return fact.seq < 0 or not is_address(fact.endpoint) or len(fact.session) > TEXT_LIMIT
        case DecodeHandshake():
            return not (_is_life(fact) and is_address(fact.endpoint) and len(fact.session) <= TEXT_LIMIT)
        case DecodeAborted() | DecodeAcknowledged():
            return not (_is_life(fact) and is_address(fact.endpoint))
        case RoomConcluded():
            return not _is_life(fact) or len(fact.cause) > TEXT_LIMIT
        case RoomOpened():
            return not _is_life(fact)
        case _:
            assert_never(fact)


def is_address(endpoint: DecodeEndpoint) -> bool:
    """Whether it can be connected to at all; names are not looked up here."""
    is_host = 0 < len(endpoint.host) <= NAME_LIMIT and _HOST_CHARACTERS.issuperset(endpoint.host)
    return is_host and 0 < endpoint.port < 65_536


def _is_life(fact: RoomOpened | DecodeHandshake | RoomConcluded | DecodeAborted | DecodeAcknowledged) -> bool:
    return fact.seq >= 0 and 0 <= fact.room < ROOM_LIMIT and fact.life >= 0
