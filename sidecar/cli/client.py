"""What the admin address of a running sidecar says, read and checked."""

import http.client
from typing import TypeVar

import msgspec
from msgspec import Struct

from sidecar.config import parse_admin
from sidecar.errors import ConfigError, SidecarError

ANSWER_LIMIT_S = 5.0
ANSWER_LIMIT_BYTES = 16 * 1024 * 1024

Document = TypeVar("Document")


class NoAnswerError(SidecarError):
    """Nobody answers at the admin address, or somebody else does."""


class RankView(Struct, frozen=True):
    engine: str
    prefill_rank: int
    tp_rank: int
    pp_rank: int
    dp_rank: int
    pid: int
    sglang: str
    backend: str
    hooks: dict[str, str]
    role: str = "prefill"
    uncovered: tuple[str, ...] = ()


class RoomsView(Struct, frozen=True):
    open: int
    records: int
    tombstones: int


class OwedView(Struct, frozen=True):
    total: int
    pending: int
    oldest_age_s: float | None


class EndpointView(Struct, frozen=True):
    host: str
    port: int
    connection: str
    pending: int
    handed_off: int
    refusals_in_a_row: int
    retry_in_s: float | None
    takes: str
    holds_pages: bool
    believed_by: str
    is_in_doubt: bool


class BoundsView(Struct, frozen=True):
    descriptors: int
    connections: int
    streams: int
    records: int
    settle_after_s: float
    idle_close_s: float


class StatusView(Struct, frozen=True):
    version: str
    epoch: str
    bounds: BoundsView
    ranks: list[RankView]
    rooms: RoomsView
    owed: OwedView
    endpoints: list[EndpointView]
    endpoints_left_out: int


class LifeEndpointView(Struct, frozen=True):
    host: str
    port: int
    notice: str
    form: str | None
    connection: str
    hand_offs: int
    refusals: int
    shook_hands_ago_s: float | None
    gave_up_ago_s: float | None
    first_hand_off_ago_s: float | None
    last_hand_off_ago_s: float | None
    last_refusal_ago_s: float | None
    expires_in_s: float | None
    in_words: str


class EventView(Struct, frozen=True):
    at: str
    ago_s: float
    endpoint: str | None
    event: str


class LifeView(Struct, frozen=True):
    process: str
    life: int
    engine: str | None
    prefill_rank: int | None
    state: str
    is_early: bool
    cause: str
    http_status: int | None
    ended_ago_s: float | None
    end_took_s: float | None
    forgotten_in_s: float | None
    owed: int
    endpoints: list[LifeEndpointView]
    events: list[EventView]


class TraceView(Struct, frozen=True):
    room: int
    at: str
    lives: list[LifeView]


class Admin:
    """Raises ConfigError for an address that cannot work."""

    def __init__(self, address: str) -> None:
        found = parse_admin(address)
        if found is None:
            raise ConfigError("--admin is off: a sidecar without an admin address cannot be asked")
        self._host, self._port = found
        self._address = address

    def get(self, path: str) -> bytes:
        """A JSON document. Raises NoAnswerError. No proxy is asked: the sidecar is on this host or beside it."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_LIMIT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read(ANSWER_LIMIT_BYTES)
            if answer.status == http.client.OK:
                msgspec.json.decode(body)
                return body
            reason = f"HTTP {answer.status} to {path}"
        except OSError as error:
            said = error.strerror or str(error) or type(error).__name__
            raise NoAnswerError(
                f"no answer from {self._address}: {said}. Does a sidecar run there? (--admin, PD_SIDECAR_ADMIN)"
            ) from error
        except (http.client.HTTPException, msgspec.DecodeError, RecursionError) as error:
            reason = type(error).__name__
        finally:
            connection.close()
        raise self._is_no_sidecar(reason)

    def read(self, body: bytes, kind: type[Document]) -> Document:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise self._is_no_sidecar(str(error)) from error

    def _is_no_sidecar(self, reason: str) -> NoAnswerError:
        return NoAnswerError(f"what answers at {self._address} is no pd-sidecar of this version: {reason}")
