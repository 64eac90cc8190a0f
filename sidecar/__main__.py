"""`pd-sidecar` and `python -m sidecar`. Detaching comes before any import that takes time: the caller is a starting
engine.
"""

import sys

from sidecar.detach import Caller, detach


def main() -> None:
    is_leaving = sys.argv[1:2] == ["run"] and "--detach" in sys.argv
    caller = detach() if is_leaving else Caller()
    from sidecar.cli import main as run_command  # noqa: PLC0415 - see above

    run_command(caller)


if __name__ == "__main__":
    main()
