"""Link: messages for one endpoint, as libzmq takes them or not."""

from typing import Any

import pytest
import zmq

from sidecar.shell.link import DONTWAIT, Link

MORE = DONTWAIT | int(zmq.SNDMORE)


class Push:
    """Of libzmq only what each send answers, in order; after that it takes all."""

    def __init__(self, *answers: zmq.ZMQError | None) -> None:
        self.sent: list[tuple[bytes, int]] = []
        self._answers = iter(answers)

    def send(self, frame: bytes, flags: int) -> None:
        self.sent.append((frame, flags))
        if (error := next(self._answers, None)) is not None:
            raise error


def link_over(push: Push) -> Link:
    link: Any = object.__new__(Link)
    link._push = push  # noqa: SLF001 - no socket can be made to answer so
    return link  # type: ignore[no-any-return]


def messages() -> list[list[bytes]]:
    return [[b"1", b"0", b"2"], [b"3", b"0", b"2"]]


def test_only_the_last_frame_of_a_message_ends_it() -> None:
    push = Push()

    assert link_over(push).send_all([*messages(), [b"alone"]]) == (3, None)
    assert push.sent == [
        *[(b"1", MORE), (b"0", MORE), (b"2", DONTWAIT)],
        *[(b"3", MORE), (b"0", MORE), (b"2", DONTWAIT)],
        (b"alone", DONTWAIT),
    ]


def test_of_a_message_that_is_refused_nothing_else_is_sent() -> None:
    push = Push(None, None, None, zmq.Again())

    assert link_over(push).send_all(messages()) == (1, None)
    assert push.sent[3:] == [(b"3", MORE)]


@pytest.mark.parametrize("then", [None, zmq.Again(), zmq.ZMQError(zmq.ENOTSUP)])
def test_a_message_whose_pipe_goes_away_in_the_middle_is_ended(then: zmq.ZMQError | None) -> None:
    """Else libzmq would take the next message for its rest."""
    push = Push(None, zmq.Again(), then)

    assert link_over(push).send_all(messages()) == (0, None)
    assert push.sent == [(b"1", MORE), (b"0", MORE), (b"2", DONTWAIT)]


def test_what_else_is_wrong_is_answered() -> None:
    error = zmq.ZMQError(zmq.ENOTSUP)

    assert link_over(Push(None, None, None, error)).send_all(messages()) == (1, error)
