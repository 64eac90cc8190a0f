import pytest

from sglang_hooks.settings import default_socket, read_settings
from sidecar.errors import ConfigError


def test_defaults() -> None:
    settings = read_settings({})

    assert not settings.disabled
    assert settings.embedded
    assert default_socket() == settings.socket
    assert settings.record_ttl_s == 300.0
    assert settings.drain_timeout_s == 30.0


@pytest.mark.parametrize(
    ("environ", "ttl_s"),
    [
        ({"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "600"}, 600.0),
        ({"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "700", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "600"}, 700.0),
        ({"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "15"}, 300.0),
    ],
)
def test_records_live_as_long_as_anybody_waits(environ: dict[str, str], ttl_s: float) -> None:
    assert ttl_s == read_settings(environ).record_ttl_s


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_one_variable_switches_all_off(text: str) -> None:
    assert read_settings({"PD_SIDECAR_DISABLE": text}).disabled


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PD_SIDECAR_DISABLE", "maybe"),
        ("PD_SIDECAR_DRAIN_TIMEOUT", "soon"),
        ("PD_SIDECAR_DRAIN_TIMEOUT", "-1"),
        ("PD_SIDECAR_IDLE_EXIT_S", "inf"),
        ("PD_SIDECAR_PUSH", "some"),
    ],
)
def test_a_setting_that_cannot_work_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_settings({name: text})


def test_the_decode_half_can_be_left_out() -> None:
    assert read_settings({}).decode_half
    assert not read_settings({"PD_SIDECAR_DECODE_HALF": "0"}).decode_half


def test_stock_pushes_its_own_statuses_unless_asked_otherwise() -> None:
    assert read_settings({}).push == "notices"
    assert read_settings({"PD_SIDECAR_PUSH": " ALL"}).push == "all"
