"""The test's side: starts rank processes, feeds their event loops in step, asks them what they have."""

import importlib
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from tests.engine.ranks.spec import Abort, Admit, Layout, Message, Order, RankSpec

LIMIT_S = 30.0
RANK_MODULE = "tests.engine.ranks.rank"  # imports the engine


class RankEndedError(Exception):
    """The event loop of a rank ended, or did not come round in time: what a disagreement of the ranks looks like."""


class Fork:
    """Processes that have sglang imported and no thread running, one of them with the plugin's hooks in it too, kept
    to fork ranks from: both take seconds."""

    def __init__(self) -> None:
        importlib.import_module(RANK_MODULE)
        self._stock = _Nursery(plugin=False)
        self._hooked = _Nursery(plugin=True)

    def launch(self, spec: RankSpec) -> None:
        (self._hooked if spec.plugin else self._stock).orders.send(spec)

    def close(self) -> None:
        self._stock.close()
        self._hooked.close()


class _Nursery:
    def __init__(self, *, plugin: bool) -> None:
        context = multiprocessing.get_context("fork")
        self.orders, theirs = context.Pipe()
        self._process = context.Process(target=_fork_ranks, args=(theirs, self.orders, plugin))
        self._process.start()
        theirs.close()

    def close(self) -> None:
        self.orders.send(None)
        self._process.join(LIMIT_S)
        assert not self._process.is_alive()


def _fork_ranks(orders: Connection, other_end: Connection, plugin: bool) -> None:
    other_end.close()
    module = importlib.import_module(RANK_MODULE)
    if plugin:
        module.install()
    context = multiprocessing.get_context("fork")
    while (spec := orders.recv()) is not None:
        context.Process(target=module.rank_main, args=(spec, orders), daemon=True).start()
        multiprocessing.active_children()  # reaps those that have ended


class Member:
    """One rank. Its controls (`Controls`) are called as if they were here."""

    def __init__(self, number: int, connection: Connection) -> None:
        self.number = number
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.ask(name, *arguments)

    def ask(self, name: str, *arguments: Any) -> Any:
        self.begin(name, *arguments)
        return self.finish()

    def begin(self, name: str, *arguments: Any) -> None:
        self._connection.send(Order(name, arguments))

    def finish(self) -> Any:
        if not self._connection.poll(LIMIT_S):
            raise RankEndedError(f"rank {self.number} does not come back")
        try:
            kind, value = self._connection.recv()
        except EOFError:
            raise RankEndedError(f"rank {self.number} is gone") from None
        if kind == "died":
            raise RankEndedError(f"rank {self.number}: {value}")
        if kind == "failed":
            raise AssertionError(f"rank {self.number}: {value}")
        return value

    def close(self) -> None:
        self._connection.close()


class Company(Sequence[Member]):
    """All ranks of one prefill server."""

    def __init__(self, members: list[Member], *, layout: Layout) -> None:
        self._members = members
        self.layout = layout

    def __getitem__(self, index: Any) -> Any:
        return self._members[index]

    def __len__(self) -> int:
        return len(self._members)

    def each(self, name: str, *arguments: Any) -> list[Any]:
        """The same of every rank, at the same time: a collective inside finds them all."""
        for member in self._members:
            member.begin(name, *arguments)
        answers, ended = [], []
        for member in self._members:
            try:
                answers.append(member.finish())
            except RankEndedError as error:
                ended.append(error)
        if ended:
            raise ended[0]
        return answers

    def agreed(self, name: str, *arguments: Any) -> Any:
        """An answer that must be the same on every rank."""
        answers = self.each(name, *arguments)
        assert all(answer == answers[0] for answer in answers), (name, answers)
        return answers[0]

    def iterate(self, *messages: Message, times: int = 1) -> None:
        """Every rank's event loop goes round; `messages` reach all of them in the first iteration, as a broadcast."""
        self.each("iterate", *messages)
        for _ in range(times - 1):
            self.each("iterate")

    def admit(self, rid: str, room: int, tokens: int) -> None:
        self.iterate(Admit(rid, room, tokens))

    def abort(self, rid: str) -> None:
        self.iterate(Abort(rid))

    def close(self) -> None:
        for member in self._members:
            member.close()


@contextmanager
def gathered(
    fork: Fork,
    layout: Layout,
    *,
    plugin: bool = True,
    fault: str = "",
    overlap: bool = True,
    chunk: int = 4,
    optimistic: int = 0,
    limit_s: float = 10.0,
    sidecar: str = "",
) -> Iterator[Company]:
    """`chunk`: tokens of one prefill batch. `optimistic`: how often a request is computed before decode has come."""
    with tempfile.TemporaryDirectory(prefix="ranks") as directory:
        address = str(Path(directory, "orders"))
        connections: dict[int, Connection] = {}
        with Listener(address, "AF_UNIX", backlog=layout.world) as listener:
            for number in range(layout.world):
                fork.launch(
                    RankSpec(
                        number=number,
                        layout=layout,
                        plugin=plugin,
                        fault=fault,
                        overlap=overlap,
                        chunk=chunk,
                        optimistic=optimistic,
                        limit_s=limit_s,
                        sidecar=sidecar,
                        rendezvous=str(Path(directory, "rendezvous")),
                        address=address,
                    )
                )
            for _ in range(layout.world):
                connection = listener.accept()
                connections[connection.recv()] = connection
        company = Company([Member(number, connections[number]) for number in sorted(connections)], layout=layout)
        try:
            company.each("port")
            yield company
        finally:
            company.close()
