"""The gate in front of a control thread: what it lets through, and that the thread outlives what it is given."""

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hooks.contain import FAULTS
from sglang_hooks.dropped import REPEAT_AFTER_S, Dropped, no_junk
from sglang_hooks.hooks.gate import Frames, Gate, family_of, is_switchable
from sglang_hooks.messages.values import Family, Reason
from tests.sglang_hooks.conftest import Clock

LIMIT_S = 10.0
END = [b"end"]


class SocketClosedError(Exception):
    """As zmq raises once the socket is gone."""


class Manager:
    """Serves its socket as sglang's managers do: a closure in a thread, made by a starter."""

    def __init__(self, *messages: Frames) -> None:
        self._messages = list(messages)
        self.handled: list[Frames] = []
        self.server_socket = SimpleNamespace(recv_multipart=self._receive)
        self.server_args = SimpleNamespace(enable_pd_role_switch=False)
        self.thread: threading.Thread | None = None

    def _receive(self) -> Frames:
        if not self._messages:
            raise SocketClosedError
        return self._messages.pop(0)

    def start_prefill_thread(self) -> None:
        def bootstrap_thread() -> None:
            while (frames := self.server_socket.recv_multipart()) != END:
                self.handled.append(frames)
                if frames[0] == b"fatal":
                    raise RuntimeError("stock cannot take this")

        self.thread = threading.Thread(target=bootstrap_thread)
        self.thread.start()


class SwitchableManager(Manager):
    supports_role_switch = True

    def __init__(self, *messages: Frames) -> None:
        super().__init__(*messages)
        self.server_args = SimpleNamespace(enable_pd_role_switch=True)


def gated(manager: Any, **how: Callable[..., Any]) -> tuple[Gate, dict[str, int]]:
    counts = no_junk()
    take = how.get("take", lambda frames: frames)
    gate = Gate(manager, take=take, handled=how.get("handled", lambda: None), dropped=Dropped(counts, where="here"))
    gate.install()
    return gate, counts


def run(manager: Manager) -> None:
    manager.start_prefill_thread()
    assert manager.thread is not None
    manager.thread.join(LIMIT_S)
    assert not manager.thread.is_alive()


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    """What threads have ended with."""
    died: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(args.exc_type))
    return died


def test_what_is_kept_back_never_arrives() -> None:
    manager = Manager([b"1"], [b"junk"], [b"2"], END)
    gated(manager, take=lambda frames: None if frames == [b"junk"] else frames)
    run(manager)

    assert manager.handled == [[b"1"], [b"2"]]


def test_what_is_cut_arrives_cut() -> None:
    manager = Manager([b"1", b"2"], END)
    gated(manager, take=lambda frames: frames[:1])
    run(manager)

    assert manager.handled == [[b"1"]]


def test_a_thread_that_may_have_to_end_does_not_wait_for_the_next_message() -> None:
    """sglang's own `recv` of `--enable-pd-role-switch` returns None, and the thread looks whether it is to stop."""
    manager = SwitchableManager([b"junk"], [b"1"])
    gated(manager, take=lambda frames: None if frames == [b"junk"] else frames)

    assert manager.server_socket.recv_multipart() is None
    assert manager.server_socket.recv_multipart() == [b"1"]


def test_a_backend_that_cannot_switch_never_gets_none() -> None:
    """NIXL's closure has no place for it, whatever the flag says."""
    manager = Manager([b"junk"], [b"1"])
    manager.server_args.enable_pd_role_switch = True
    assert not is_switchable(manager)
    gated(manager, take=lambda frames: None if frames == [b"junk"] else frames)

    assert manager.server_socket.recv_multipart() == [b"1"]


def test_the_thread_outlives_what_stock_raises(deaths: list[type[BaseException]]) -> None:
    manager = Manager([b"fatal"], [b"1"], [b"fatal"], [b"2"], END)
    _, counts = gated(manager)
    run(manager)

    assert manager.handled == [[b"fatal"], [b"1"], [b"fatal"], [b"2"]]
    assert counts[Reason.RAISED.value] == 2
    assert deaths == []


def test_stock_is_done_with_a_message_also_when_it_raised() -> None:
    done: list[int] = []
    manager = Manager([b"fatal"], END)
    gated(manager, handled=lambda: done.append(len(manager.handled)))
    run(manager)

    assert done == [0, 1]


def test_the_thread_ends_with_its_socket(deaths: list[type[BaseException]]) -> None:
    manager = Manager([b"1"])
    _, counts = gated(manager)
    run(manager)

    assert deaths == [SocketClosedError]
    assert not any(counts.values())


def test_the_thread_ends_when_stock_ends_it(deaths: list[type[BaseException]]) -> None:
    manager = Manager([b"fatal"], [b"1"], END)
    vars(manager)["_stopped"] = True
    gated(manager)
    run(manager)

    assert deaths == [RuntimeError]
    assert manager.handled == [[b"fatal"]]


def test_sglangs_module_keeps_its_threading() -> None:
    manager = Manager(END)
    gated(manager)
    before = threading
    run(manager)

    assert globals()["threading"] is before


def test_a_starter_that_cannot_be_looked_into_starts_as_stock_does() -> None:
    manager = Manager()
    started = [1, 2]
    vars(manager)["start_decode_thread"] = started.reverse
    gated(manager)
    before = FAULTS["Gate._start_lasting"]
    vars(manager)["start_decode_thread"]()

    assert started == [2, 1]
    assert FAULTS["Gate._start_lasting"] == before + 1


class MooncakeKVManager:
    """By name, as sglang's."""


class AscendKVManager(MooncakeKVManager):
    pass


def test_families_are_known_by_their_classes() -> None:
    assert family_of(AscendKVManager()) is Family.MOONCAKE
    assert family_of(Manager()) is None


def test_junk_is_logged_once_a_minute_for_each_reason(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    counts = no_junk()
    dropped = Dropped(counts, where="prefill's control socket", clock=clock)
    with caplog.at_level(logging.WARNING, logger="pd_sidecar"):
        for _ in range(1_000):
            dropped.note(Reason.UNKNOWN_TAG, [b"HELLO" * 100, b"x"])
        dropped.note(Reason.TOO_SHORT, [])
        clock.now_s += REPEAT_AFTER_S
        dropped.note(Reason.UNKNOWN_TAG, [b"HELLO"])

    messages = [record.getMessage() for record in caplog.records]
    assert [text[12:25].split("m")[0] for text in messages] == ["dropped 1 ", "dropped 1 ", "dropped 1000 "]
    assert all(len(text) < 400 for text in messages)
    assert {name: count for name, count in counts.items() if count} == {"unknown_tag": 1_001, "too_short": 1}
