"""Decode endpoints in a process of their own: `python -m tests.faults.decode_program HOST PORT...` binds a PULL socket
for each port and prints a line for each notice: port, room, prefill rank. It answers a line on stdin with `read` once
it has read all that had come by then.
"""

import contextlib
import sys

import zmq


def main(host: str, ports: list[int]) -> None:
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4096)
    poller = zmq.Poller()
    names: dict[zmq.Socket[bytes], int] = {}
    for port in ports:
        pull = context.socket(zmq.PULL)
        pull.set(zmq.RCVHWM, 0)
        pull.bind(f"tcp://{host}:{port}")
        names[pull] = port
        poller.register(pull, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    print("bound", flush=True)
    while True:
        ready = [one for one, _ in poller.poll()]
        is_asked = sys.stdin.fileno() in ready
        if is_asked and not sys.stdin.readline():
            return
        for pull in names if is_asked else ready:
            print_all(pull, names[pull])
        if is_asked:
            print("read")
        sys.stdout.flush()


def print_all(pull: "zmq.Socket[bytes]", port: int) -> None:
    with contextlib.suppress(zmq.Again):
        while True:
            room, status, prefill_rank = pull.recv_multipart(zmq.NOBLOCK)[:3]
            assert status == b"0"
            print(port, int(room), int(prefill_rank))


if __name__ == "__main__":
    main(sys.argv[1], [int(port) for port in sys.argv[2:]])
