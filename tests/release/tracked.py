"""What the repository holds, and the version it says it is."""

import functools
import subprocess
import tomllib

from tests.pair.paths import REPO

VERSION: str = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"]


@functools.cache
def tracked_files() -> list[str]:
    """Committed or about to be, and still there."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True, timeout=60).stdout
    return sorted(name for name in listed.split("\0") if name and (REPO / name).is_file())
