"""`pd-sidecar doctor`, with an engine that is planted or missing."""

import importlib.util
import json
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_hooks import doctor as module
from sglang_hooks.compat import FOUND, Findings
from sglang_hooks.doctor import Finding, doctor, examine
from sglang_hooks.place import examine_place

Spec = Callable[[str], object | None]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for sockets."""
    made = Path(tempfile.mkdtemp(prefix="pds"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules that can be found."""
    names = {"uvloop", "zmq", "aiohttp", "click", "prometheus_client", "structlog"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in names else None)
    return names


@pytest.fixture
def engine(installed: set[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The verdicts of an installed sglang."""
    installed.add("sglang")
    verdicts = {"abort_request": FOUND, "queue_put": FOUND}
    monkeypatch.setattr(module, "survey", lambda: Findings(verdicts, None))
    return verdicts


def found(folder: Path, **environ: str) -> dict[str, Finding]:
    """By subject; of several, the last."""
    return {finding.subject: finding for finding in examine({"PD_SIDECAR_SOCKET": f"{folder}/run/s.sock"} | environ)}


def failures(findings: dict[str, Finding]) -> list[str]:
    return [subject for subject, finding in findings.items() if finding.level == "FAIL"]


@pytest.mark.usefixtures("engine")
def test_an_environment_that_works_has_no_failure(folder: Path) -> None:
    findings = found(folder)

    assert failures(findings) == []
    assert findings["hook abort_request"] == Finding("ok", "hook abort_request", FOUND)
    assert findings["plugin"].text == "sglang finds sglang_hooks:register"
    assert "nobody serves it, the first prefill rank" in findings[f"socket {folder}/run/s.sock"].text
    assert not (folder / "run").exists()


def test_a_missing_hook_point_fails_with_its_verdict(engine: dict[str, str], folder: Path) -> None:
    engine["queue_put"] = "sglang.FastQueue.put is missing"
    findings = found(folder)

    assert failures(findings) == ["hook queue_put", "hooks"]
    assert findings["hook queue_put"].text == "sglang.FastQueue.put is missing"
    assert findings["hooks"].text == "1 of 2 are not there: the plugin stands down as a whole"


@pytest.mark.usefixtures("installed")
def test_without_sglang_nothing_of_it_is_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "survey", lambda: pytest.fail("imported"))
    findings = found(folder)

    assert findings["sglang"].level == "warn"
    assert failures(findings) == []


@pytest.mark.usefixtures("engine")
def test_an_sglang_that_cannot_be_imported_fails_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision without its operators raises RuntimeError, no ImportError."""

    def survey() -> Findings:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(module, "survey", survey)

    assert found(folder)["sglang"].text == (
        "cannot be imported here: RuntimeError: operator torchvision::nms does not exist"
    )


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("environ", "subject", "level"),
    [
        ({"SGLANG_PLUGINS": "other, more"}, "SGLANG_PLUGINS", "FAIL"),
        ({"SGLANG_PLUGINS": "other, pd_sidecar"}, "SGLANG_PLUGINS", "ok"),
        ({"PD_SIDECAR_DISABLE": "1"}, "PD_SIDECAR_DISABLE", "warn"),
        ({"PD_SIDECAR_DISABLE": "perhaps"}, "settings", "FAIL"),
    ],
)
def test_what_keeps_the_plugin_out_is_told(folder: Path, environ: dict[str, str], subject: str, level: str) -> None:
    assert found(folder, **environ)[subject].level == level


@pytest.mark.usefixtures("engine")
def test_a_plugin_that_sglang_cannot_see_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "entry_points", lambda **_: ())

    assert failures(found(folder)) == ["plugin"]


@pytest.mark.parametrize(("environ", "level"), [({}, "FAIL"), ({"PD_SIDECAR_EMBEDDED": "0"}, "warn")])
def test_a_missing_module_matters_where_a_sidecar_is_to_be_started(
    folder: Path, installed: set[str], environ: dict[str, str], level: str
) -> None:
    installed.remove("structlog")

    assert found(folder, **environ)["module structlog"].level == level


