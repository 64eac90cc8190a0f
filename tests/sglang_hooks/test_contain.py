import logging

import pytest

from sglang_hooks.contain import FAULTS, contained


def test_a_fault_is_answered_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    @contained(otherwise=-1)
    def breaks(number: int) -> int:
        return 1 // number

    before = FAULTS.total()
    with caplog.at_level(logging.ERROR, "pd_sidecar"):
        assert breaks(0) == -1
        assert breaks(0) == -1

    assert FAULTS.total() - before == 2
    assert len(caplog.records) == 1
    assert "ZeroDivisionError" in caplog.text


def test_what_does_not_break_passes_through() -> None:
    @contained(otherwise=-1)
    def works(number: int) -> int:
        return number

    assert works(5) == 5


def test_the_end_of_the_process_is_not_held_up() -> None:
    @contained(otherwise=None)
    def leaves() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        leaves()
