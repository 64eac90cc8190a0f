"""Debian packages and privileges that some of these checks need."""

import functools
import os
import shutil
import subprocess

import pytest

STEP_LIMIT_S = 300.0


def ensure(command: str, *, package: str) -> str:
    """Its path. Installed if we may; a test that needs it is skipped only where nobody can install it."""
    if (found := shutil.which(command)) is None and _install(package):
        found = shutil.which(command)
    if found is None:
        pytest.skip(f"no {command}: install the system package {package}")
    return found


@functools.cache
def _install(package: str) -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "--no-install-recommends", package]):
        subprocess.run(
            ["apt-get", "-q", *step], env=environ, check=True, timeout=STEP_LIMIT_S, stdout=subprocess.DEVNULL
        )
    return True
