"""What a server answered, as a value."""

import json
import time
from dataclasses import dataclass
from typing import Any

from tests.pair.side import Role

LOST = 0
"""Status of a request whose connection ended without an answer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Times are CLOCK_MONOTONIC seconds, as the shim's events have them. `error` is empty for an answer with text."""

    role: Role
    rid: str
    room: int
    status: int
    text: str = ""
    output_ids: tuple[int, ...] = ()
    finish_reason: dict[str, Any] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""
    sent_at: float
    answered_at: float

    @property
    def took_s(self) -> float:
        return self.answered_at - self.sent_at

    @property
    def finish_type(self) -> str:
        return str((self.finish_reason or {}).get("type", ""))

    @property
    def is_good(self) -> bool:
        return self.status == 200 and self.finish_type != "abort"


def lost_answer(role: Role, rid: str, room: int, error: str, sent_at: float) -> Answer:
    now = time.monotonic()
    return Answer(role=role, rid=rid, room=room, status=LOST, error=error, sent_at=sent_at, answered_at=now)


def answer_of(role: Role, rid: str, room: int, status: int, body: bytes, sent_at: float) -> Answer:
    answered_at = time.monotonic()
    fields = _fields(body)
    return Answer(role=role, rid=rid, room=room, status=status, sent_at=sent_at, answered_at=answered_at, **fields)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {"error": body.decode(errors="replace")}
    if not isinstance(parsed, dict) or "meta_info" not in parsed:
        return {"error": _reason(parsed)}
    meta = parsed["meta_info"]
    return {
        "text": parsed.get("text", ""),
        "output_ids": tuple(parsed.get("output_ids") or ()),
        "finish_reason": meta.get("finish_reason"),
        "prompt_tokens": meta.get("prompt_tokens", 0),
        "cached_tokens": meta.get("cached_tokens", 0),
    }


def _reason(parsed: Any) -> str:
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    message = error.get("message", error) if isinstance(error, dict) else error
    return message if isinstance(message, str) else json.dumps(message)
