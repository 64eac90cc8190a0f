"""What the plugin makes of a function that it finds at a hook point, and of points in each other's place."""

from sglang_hooks.compat import FOUND, is_complete, judge, verdict_on
from sglang_hooks.hook_points import HOOK_POINTS, HookPoint

NO_NAMES = frozenset[str]()


def all_found() -> dict[str, str]:
    return {point.name: FOUND for point in HOOK_POINTS}


def test_parameters_may_follow_but_not_differ() -> None:
    point = HookPoint("one", "sglang.one", ("self", "req"))

    assert verdict_on(point, ("self", "req", "more"), NO_NAMES) == FOUND
    assert "expected to begin with (self, req)" in verdict_on(point, ("self", "batch"), NO_NAMES)


def test_a_body_that_does_more_than_its_hook_knows_is_refused_by_name() -> None:
    point = HookPoint("one", "sglang.one", ("self",), known=frozenset({"abort", "release"}))

    assert verdict_on(point, ("self",), frozenset({"abort"})) == FOUND
    assert "uses migrate, " in verdict_on(point, ("self",), frozenset({"abort", "migrate"}))


def test_a_name_that_must_not_be_used_is_refused() -> None:
    point = HookPoint("one", "sglang.one", ("self",), without="_retire")

    assert verdict_on(point, ("self",), frozenset({"send"})) == FOUND
    assert verdict_on(point, ("self",), frozenset({"send", "_retire"})) == "sglang.one uses _retire"


def test_of_points_with_one_purpose_one_is_enough_and_none_is_not() -> None:
    verdicts = all_found() | {"worker_status": "it is missing"}
    assert "worker_status" not in judge(verdicts)

    verdicts |= {"status_message": "it is missing"}
    judged = judge(verdicts)
    assert judged["worker_status"] == judged["status_message"] == "it is missing"


def test_a_point_without_another_in_its_place_stays_missing() -> None:
    assert judge(all_found() | {"queue_put": "it is missing"})["queue_put"] == "it is missing"


def test_what_is_optional_may_be_missing_and_is_named() -> None:
    verdicts = all_found() | {"send_multipart": "it is missing"}

    assert is_complete(verdicts)
    assert not is_complete(verdicts | {"abort_request": "it is missing"})
    assert judge(verdicts)["send_multipart"] == "it is missing"
