"""Ends of requests that never had a sender at this rank, and handshakes for rooms that have ended.

Frames carry no life, so a handshake for an ended room may come late, or early for a new request with that room. The
engine's tokenizer process decides: a new life opens when it accepts a request, or with the sender, whichever is first.
All times are of the host's monotonic clock, so a handshake and an acceptance can be compared.

Early is not late: what came for a room that nobody has ended is never answered.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sglang_hooks import causes, facts
from sglang_hooks.doubts import Doubts, Held
from sglang_hooks.life import Life
from sglang_hooks.rank_book import RankBook
from sidecar.model import DecodeEndpoint, RoomEnded, RoomQueried, TerminalStatus

DOUBT_LIMIT_S = 5.0
"""A handshake for an ended room that the tokenizer process has not judged by then counts as late."""


class EngineTables(Protocol):
    """What the engine gathers of handshakes, by room (`transfer_infos` and the like)."""

    def purge(self, room: int) -> bool:
        """Answers whether there was anything."""

    def take_out(self, room: int, sessions: Sequence[str]) -> None:
        """Only what these decode sessions have said."""


class Senderless:
    """`in_hand`: the room of the message that the engine's bootstrap thread is handling now. Nobody else may touch
    the engine's tables for that room meanwhile.
    """

    def __init__(self, book: RankBook) -> None:
        self.doubts = Doubts()
        self.has_tokenizer = False
        self.in_hand: int | None = None
        self.tables: EngineTables | None = None
        self.on_released: Callable[[], None] = _nobody_waits
        self._book = book
        self._released: deque[Held] = deque()
        self._to_take_out: dict[int, list[str]] = {}

    # -- the engine's bootstrap thread

    def meet(self, room: int, endpoint: DecodeEndpoint | None, session: str, frames: Sequence[bytes]) -> bool:
        """Whether stock must not see the handshake: not now, or never. `endpoint` is None for a dummy."""
        book = self._book
        with book.lock:
            at_s, opened = book.clock(), book.table.find_open(room)
            if opened is not None and endpoint is not None and not opened.succeeded:  # mostly
                is_kept = opened.ending
                if not book.has_no_place(opened, endpoint):
                    book.join_known(opened, endpoint, session, at_s=at_s)
            else:
                held = Held(room, endpoint, session, frames, at_s)
                is_kept = self._is_held(held) or self._is_past(held)
            if not is_kept:
                self.in_hand = room
        book.emitter.flush(wakes=is_kept)  # of an open room nobody is owed anything yet
        return is_kept

    def take_released(self) -> Sequence[bytes] | None:
        """A message that was held and may go on to stock."""
        if not self._released:
            return None
        with self._book.lock:
            while self._released:
                held = self._released.popleft()
                if not self._book.table.has_ended(held.room, now=self._book.clock()):
                    self.in_hand = held.room
                    return held.frames
        return None

    def put_down(self) -> None:
        """Stock has handled the last message."""
        if self.in_hand is None:
            return
        with self._book.lock:
            room, self.in_hand = self.in_hand, None
            sessions = self._to_take_out.pop(room, None) if self._to_take_out else None
            if sessions and self.tables is not None:
                self.tables.take_out(room, sessions)

    def judge_overdue(self) -> None:
        with self._book.lock:
            now = self._book.clock()
            for room in self.doubts.older_than(now - DOUBT_LIMIT_S):
                self._book.counts.doubts_unanswered += 1
                self._judge_held(RoomEnded(room, now, 0.0, now, "", 0))
        self._after_judging()

    # -- the scheduler thread

    def refuse(self, room: int, cause: str, http_status: int = 0) -> None:
        """This rank's scheduler refused a request before it had a sender. A sender that is there is another request's,
        and has nothing to fear."""
        book = self._book
        with book.lock:
            if (opened := book.table.find_open(room)) is not None and not opened.succeeded:
                book.counts.refusals_of_others += 1
                if opened.ending:  # whoever comes for the refused one joins it, or its record
                    opened.opened_at_s = book.clock()
                return
            life = book.table.split_early(room, float("inf")) or book.table.senderless(room)
            life.opened_at_s = book.clock()
            self._conclude(life, cause, http_status)
        book.emitter.flush()

    # -- the emitter's thread

    def tokenizer_joined(self) -> None:
        with self._book.lock:
            self.has_tokenizer = True
            for room in self.doubts:
                self._ask(room)
        self._book.emitter.flush()

    def judge(self, word: RoomEnded) -> None:
        with self._book.lock:
            self._judge_held(word)
            self._judge_early(word)
        self._after_judging()

    def judge_all(self) -> None:
        """Without asking: no request here can be completed any more."""
        with self._book.lock:
            self.has_tokenizer = False
            now = self._book.clock()
            for room in self.doubts:
                self._judge_held(RoomEnded(room, now, 0.0, now, "", 0))
        self._after_judging()

    def _after_judging(self) -> None:
        self._book.emitter.flush()
        if self._released:
            self.on_released()

    # -- inside; the lock is held

    def _is_held(self, held: Held) -> bool:
        if not (self.has_tokenizer and self._book.table.has_ended(held.room, now=self._book.clock())):
            return False
        if not self.doubts.hold(held):
            self._book.counts.doubts_over_limit += 1
            return False
        self._ask(held.room)
        return True

    def _is_past(self, held: Held) -> bool:
        if held.endpoint is None:
            return self._book.is_past(held.room)
        return self._book.join(held.room, held.endpoint, held.session, at_s=held.at_s).ending

    def _ask(self, room: int) -> None:
        self._book.emitter.post(RoomQueried(self._book.seq(), room))

    def _judge_held(self, word: RoomEnded) -> None:
        held = self.doubts.take(word.room)
        if not held:
            return
        table, opened = self._book.table, self._book.table.find_open(word.room)
        if opened is None:
            end = table.last_end(word.room, now=self._book.clock())
        else:
            end = table.find(word.room, opened.previous) if opened.previous is not None else None
        until_s, is_over = _ended_until(word, end, has_sender=opened is not None)
        if not is_over and opened is None:
            table.accept(word.room, now=self._book.clock())
        for each in held:
            if each.at_s <= until_s and end is not None:
                self._tell_late(end, each)
            elif is_over:
                self.doubts.hold(each)
            else:
                self._release(each)
        if word.room in self.doubts:
            self._ask(word.room)

    def _tell_late(self, end: Life, held: Held) -> None:
        book = self._book
        if held.endpoint is None or book.has_no_place(end, held.endpoint):
            return
        book.counts.late_handshakes += 1
        book.emitter.post(book.conclusion(end, TerminalStatus.FAILED))
        end.join(held.endpoint, held.session, seq=book.seq(), at_s=held.at_s)
        book.emitter.post(facts.handshake_fact(end, held.endpoint))

    def _release(self, held: Held) -> None:
        if not self._is_past(held):
            self._book.counts.doubts_released += 1
            self._released.append(held)

    def _judge_early(self, word: RoomEnded) -> None:
        """Whoever came before the refusal waits for the refused request. Who came after it may wait for a newer one,
        which only the tokenizer process can know."""
        table = self._book.table
        if word.refused_until_s <= 0.0:
            return
        if table.is_served(word.room):
            self._book.counts.refusals_of_others += 1
            return
        ended = table.split_early(word.room, word.refused_until_s)
        rest = table.find_early(word.room)
        if rest is not None and not word.accepted_at_s:
            self._ask(word.room)
        if rest is not None and ended is not None:
            self._tell_anew(rest)
        if ended is None and rest is None and not word.accepted_at_s:
            is_news = not table.has_ended(word.room, now=self._book.clock())
            ended = table.senderless(word.room) if is_news else None
        if ended is not None:
            ended.opened_at_s, ended.at_door = word.refused_until_s, True
            self._conclude(ended, word.cause, word.http_status)

    def _tell_anew(self, rest: Life) -> None:
        """The sidecar knows them in a life that ends now, and must know better before it hears of that."""
        for endpoint, joined in list(rest.endpoints.items()):
            rest.join(endpoint, joined.session, seq=self._book.seq(), at_s=joined.at_s)
            self._book.emitter.post(facts.handshake_fact(rest, endpoint))

    def _conclude(self, life: Life, cause: str, http_status: int) -> None:
        book = self._book
        life.ending, life.ending_since_s, life.released = True, book.clock(), True
        life.cause, life.http_status = causes.shortened(cause), http_status
        book.counts.refused_lives += 1
        book.conclude_if_drained(life)
        self._clear(life)

    def _clear(self, life: Life) -> None:
        """Takes what the engine has gathered for the life out of its tables; what it has in hand, once it has put it
        down."""
        room = life.room
        is_whole = self._book.table.find_early(room) is None and self._book.table.find_open(room) is None
        sessions = [joined.session for joined in life.endpoints.values()]
        if self.tables is None or (is_whole and self.in_hand == room):
            return  # an ended room is purged after the message in hand
        if is_whole:
            self.tables.purge(room)
        elif self.in_hand == room:
            self._to_take_out.setdefault(room, []).extend(sessions)
        else:
            self.tables.take_out(room, sessions)


def _ended_until(word: RoomEnded, end: Life | None, *, has_sender: bool) -> tuple[float, bool]:
    """Up to when a handshake for the room comes late, and whether it has ended still, as far as is known.

    A request that the tokenizer process accepted before the ended life had opened is that life's own: the process has
    not yet heard of its end. An end at the door was that process's word, so it alone says how long it stands.
    """
    if end is None:
        return 0.0, False
    if end.at_door:
        return word.refused_until_s, not has_sender and word.refused_until_s > 0.0 and not word.accepted_at_s
    if word.accepted_at_s > end.opened_at_s:
        return word.accepted_at_s, False
    return (0.0, False) if has_sender else (word.as_of_s, True)


def _nobody_waits() -> None:
    """Until the engine's socket is wrapped there is nothing to release."""
