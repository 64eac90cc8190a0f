"""Who may come in, on the real process, with real users: the file modes keep strangers out, SO_PEERCRED checks the
rest."""

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

from sidecar.wire.ingress import encode
from tests.shell.scene import LIMIT_S, Rank, hello
from tests.shell.test_process import sidecar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

STRANGER, GROUP, OTHER_GROUP = 54_321, 54_322, 54_323

SAY_HELLO = """
import os, socket, sys
os.setgroups([int(gid) for gid in sys.argv[6:]]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[3]))
sys.path.insert(0, sys.argv[4])
stream = socket.socket(socket.AF_UNIX)
stream.settimeout(10)
try:
    stream.connect(sys.argv[1])
    stream.sendall(bytes.fromhex(sys.argv[5]))
    print("welcome" if b"welcome" in stream.recv(4096) else "sent away")
except PermissionError:
    print("not let near")
except ConnectionError:
    print("sent away")
"""


async def hello_of(place: Path, *, uid: int, gid: int, others: tuple[int, ...] = ()) -> str:
    said = encode(hello(f"p{uid}")).hex()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", SAY_HELLO, str(place), str(gid), str(uid), ".", said, *map(str, others)),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    return out.decode().strip()


def modes(path: Path) -> tuple[int, int]:
    found = path.stat()
    return stat.S_IMODE(found.st_mode), found.st_gid


def open_to_all(place: Path) -> None:
    place.parent.chmod(0o755)
    place.chmod(0o666)


async def test_without_a_group_strangers_do_not_get_near(place: Path) -> None:
    place.parent.parent.chmod(0o755)
    async with sidecar(place, "--admin", "off"):
        assert await hello_of(place, uid=STRANGER, gid=GROUP) == "not let near"
        assert [modes(path)[0] for path in (place.parent, place)] == [0o700, 0o600]
        rank = await Rank.join(place)
        await rank.leave()


async def test_a_group_is_let_in_and_no_other(place: Path) -> None:
    place.parent.parent.chmod(0o755)
    async with sidecar(place, "--admin", "off", "--socket-group", str(GROUP)):
        assert await hello_of(place, uid=STRANGER, gid=GROUP) == "welcome"
        assert await hello_of(place, uid=STRANGER, gid=OTHER_GROUP) == "not let near"
        assert await hello_of(place, uid=STRANGER, gid=OTHER_GROUP, others=(GROUP,)) == "welcome"
        assert [modes(path) for path in (place.parent, place)] == [(0o750, GROUP), (0o660, GROUP)]


async def test_peer_credentials_count_where_the_modes_have_been_opened(place: Path) -> None:
    """Somebody made the socket reachable for all: a stranger is sent away all the same, and the others stay served."""
    place.parent.parent.chmod(0o755)
    async with sidecar(place, "--admin", "off"):
        rank = await Rank.join(place)
        open_to_all(place)

        assert await hello_of(place, uid=STRANGER, gid=GROUP, others=(OTHER_GROUP,)) == "sent away"
        rank.opened(1)
        await rank.accepted()
        await rank.leave()
