"""Decode endpoints in a process of their own: `python -m tests.faults.decode_program HOST PORT...` binds a PULL socket
for each port and prints a line for each notice: port, room, prefill rank.
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
    print("bound", flush=True)
    while True:
        for pull, _ in poller.poll():
            with contextlib.suppress(zmq.Again):
                while True:
                    room, status, prefill_rank = pull.recv_multipart(zmq.NOBLOCK)[:3]
                    assert status == b"0"
                    print(names[pull], int(room), int(prefill_rank))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], [int(port) for port in sys.argv[2:]])