def test_a_missing_module_matters_not_where_one_serves(folder: Path, installed: set[str]) -> None:
    installed.remove("structlog")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s.sock")
        server.listen()
        findings = found(folder, PD_SIDECAR_SOCKET=f"{folder}/s.sock")

    assert findings["module structlog"].level == "warn"
    assert findings[f"socket {folder}/s.sock"].text.startswith("served by pid ")


@pytest.mark.usefixtures("installed")
def test_nobody_serving_is_worth_a_word_when_no_rank_will_start_one(folder: Path) -> None:
    assert found(folder, PD_SIDECAR_EMBEDDED="0")[f"socket {folder}/run/s.sock"].level == "warn"


def test_a_socket_of_one_that_died_is_usable(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s.sock")
    place = examine_place(folder / "s.sock")

    assert (place.fault, place.served_by) == (None, None)


def test_places_that_cannot_be_used_say_why(folder: Path) -> None:
    (folder / "file").touch()
    folder.joinpath("open").mkdir()
    folder.joinpath("open").chmod(0o777)
    faults = {
        name: examine_place(path).fault or ""
        for name, path in {
            "relative": Path("s.sock"),
            "long": folder / ("x" * 108),
            "file": folder / "file",
            "below a file": folder / "file" / "run" / "s.sock",
            "open": folder / "open" / "s.sock",
        }.items()
    }

    assert faults["relative"].startswith("is relative")
    assert faults["long"].startswith("is longer than 107 bytes")
    assert faults["file"].startswith("exists and is no socket")
    assert faults["below a file"] == f"{folder}/file is no directory"
    assert "can be written by others" in faults["open"]


@pytest.mark.usefixtures("engine")
def test_what_is_not_covered_of_refusals_is_named(folder: Path) -> None:
    usual, rust = found(folder)["refusals"], found(folder, SGLANG_RUST_SERVER="1")["refusals"]

    assert (usual.level, rust.level) == ("ok", "warn")
    for name in ("--tokenizer-worker-num", "SGLANG_RUST_SERVER", "--node-rank", "follow_bootstrap_room"):
        assert name in usual.text


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("hard", "level"), [(1024, "warn"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")])
def test_few_descriptors_are_worth_a_word(folder: Path, monkeypatch: pytest.MonkeyPatch, hard: int, level: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))

    assert found(folder)["descriptors"].level == level


def test_the_exit_code_is_for_scripts(
    engine: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PD_SIDECAR_SOCKET", f"{folder}/s.sock")

    assert doctor([]) == 0
    assert "ok    hook queue_put: found\n" in capsys.readouterr().out
    engine["queue_put"] = "gone"
    assert doctor(["--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["is_fit"] is False
    assert {"level": "FAIL", "subject": "hook queue_put", "text": "gone"} in document["findings"]


def test_what_sglang_prints_on_import_stays_out_of_the_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def survey() -> Findings:
        sys.stdout.write("no CUDA here")
        return Findings({}, None)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(module, "survey", survey)
    monkeypatch.setenv("PD_SIDECAR_SOCKET", f"{folder}/s.sock")
    doctor(["--json"])

    assert json.loads(capsys.readouterr().out)["is_fit"]


@pytest.mark.parametrize("command", [("-m", "sidecar", "doctor"), ("-m", "sglang_hooks.doctor")])
def test_both_ways_to_call_it(command: tuple[str, ...]) -> None:
    """The second one is for environments without click."""
    ended = subprocess.run(
        [sys.executable, *command, "--json"], capture_output=True, text=True, timeout=20.0, check=False
    )

    assert "findings" in json.loads(ended.stdout)
    assert ended.returncode == (0 if json.loads(ended.stdout)["is_fit"] else 1)
