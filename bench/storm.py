"""An abort storm beside what is measured: `python -m bench.storm SOCKET` has rooms end in bursts, to 64 endpoints,
until it is ended.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.sink import sink
from bench.source import Source
from bench.throughput import relay

ENDPOINTS, BURST, FIRST = 64, 200, 30_000


def main(path: Path) -> None:
    with sink(ENDPOINTS, first=FIRST) as decode, Source(path) as source:
        relay(source, decode, BURST)
        print("storms", flush=True)
        while True:
            relay(source, decode, BURST)


@contextmanager
def storm(path: Path) -> Iterator[None]:
    """Begins once its first burst has arrived."""
    process = subprocess.Popen([sys.executable, "-m", "bench.storm", str(path)], stdout=subprocess.PIPE)
    with process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
