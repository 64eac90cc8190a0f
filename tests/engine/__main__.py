"""`python -m tests.engine [VERSION] [pytest options]`: builds that engine's venv if need be and runs these tests
inside it."""

import os
import sys

from tests.pair.paths import REPO
from tests.pair.venvs import ensure_venv

DEFAULT_VERSION = "0.5.18"


def main(words: list[str]) -> None:
    version, options = (words[0], words[1:]) if words and words[0][0].isdigit() else (DEFAULT_VERSION, words)
    python = str(ensure_venv(version))
    os.chdir(REPO)
    # The other tests' conftest wants what only the project's venv has; sglang's own warnings are not ours to fail on.
    command = [python, "-m", "pytest", "tests/engine", "--confcutdir=tests/engine", "-W", "default", *options]
    os.execv(python, command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
