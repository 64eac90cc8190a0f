"""Rendezvous: a private place, one server at a time, nobody else's files removed."""

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from sidecar.errors import ConfigError, SocketTakenError
from sidecar.shell.rendezvous import Rendezvous


def test_directory_and_socket_are_private(place: Path) -> None:
    before = os.umask(0)
    try:
        with Rendezvous(place, group=None):
            assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
            assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_group_is_let_in_when_asked_for(place: Path) -> None:
    with Rendezvous(place, group=os.getegid()):
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o750
        assert stat.S_IMODE(place.stat().st_mode) == 0o660


def test_it_is_gone_afterwards(place: Path) -> None:
    with Rendezvous(place, group=None):
        pass

    assert not place.exists()


def test_one_server_at_a_time(place: Path) -> None:
    with Rendezvous(place, group=None), pytest.raises(SocketTakenError, match="another pd-sidecar serves"):
        Rendezvous(place, group=None)
    with Rendezvous(place, group=None):
        assert place.exists()


def test_what_a_dead_server_left_is_replaced(place: Path) -> None:
    place.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    with Rendezvous(place, group=None) as served, socket.socket(socket.AF_UNIX) as client:
        served.listener.listen()
        client.connect(str(place))


@pytest.mark.parametrize("backlog", [1, 0])
def test_a_live_server_without_our_lock_is_not_replaced(place: Path, backlog: int) -> None:
    place.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as filler:
        live.bind(str(place))
        live.listen(backlog)
        if not backlog:
            filler.connect(str(place))
        with pytest.raises(SocketTakenError):
            Rendezvous(place, group=None)


def test_a_file_of_that_name_is_left_alone(place: Path) -> None:
    place.parent.mkdir(mode=0o700)
    place.write_text("precious")
    with pytest.raises(ConfigError, match="is no socket"):
        Rendezvous(place, group=None)

    assert place.read_text() == "precious"


def test_a_directory_others_can_write_is_refused(place: Path) -> None:
    place.parent.mkdir()
    place.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others"):
        Rendezvous(place, group=None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(place: Path) -> None:
    place.parent.mkdir(mode=0o700)
    os.chown(place.parent, 12345, -1)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        Rendezvous(place, group=None)


def test_a_lock_that_is_a_link_is_refused(place: Path) -> None:
    place.parent.mkdir(mode=0o700)
    Path(f"{place}.lock").symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match="cannot serve"):
        Rendezvous(place, group=None)


def test_a_path_too_long_for_a_socket_is_named(place: Path) -> None:
    with pytest.raises(ConfigError, match="choose a shorter one"):
        Rendezvous(place.parent / ("x" * 120), group=None)


def test_a_successors_socket_is_not_removed(place: Path) -> None:
    with Rendezvous(place, group=None):
        place.unlink()
        place.touch()

    assert place.exists()


@pytest.mark.parametrize("removed", ["socket", "folder"])
def test_a_place_that_was_removed_is_taken_again(place: Path, removed: str) -> None:
    """And nobody else gets it."""
    with Rendezvous(place, group=None) as first:
        assert first.is_in_place()
        place.unlink()
        if removed == "folder":
            shutil.rmtree(place.parent)
        assert not first.is_in_place()
        before = first.listener
        first.renew()
        before.close()
        first.listener.listen()

        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
        assert first.is_in_place()
        with pytest.raises(SocketTakenError):
            Rendezvous(place, group=None)
    assert not place.exists()


def test_a_place_that_another_has_taken_meanwhile_is_left_to_it(place: Path) -> None:
    with Rendezvous(place, group=None) as first:
        shutil.rmtree(place.parent)
        with Rendezvous(place, group=None) as second:
            with pytest.raises(SocketTakenError):
                first.renew()

            assert second.is_in_place()
            assert not first.is_in_place()
