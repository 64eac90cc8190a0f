"""Which sglang the plugin serves, found by its own rules in each published wheel."""

import pytest

from sglang_hooks.compat import ENGINE_PARTS, FOUND, NEWER_PARTS, judge, verdict_on
from sglang_hooks.hook_points import HOOK_POINTS, HookPoint
from tests.drift.wheel import Wheel, wheel_of

SERVED = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
NOT_SERVED = ("0.5.16", "0.5.17")

ONLY_UP_TO_0_5_19 = {"worker_status", "result_is_sent"}
ONLY_FROM_0_5_20 = {"status_message", "result_is_retired"}


def verdicts(wheel: Wheel) -> dict[str, str]:
    return judge({point.name: _verdict(wheel, point) for point in HOOK_POINTS})


def _verdict(wheel: Wheel, point: HookPoint) -> str:
    function = wheel.function(point.target)
    if function is None:
        return f"{point.target} is missing"
    return verdict_on(point, function.parameters, function.used)


@pytest.mark.parametrize("version", SERVED)
def test_every_hook_point_fits(version: str) -> None:
    found = verdicts(wheel_of(version))
    assert not {name: verdict for name, verdict in found.items() if verdict != FOUND}
    others = ONLY_UP_TO_0_5_19 if version >= "0.5.20" else ONLY_FROM_0_5_20
    assert set(found) == {point.name for point in HOOK_POINTS} - others


@pytest.mark.parametrize("version", SERVED)
def test_every_part_that_the_hooks_call_is_there(version: str) -> None:
    wheel = wheel_of(version)
    wanted = {name: target for name, target in ENGINE_PARTS.items() if name != "version"}
    assert not [name for name, target in wanted.items() if wheel.find(target) is None]
    newer = {name for name, target in NEWER_PARTS.items() if wheel.find(target) is not None}
    expected = {"0.5.18": set[str](), "0.5.19": {"collect_running"}}
    assert newer == expected.get(version, {"collect_running", "release_aborted"})


@pytest.mark.parametrize("version", NOT_SERVED)
def test_an_older_sglang_is_left_alone(version: str) -> None:
    wheel = wheel_of(version)
    no_parts = [name for name, target in ENGINE_PARTS.items() if name != "version" and wheel.find(target) is None]
    assert no_parts or any(verdict != FOUND for verdict in verdicts(wheel).values())
