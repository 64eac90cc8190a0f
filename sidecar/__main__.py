"""`pd-sidecar` and `python -m sidecar`. Detaching comes before any import that takes time: the caller is a starting
engine. So does keeping: what keeps imports nothing that could fail.
"""

import sys

from sidecar.detach import Caller, detach


def main() -> None:
    caller = _caller() if sys.argv[1:2] == ["run"] else Caller()
    from sidecar.cli import main as run_command  # noqa: PLC0415 - see above

    run_command(caller)


def _caller() -> Caller:
    if "--detach" in sys.argv:
        return detach()
    if "--keep" in sys.argv:
        from sidecar.keep import keep  # noqa: PLC0415 - nobody else needs it

        return keep()
    return Caller()


if __name__ == "__main__":
    main()
