"""What becomes of decode endpoints and of the way to them. Each kind alone is a row of tests/shell/test_truth.py; here
they happen at once, beside endpoints that must notice nothing of it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from statistics import quantiles

import pytest

from tests.faults.actors import Decode, Rank, Stage
from tests.faults.ledger import Book, Ledger, Told, until
from tests.shell.truth import no_namespaces

TTL_S = 7.0
"""How long decode waits in these scenes: who does not come back within it has given up."""

FROZEN_S = 5.2
"""Longer than the heartbeat's patience of 4.5 s."""


def of(decode: Decode, ledger: Ledger) -> set[Told]:
    return {notice for notice in ledger.owed if notice[0] in decode.ports}


def test_every_fault_at_once_and_the_living_notice_nothing(stage: Stage, book: Book) -> None:
    sidecar, rank = stage.sidecar(), stage.rank(ttl_s=TTL_S)
    living = stage.decode(8)
    killed, restarted, replaced, frozen = [stage.decode(4) for _ in range(4)]
    with black_holes(4) as swallowed:
        rank.give_up(range(200), living)
        for decode in (killed, restarted, replaced, frozen):
            rank.give_up(range(200, 220), decode)
        stage.ledger.wait_for()
        for decode in (killed, restarted, replaced):
            decode.kill()
        frozen.signal(signal.SIGSTOP)
        swallowed.ledger = stage.ledger
        gone = (killed, restarted, replaced, frozen, swallowed)
        with other_program_at(replaced.ports):
            sent_at = owe_all(rank, living, gone, rooms=range(1_000, 1_400))
            restarted.start()
            stage.ledger.wait_for(of(restarted, stage.ledger))
            time.sleep(max(0.0, FROZEN_S - (time.monotonic() - min(sent_at.values()))))  # the fault itself
            frozen.signal(signal.SIGCONT)
            stage.ledger.wait_for(of(living, stage.ledger) | of(frozen, stage.ledger))
            sidecar.settles()
        expired = sidecar.expired()
    account = stage.ledger.account(expired=expired)
    delays_s = [
        stage.ledger.heard_at[notice] - sent_at[notice[1]] for notice in of(living, stage.ledger) if notice[1] >= 1_000
    ]

    assert account.expired == len(stage.ledger.untold()) > 0
    assert {notice[0] for notice in stage.ledger.untold()} <= {*killed.ports, *replaced.ports, *swallowed.ports}
    book.enter(
        "decode killed, frozen, swallowed, replaced, restarted",
        account,
        living_p99_ms=round(quantiles(delays_s, n=100)[98] * 1000, 1),
    )


def owe_all(rank: Rank, living: Decode, gone: tuple[Decode, ...], *, rooms: range) -> dict[int, float]:
    """Each room is told one living endpoint and one of each kind that is gone. Answers when each was given up."""

    sent_at: dict[int, float] = {}
    for number, room in enumerate(rooms):
        told = [(decode, number % len(decode.ports)) for decode in (living, *gone)]
        living.ledger.owe((decode.ports[at], room, rank.number) for decode, at in told)
        rank.do("open", room, [decode.addresses[at] for decode, at in told])
        sent_at[room] = time.monotonic()
        rank.do("abort", room)
    return sent_at


@contextlib.contextmanager
def other_program_at(ports: list[int]) -> Iterator[None]:
    """It took the ports over, and greets like a server of mail."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", port)))
            threading.Thread(target=_greet, args=(listener,), daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield


def _greet(listener: socket.socket) -> None:
    with contextlib.ExitStack() as kept, contextlib.suppress(OSError):
        while True:
            visitor = kept.enter_context(listener.accept()[0])
            visitor.sendall(b"220 mail.example.org ESMTP ready\r\n")


@contextlib.contextmanager
def black_holes(count: int) -> Iterator[Decode]:
    """Listeners whose backlog is full: the kernel drops whoever tries to connect."""
    swallowed = Decode(Ledger(), count)
    with contextlib.ExitStack() as stack:
        for port in swallowed.ports:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(0)
            for _ in range(2):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
        yield swallowed


CUT_S = 5.5
"""Longer than the heartbeat's patience."""


def test_links_that_are_cut_and_healed(stage: Stage, book: Book) -> None:
    """One at the sidecar's end, where the kernel knows it at once, one at decode's, where packets only vanish."""
    if why_not := no_namespaces():
        pytest.skip(why_not)
    with links(2) as (near, *far):
        stage.sidecar(prefix=("ip", "netns", "exec", near))
        rank = stage.rank(ttl_s=60.0)
        hosts = [f"10.98.{number}.2" for number in range(2)]
        decodes = [
            stage.decode(4, host=host, prefix=("ip", "netns", "exec", name))
            for host, name in zip(hosts, far, strict=True)
        ]
        for decode in decodes:
            rank.give_up(range(100), decode)
        stage.ledger.wait_for()
        for change in ("down", "up"):
            ip(f"-n {near} link set near0 {change}")
            ip(f"-n {far[1]} link set far1 {change}")
            if change == "down":
                for decode, first in zip(decodes, (100, 200), strict=True):
                    rank.give_up(range(first, first + 100), decode, pause_s=CUT_S / 200)
        healed_at = time.monotonic()
        stage.ledger.wait_for()
        took_s = time.monotonic() - healed_at

    book.enter("links cut at either end, and healed", stage.ledger.account(), told_after_healing_s=round(took_s, 1))


@contextlib.contextmanager
def links(count: int) -> Iterator[list[str]]:
    """Network namespaces: one, and others with a cable to it each. Ours is 10.98.N.1, theirs 10.98.N.2."""
    names = [f"pds{number}-{os.getpid()}" for number in range(count + 1)]
    with contextlib.ExitStack() as stack:
        for name in names:
            made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True, timeout=60)
            if made.returncode:
                pytest.skip(f"no network namespace: {made.stderr.strip()}")
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=True, timeout=60)
            ip(f"-n {name} link set lo up")
        near, *others = names
        for number, far in enumerate(others):
            ip(f"-n {near} link add near{number} type veth peer name far{number} netns {far}")
            for name, device, host in ((near, f"near{number}", 1), (far, f"far{number}", 2)):
                ip(f"-n {name} address add 10.98.{number}.{host}/24 dev {device}")
                ip(f"-n {name} link set {device} up")
        yield names


def ip(command: str) -> None:
    tool = shutil.which("ip")
    assert tool is not None
    subprocess.run([tool, *command.split()], check=True, timeout=60)


def test_decode_dies_while_the_sidecar_is_stopped(stage: Stage, book: Book) -> None:
    """Its timers are due before it hears of the lost connection: what decode had not read must not pass for told."""
    sidecar, rank = stage.sidecar("--settle-after-s", "2"), stage.rank()
    decode = stage.decode(4)
    rank.give_up(range(100), decode)
    stage.ledger.wait_for()
    decode.signal(signal.SIGSTOP)
    rank.give_up(range(100, 200), decode)
    until(lambda: sidecar.metric("hand_offs_total") == 200, "not all are handed off")
    with sidecar.stopped():
        decode.kill()
        time.sleep(3.5)  # the fault itself
    decode.start()
    stage.ledger.wait_for()

    book.enter("decode dies while the sidecar is stopped", stage.ledger.account())
