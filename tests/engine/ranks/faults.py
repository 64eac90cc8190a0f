"""Guards of the plugin, each of which can be taken out of a rank's process, so that a test can show what it is there
for."""

from collections.abc import Callable
from typing import Any
from unittest import mock

from sglang_hooks.hooks.agreement import FAILED, SUCCESS, TRANSFERRING, WAITING_FOR_INPUT
from sglang_hooks.hooks.manager import rank_of
from sglang_hooks.hooks.parking import ParkingHooks
from sglang_hooks.hooks.sender import life_of

SCHEDULER = "sglang_hooks.hooks.scheduler"
SENDER = "sglang_hooks.hooks.sender"
AGREEMENT = "sglang_hooks.hooks.agreement"
MANAGER = "sglang_hooks.hooks.manager"
PARKING = "sglang_hooks.hooks.parking"
QUEUE = "sglang_hooks.hooks.queue"


def take_out(name: str) -> None:
    for target, value in FAULTS[name]().items():
        mock.patch(target, value).start()


Replacements = dict[str, Any]


def _is_done_while_it_writes() -> Replacements:
    return {"sglang_hooks.rank.Rank.is_quiet": lambda _rank, _life: True}


def _never_parks() -> Replacements:
    """A chunked request is aborted as stock does: pages and slot given back at once."""
    return {f"{PARKING}.ParkingHooks._park_chunked": lambda *_: False}


def _parks_only_what_it_still_writes() -> Replacements:
    """The rank's own drain decides about membership of the queue."""
    park = ParkingHooks._park_chunked  # noqa: SLF001 - the guard under test

    def park_undrained(hooks: Any, scheduler: Any, req: Any) -> bool:
        life = life_of(req.disagg_kv_sender)
        return life is not None and not life.is_drained and park(hooks, scheduler, req)

    return {f"{PARKING}.ParkingHooks._park_chunked": park_undrained}


def _sends_what_is_aborted() -> Replacements:
    return {f"{SCHEDULER}.SchedulerHooks._ends_here": lambda *_: False}


def _passes_a_failure_on() -> Replacements:
    """A failure met by one rank ends the request on every rank in that very round, as in stock."""
    return {f"{SCHEDULER}.SchedulerHooks._begin_failed": lambda *_: FAILED}


def _decides_alone() -> Replacements:
    """The rank's own state decides, not the minimum."""

    def settle(_hooks: Any, sender: Any, life: Any, reduced: int) -> int:
        if life is None or not life.ending:
            return reduced
        return FAILED if rank_of(sender.kv_mgr).is_quiet(life) else WAITING_FOR_INPUT  # type: ignore[union-attr]

    return {f"{SCHEDULER}.SchedulerHooks._settle": settle}


def _forgets_its_success() -> Replacements:
    def poll(poller: Any) -> int:
        return TRANSFERRING if poller.rank.is_quiet(poller.life) else WAITING_FOR_INPUT

    return {f"{AGREEMENT}.EndingPoller.poll": poll}


def _forgets_the_verdict() -> Replacements:
    def settle_verdict(_life: Any, reduced: int) -> int:
        return {SUCCESS: SUCCESS, TRANSFERRING: FAILED}.get(reduced, WAITING_FOR_INPUT)

    return {f"{SCHEDULER}.settle_verdict": settle_verdict}


def _lets_late_handshakes_in() -> Replacements:
    return {f"{MANAGER}.ControlMessages._keep_back": lambda *_: False}


def _takes_old_chunks() -> Replacements:
    return {f"{QUEUE}.ChunkCount._is_of_an_old_life": lambda _count: False}


def _reports_for_the_new_life() -> Replacements:
    return {
        f"{MANAGER}._older_life_in_hand": lambda _rank, _room: None,
        f"{MANAGER}.is_not_for_decode": lambda *_, **__: False,
    }


def _tells_a_failure_at_once() -> Replacements:
    return {f"{MANAGER}.is_not_for_decode": lambda *_, **__: False}


def _finds_lives_by_room() -> Replacements:
    """Records and drains belong to the room, not to the request."""

    def life_of_room(sender: Any) -> Any:
        rank = rank_of(sender.kv_mgr)
        return rank.table.find_open(sender.bootstrap_room) if rank is not None else None

    return {f"{SCHEDULER}.life_of": life_of_room, f"{SENDER}.life_of": life_of_room, f"{PARKING}.life_of": life_of_room}


FAULTS: dict[str, Callable[[], Replacements]] = {
    "is done while it writes": _is_done_while_it_writes,
    "never parks": _never_parks,
    "parks only what it still writes": _parks_only_what_it_still_writes,
    "sends what is aborted": _sends_what_is_aborted,
    "passes a failure on": _passes_a_failure_on,
    "decides alone": _decides_alone,
    "forgets its success": _forgets_its_success,
    "forgets the verdict": _forgets_the_verdict,
    "lets late handshakes in": _lets_late_handshakes_in,
    "finds lives by room": _finds_lives_by_room,
    "takes old chunks": _takes_old_chunks,
    "reports for the new life": _reports_for_the_new_life,
    "tells a failure at once": _tells_a_failure_at_once,
}
