"""What was owed in a scene and what became of it: told, expired where nobody came back, or lost."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

LIMIT_S = 120.0
"""For what takes milliseconds: the machine may be busy with engines."""

Told = tuple[int, int, int]
"""Port of the decode endpoint, room, prefill rank."""


def until(claim: Callable[[], object], what: str, *, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@dataclass(frozen=True)
class Account:
    """`let_go`: pushed out by a bound, and counted there. `unasked` were told though nobody owed them: after a Success,
    or for another life. They and `lost` must be 0.
    """

    owed: int
    once: int
    twice: int
    expired: int
    let_go: int
    lost: int
    unasked: int


class Ledger:
    """Written by the test that owes and by the threads that hear decode."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told: Counter[Told] = Counter()
        self.heard_at: dict[Told, float] = {}
        self.owed: set[Told] = set()

    def owe(self, notices: Iterable[Told]) -> None:
        with self.changed:
            self.owed.update(notices)

    def hear(self, notice: Told) -> None:
        with self.changed:
            self.told[notice] += 1
            self.heard_at.setdefault(notice, time.monotonic())
            self.changed.notify_all()

    def untold(self) -> set[Told]:
        with self.changed:
            return self.owed - self.told.keys()

    def wait_for(self, notices: Iterable[Told] | None = None, *, limit_s: float = LIMIT_S) -> None:
        """Of all that is owed, or of these."""
        wanted = set(self.owed if notices is None else notices)
        with self.changed:
            complete = self.changed.wait_for(lambda: wanted <= self.told.keys(), limit_s)
            assert complete, f"{len(wanted - self.told.keys())} of {len(wanted)} were not told in {limit_s:.0f} s"

    def account(self, *, expired: int = 0, let_go: int = 0) -> Account:
        """How many have expired, and how many were let go, as those say who did it."""
        with self.changed:
            of_owed = [self.told[notice] for notice in self.owed]
            unasked = sum(count for notice, count in self.told.items() if notice not in self.owed)
        untold = of_owed.count(0)
        return Account(
            owed=len(of_owed),
            once=of_owed.count(1),
            twice=len(of_owed) - untold - of_owed.count(1),
            expired=min(untold, expired),
            let_go=min(untold - min(untold, expired), let_go),
            lost=max(0, untold - expired - let_go),
            unasked=unasked,
        )


class Book:
    """The accounts of all scenes of a run, kept in one file that other runs add to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scenes: dict[str, dict[str, object]] = {}

    def enter(self, scene: str, account: Account, **seen: object) -> None:
        assert account.lost == account.unasked == 0, f"{scene}: {account}"
        self._scenes[scene] = {**asdict(account), **seen}

    def close(self) -> None:
        if not self._scenes:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._path.write_text(json.dumps({**kept, **self._scenes}, indent=2) + "\n")
        for line in self.table():
            print(line)
        print(f"written to {self._path}")

    def table(self) -> list[str]:
        columns = ("owed", "once", "twice", "expired", "let_go", "lost")
        lines = [f"{'scene':44}" + "".join(f"{name:>9}" for name in columns) + "  seen"]
        for scene, row in self._scenes.items():
            seen = {name: value for name, value in row.items() if name not in (*columns, "unasked")}
            lines.append(f"{scene:44}" + "".join(f"{row[name]:>9}" for name in columns) + f"  {seen or ''}")
        return lines
