"""Whether this sglang has what the plugin hooks and calls.

Detected by what is there, never by a version string. If something needed is missing, takes other parameters, or does
more than its hook knows of, the plugin stands down as a whole: half a set of hooks could free pages under a writer.
"""

import inspect
import multiprocessing
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_hooks.hook_points import HOOK_POINTS, PREFILL, SCHEDULER, HookPoint

FOUND = "found"

ENGINE_PARTS = {
    "prepare_abort": "sglang.srt.disaggregation.utils.prepare_abort",
    "finish_abort": "sglang.srt.managers.schedule_batch.FINISH_ABORT",
    "version": "sglang.__version__",
    "clear_pending_chunk_send": f"{PREFILL}.clear_pending_chunk_send",
}

NEWER_PARTS = {
    "release_aborted": f"{SCHEDULER}._release_aborted_request",
    "collect_running": f"{SCHEDULER}.collect_inflight_reqs",
}
"""Not in every supported sglang. The hooks go another way without them."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What hook bodies call or compare with, resolved once.

    `release_aborted` (from 0.5.20): the inflight queue's own failure path lets the caches forget a request.
    `collect_running` (from 0.5.19): the requests of the batches that an abort looks into.
    """

    prepare_abort: Callable[..., None]
    finish_abort: type
    version: str
    clear_pending_chunk_send: Callable[[Any, Any], None]
    release_aborted: Callable[..., None] | None = None
    collect_running: Callable[[Any], Iterable[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """`verdicts` by the name of the hook point or part: "found", or what is wrong. A point in whose place this sglang
    has another one is not among them."""

    verdicts: dict[str, str]
    parts: EngineParts | None

    @property
    def missing(self) -> dict[str, str]:
        return {name: verdict for name, verdict in self.verdicts.items() if verdict != FOUND}

    def has(self, name: str) -> bool:
        return self.verdicts.get(name) == FOUND


def survey() -> Findings:
    """Looks at the installed sglang. Imports the modules of all hook points."""
    is_main = multiprocessing.parent_process() is None
    verdicts = judge({point.name: verdict_of(point) for point in HOOK_POINTS if is_main or not point.of_main})
    parts: dict[str, Any] = {name: _resolve(target) for name, target in ENGINE_PARTS.items()}
    verdicts |= {
        name: FOUND if parts[name] is not None else f"{target} is missing" for name, target in ENGINE_PARTS.items()
    }
    parts |= {name: _resolve(target) for name, target in NEWER_PARTS.items()}
    return Findings(verdicts, EngineParts(**parts) if is_complete(verdicts) else None)


def is_complete(verdicts: Mapping[str, str]) -> bool:
    """Whether there is all that the plugin cannot do without."""
    optional = {point.name for point in HOOK_POINTS if point.optional}
    return all(verdict == FOUND for name, verdict in verdicts.items() if name not in optional)


def judge(verdicts: Mapping[str, str]) -> dict[str, str]:
    """Without what is missing but has another point in its place."""
    points = [point for point in HOOK_POINTS if point.name in verdicts]
    served = {point.serves for point in points if verdicts[point.name] == FOUND}
    return {
        point.name: verdicts[point.name]
        for point in points
        if verdicts[point.name] == FOUND or point.serves not in served
    }


def verdict_of(point: HookPoint) -> str:
    function = _resolve(point.target)
    if function is None:
        return f"{point.target} is missing"
    if not callable(function):
        return f"{point.target} is not callable"
    return verdict_on(point, tuple(inspect.signature(function).parameters), _names_used(function))


def _names_used(function: Callable[..., Any]) -> frozenset[str]:
    """Globals and attributes that the body mentions."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return frozenset() if code is None else frozenset(code.co_names)


def verdict_on(point: HookPoint, parameters: tuple[str, ...], used: frozenset[str]) -> str:
    """Pure: a function with these parameters, whose body mentions these names, stands at the point's target."""
    if parameters[: len(point.parameters)] != point.parameters:
        return f"{point.target} takes ({', '.join(parameters)}), expected to begin with ({', '.join(point.parameters)})"
    if point.without in used:
        return f"{point.target} uses {point.without}"
    if point.known and not used <= point.known:
        return f"{point.target} uses {', '.join(sorted(used - point.known))}, which its hook does not know"
    return FOUND


def _resolve(target: str) -> Any:
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return None
