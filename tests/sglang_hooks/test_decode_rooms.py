"""What a decode rank has heard of its rooms."""

from sglang_hooks.decode.rooms import CAUSE_LIMIT, RANKS_LIMIT, Rooms

ROOM = 4711


def opened() -> Rooms[str]:
    rooms = Rooms[str]()
    rooms.open(ROOM)
    return rooms


def test_the_first_report_wants_an_acknowledgement_and_speaks_for_all_ranks() -> None:
    rooms = opened()
    assert [rooms.report(ROOM, rank) for rank in (0, 1, 2)] == [True, False, False]
    assert rooms.reports(ROOM) == 3


def test_a_rank_that_has_to_say_it_again_has_not_heard_the_acknowledgement() -> None:
    rooms = opened()
    rooms.report(ROOM, 0)
    rooms.report(ROOM, 1)
    assert rooms.report(ROOM, 1)
    assert rooms.reports(ROOM) == 2


def test_the_first_cause_stands_with_its_status() -> None:
    rooms = opened()
    rooms.keep(ROOM, "", 500)
    rooms.keep(ROOM, "input too long", 400)
    rooms.keep(ROOM, "another rank failed", 500)
    assert (rooms.cause(ROOM), rooms.http_status(ROOM)) == ("input too long", 400)


def test_a_cause_is_bounded() -> None:
    rooms = opened()
    rooms.keep(ROOM, "x" * (CAUSE_LIMIT + 1), None)
    assert len(rooms.cause(ROOM)) == CAUSE_LIMIT


def test_a_new_request_hears_nothing_of_the_rooms_older_one() -> None:
    rooms = opened()
    rooms.announce(ROOM, "line")
    rooms.report(ROOM, 0)
    rooms.keep(ROOM, "gone", 503)

    rooms.open(ROOM)

    assert (rooms.cause(ROOM), rooms.http_status(ROOM), rooms.reports(ROOM), rooms.lines(ROOM)) == ("", None, 0, ())


def test_lines_are_known_once_in_their_order() -> None:
    rooms = opened()
    for line in ("a", "b", "a"):
        rooms.announce(ROOM, line)
    assert rooms.lines(ROOM) == ("a", "b")


def test_of_an_unknown_room_nothing_is_kept() -> None:
    """Anybody can name rooms at the socket."""
    rooms = Rooms[str]()
    rooms.announce(ROOM, "line")
    rooms.keep(ROOM, "gone", 503)
    assert not rooms.report(ROOM, 0)
    assert len(rooms) == 0
    assert (rooms.cause(ROOM), rooms.http_status(ROOM), rooms.reports(ROOM), rooms.lines(ROOM)) == ("", None, 0, ())


def test_the_oldest_room_goes_first() -> None:
    rooms = Rooms[str](limit=2)
    for room in (1, 2, 1, 3):
        rooms.open(room)
    rooms.keep(1, "kept", None)
    rooms.keep(2, "evicted", None)
    assert (rooms.cause(1), rooms.cause(2), rooms.evicted, len(rooms)) == ("kept", "", 1, 2)


def test_reports_of_one_room_are_bounded() -> None:
    """Anybody can write to the socket."""
    rooms = opened()
    for rank in range(RANKS_LIMIT + 10):
        rooms.report(ROOM, rank)
    assert rooms.reports(ROOM) == RANKS_LIMIT
