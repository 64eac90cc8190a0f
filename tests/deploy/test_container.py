"""The Dockerfiles, as text: lint, what runs and as whom, and that names agree with the code."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sidecar.config import Config
from tests.deploy.dockerfile import Stage, read_dockerfile
from tests.pair.paths import REPO

FOLDER = REPO / "deploy" / "container"
SIDECAR, ENGINE = FOLDER / "Dockerfile", FOLDER / "Dockerfile.engine"
TOOLS = Path(sys.executable).parent


@pytest.fixture
def image() -> Stage:
    return read_dockerfile(SIDECAR)[-1]


def project() -> dict[str, object]:
    found = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert isinstance(found, dict)
    return found


def test_lint() -> None:
    ended = subprocess.run(
        [TOOLS / "hadolint", SIDECAR, ENGINE], capture_output=True, text=True, check=False, timeout=60
    )

    assert (ended.returncode, ended.stdout) == (0, "")


def test_what_runs_is_the_keeper_and_no_shell(image: Stage) -> None:
    assert image.listed("ENTRYPOINT") == ["/opt/pd-sidecar/bin/pd-sidecar"]
    assert image.listed("CMD") == ["run", "--keep"]


def test_it_runs_as_a_user_that_kubelet_can_tell_is_not_root(image: Stage) -> None:
    """By number: `runAsNonRoot` cannot check a name."""
    uid, gid = image.last("USER").split(":")

    assert int(uid) > 0
    assert int(gid) > 0
    assert image.steps[-1][0] != "RUN"


def test_its_port_is_that_of_the_service(image: Stage) -> None:
    assert Config.__struct_defaults__
    admin = Config(socket=Path("/s")).admin

    assert admin is not None
    assert image.last("EXPOSE") == str(admin[1])


def test_the_socket_lies_below_a_folder_that_may_be_anybodys(image: Stage) -> None:
    """An emptyDir is root's: the sidecar makes a folder of its own in it."""
    assert Path(image.environment["PD_SIDECAR_SOCKET"]).parent.parent == Path("/run/pd-sidecar")


def test_the_build_takes_from_the_repository_what_the_wheel_needs() -> None:
    build = read_dockerfile(SIDECAR)[0]
    taken = [word for argument in build.all("COPY") for word in argument.split()[:-1]]
    admitted = (FOLDER / "Dockerfile.dockerignore").read_text().split()

    assert all((REPO / name).exists() for name in taken)
    assert {f"!{name}" for name in taken} == {line for line in admitted if line.startswith("!")}


def test_there_is_no_torch_in_it() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)

    assert not [name for name in extras["service"] if name.startswith(("torch", "sglang"))]


def test_the_engine_image_takes_the_wheel_of_this_version() -> None:
    sidecar, engine = read_dockerfile(ENGINE)

    assert sidecar.base == f"pd-sidecar:{project()['version']}"
    assert engine.environment == {"PD_SIDECAR_EMBEDDED": "0"}
    assert "--no-deps" in engine.last("RUN")
