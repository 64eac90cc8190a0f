"""`config`: which settings would be used, and where each comes from."""

import json
from pathlib import Path

import pytest

from sidecar.config import Config, default_socket
from tests.shell.command import Command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "settings.toml"
    written.write_text('log_level = "debug"\ngrace_s = 2\nadmin = "off"\nsocket = "/run/from-file.sock"\n')
    return written


def test_defaults_are_those_of_the_service(command: Command) -> None:
    code, out, _ = command("config", "--json")
    shown = json.loads(out)

    assert code == 0
    assert list(Config.__struct_fields__) == list(shown)
    assert {row["origin"] for row in shown.values()} == {"default"}
    assert shown["socket"]["value"] == str(default_socket())
    defaults = Config(socket=default_socket())
    for name in ("log_level", "record_limit", "settle_after_s", "idle_exit_s", "idle_close_s", "grace_s", "scheduling"):
        assert getattr(defaults, name) == shown[name]["value"]


def test_flag_wins_over_environment_and_that_over_the_file(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PD_SIDECAR_CONFIG", str(file))
    monkeypatch.setenv("PD_SIDECAR_ADMIN", "[::1]:9000")
    monkeypatch.setenv("PD_SIDECAR_GRACE_S", "3")
    shown = json.loads(command("config", "--json", "--grace-s", "4")[1])
    found = {name: (row["value"], row["origin"]) for name, row in shown.items() if row["origin"] != "default"}

    assert found == {
        "grace_s": (4.0, "flag"),
        "admin": ("[::1]:9000", "environment"),
        "log_level": ("debug", "file"),
        "socket": ("/run/from-file.sock", "file"),
    }


@pytest.mark.parametrize("origin", ["flag", "environment", "file"])
def test_the_decode_version_can_be_said_in_each_way(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    arguments: tuple[str, ...] = ()
    if origin == "flag":
        arguments = ("--decode-sglang", "0.5.20")
    elif origin == "environment":
        monkeypatch.setenv("PD_SIDECAR_DECODE_SGLANG", "0.5.20")
    else:
        file.write_text('decode_sglang = "0.5.20"')
        arguments = ("--config", str(file))
    row = json.loads(command("config", "--json", *arguments)[1])["decode_sglang"]

    assert (row["value"], row["origin"], row["reloads"]) == ("0.5.20", origin, True)


def test_for_people_it_is_one_line_for_each_setting(command: Command) -> None:
    _, out, _ = command("config", "--socket", "/run/s.sock", "--record-limit", "7")
    rows = {line.split()[0]: line.split()[1:3] for line in out.splitlines()}
    changed_by = {line.split()[0]: line.split()[3] for line in out.splitlines()}

    assert (changed_by["record_limit"], changed_by["socket"]) == ("SIGHUP", "restart")
    assert list(Config.__struct_fields__) == list(rows)
    assert rows["socket"] == ["/run/s.sock", "flag"]
    assert rows["socket_group"] == ["-", "default"]
    assert rows["record_limit"] == ["7", "flag"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grace = 1", "no setting is named grace; there are socket, "),
        ("= 1", "is not TOML"),
        ("grace_s = -1", "--grace-s -1.0 is out of range"),
        ("grace_s = 'soon'", "not a valid float"),
        ("[grace_s]\nx = 1", "grace_s is neither text nor a number"),
        ("record_limit = true", "record_limit is neither text nor a number"),
        ("record_limit = 1.5", "not a valid int"),
        ("decode_sglang = '0.5.17'", "--decode-sglang 0.5.17 is not known: use one of 0.5.18, 0.5.19, "),
        ("decode_sglang = ''", "--decode-sglang  is not known"),
    ],
)
def test_a_file_that_cannot_work_is_refused(command: Command, file: Path, text: str, said: str) -> None:
    file.write_text(text)
    code, out, err = command("config", "--config", str(file))

    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_file_that_cannot_be_read_is_named(command: Command, tmp_path: Path, name: str) -> None:
    code, _, err = command("config", "--config", str(tmp_path / name))

    assert code == 2
    assert "cannot be read" in err


def test_a_file_that_is_not_text_is_refused(command: Command, file: Path) -> None:
    file.write_bytes(b"\xff\xfe")

    assert "is not TOML" in command("config", "--config", str(file))[2]


def test_run_takes_what_config_shows(command: Command) -> None:
    """One list of flags for both."""
    run, config = command("run", "--help")[1], command("config", "--help")[1]
    flags = [word for word in config.split() if word.startswith("--") and word != "--json"]

    assert len(flags) >= len(Config.__struct_fields__)
    assert [flag for flag in flags if flag not in run] == []


def test_a_group_has_a_name_or_a_number(command: Command) -> None:
    def shown(*arguments: str) -> object:
        return json.loads(command("config", "--json", *arguments)[1])["socket_group"]["value"]

    assert [shown("--socket-group", "root"), shown("--socket-group", "4711"), shown()] == [0, 4711, None]


def test_a_group_that_this_host_has_not_is_named(command: Command) -> None:
    code, _, err = command("config", "--socket-group", "no-such-group")

    assert (code, "--socket-group no-such-group" in err) == (2, True)
