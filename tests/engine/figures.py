"""What the hooks cost the scheduler's thread, for `bench`: `python -m tests.engine.figures` shows it alone."""

import json
import subprocess
from typing import Any

from tests.engine.__main__ import DEFAULT_VERSION
from tests.pair.paths import REPO
from tests.pair.venvs import ensure_venv

LIMIT_S = 300.0


def scheduler_cost(*, version: str = DEFAULT_VERSION, scale: int = 1) -> dict[str, Any]:
    """Medians in microseconds, with the plugin and without, of an iteration of the event loop with so many requests in
    flight, and of an abort. `scale` divides the rounds."""
    command = [str(ensure_venv(version)), "-m", "tests.engine.ranks.figures", str(scale)]
    done = subprocess.run(
        command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    print(json.dumps(scheduler_cost(), indent=2))
