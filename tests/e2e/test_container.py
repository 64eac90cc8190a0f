"""The stages of the Dockerfiles, command by command, and the container that comes of them."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.dockerfile import CONTAINER_ENV, in_root, read_dockerfile, script_of
from tests.deploy.manifests import container, prefill_templates, variables
from tests.deploy.system import ensure
from tests.deploy.test_container import ENGINE, SIDECAR
from tests.pair.paths import REPO

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make roots")

LIMIT_S = 600.0

SERVED = """
ip link set lo up
mount -t tmpfs -o mode=0777 tmpfs {image}/run/pd-sidecar
mount -o remount,bind,ro {image}
{start} & keeper=$!
{ask}
kill -TERM $keeper
wait $keeper && code=0 || code=$?
echo exit $code
"""
"""In the environment of the manifest, with an emptyDir as kubelet makes it, on a root that nobody can write to."""

READY = """
import os, socket, sys, time, urllib.request
end = time.monotonic() + 60
while True:
    try:
        with urllib.request.urlopen("http://127.0.0.1:9464/readyz", timeout=5) as answer:
            break
    except OSError:
        if time.monotonic() > end: raise
        time.sleep(0.05)
found = os.stat(os.environ["PD_SIDECAR_SOCKET"])
print("ready", answer.status, found.st_uid, oct(found.st_mode))
"""

CONTENT = """
import importlib.metadata as metadata, importlib.util as util
print("version", metadata.version("pd-sidecar"))
print("torch", util.find_spec("torch") is not None, util.find_spec("pip") is not None)
"""

PLUGIN = """
from importlib.metadata import entry_points
point, = entry_points(group="sglang.srt.plugins")
print("plugin", point.name, callable(point.load()))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all of it printed: played once."""
    ensure("ip", package="iproute2")
    top = tmp_path_factory.mktemp("top")
    build, image = read_dockerfile(SIDECAR)
    sidecar, engine = read_dockerfile(ENGINE)
    image.name, engine.name = sidecar.name, "engine"
    python = Path(sys.base_prefix)
    lines = [f"mount -t tmpfs tmpfs {top}"]
    lines += script_of([build, image, engine], top=top, context=REPO, python=python)
    lines += _checks(top, image.listed("ENTRYPOINT") + image.listed("CMD"), image.environment, image.last("USER"))
    script = "set -eu\n" + "\n".join(lines)
    ended = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _checks(top: Path, command: list[str], own: dict[str, str], user: str) -> Iterator[str]:
    manifest = variables(container(prefill_templates("deployment")[0], "pd-sidecar"))
    image, environ = top / "sidecar", CONTAINER_ENV | own
    python = "/opt/pd-sidecar/bin/python"
    yield in_root(image, [python, "-c", CONTENT], environ=environ, user=user)
    yield in_root(top / "engine", ["python3", "-c", PLUGIN], environ=CONTAINER_ENV)
    yield f"mkdir {top}/engine/plugin && cp -r {image}/opt/pd-sidecar-plugin/. {top}/engine/plugin"
    yield in_root(
        top / "engine", ["python3", "-m", "pip", "uninstall", "-q", "-y", "pd-sidecar"], environ=CONTAINER_ENV
    )
    yield in_root(top / "engine", ["python3", "-c", PLUGIN], environ=CONTAINER_ENV | {"PYTHONPATH": "/plugin"})
    environ |= {name: value.replace("$(POD_IP)", "127.0.0.1") for name, value in manifest.items()}
    start = in_root(image, command, environ=environ, user=user)
    ask = in_root(image, [python, "-c", READY], environ=environ, user=user)
    yield f"unshare --net sh -euc {shlex.quote(SERVED.format(image=image, start=start, ask=ask))}"


def test_the_image_has_this_version_and_neither_torch_nor_pip(said: str) -> None:
    assert "version 0.1.0\ntorch False False\n" in said


def test_the_plugin_is_found_installed_and_beside_python_path(said: str) -> None:
    assert said.count("plugin pd_sidecar True\n") == 2


def test_the_container_serves_on_a_read_only_root_and_ends_by_sigterm(said: str) -> None:
    assert "ready 200 65532 0o140660\n" in said
    assert said.endswith("exit 0\n")


def test_the_commands_are_those_of_the_file() -> None:
    """No step is of a kind that the player leaves out."""
    played = {"RUN", "COPY", "WORKDIR", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    steps = {name for path in (SIDECAR, ENGINE) for stage in read_dockerfile(path) for name, _ in stage.steps}

    assert steps <= played
