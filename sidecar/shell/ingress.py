"""The unix-stream side: rank processes connect, each stream is read by itself, and a bad one costs only itself."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import structlog

from sidecar.errors import SidecarError
from sidecar.model import Reply
from sidecar.shell.credentials import Credentials
from sidecar.shell.deaths import DeathWatch
from sidecar.shell.quiet import QuietStreams
from sidecar.shell.rendezvous import Rendezvous
from sidecar.shell.stream import RankStream, Receiver

STREAM_LIMIT = 512
LOOK_S = 2.0
"""How often it is looked whether ranks can still find the socket."""


class IngressServer:
    """`junk` counts by kind what was turned away; nothing else of a bad client is kept. `replies_spared` were not
    written to ranks that read too slowly."""

    def __init__(self, receiver: Receiver, *, uid: int, group: int | None, stream_limit: int = STREAM_LIMIT) -> None:
        self.junk: Counter[str] = Counter()
        self.accepted = 0
        self.replies_spared = 0
        self._receiver = receiver
        self._uid = uid
        self._group = group
        self._stream_limit = stream_limit
        self._streams: dict[int, RankStream] = {}
        self._server: asyncio.AbstractServer | None = None
        self._deaths = DeathWatch(self._died)
        self.quiet = QuietStreams()
        self._renewal: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_serving(self) -> bool:
        return self._server is not None

    async def start(self, rendezvous: Rendezvous) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: RankStream(self, self._receiver), sock=rendezvous.listener, backlog=1024
        )

    def look_after(self, rendezvous: Rendezvous) -> None:
        """Serves the place anew if the socket has been removed from it. Streams that are open go on."""
        if self._server is None or rendezvous.is_in_place():
            return
        log = structlog.get_logger("sidecar")
        try:
            rendezvous.renew()
        except SidecarError as error:
            log.warning("socket removed, and not served anew: ranks that come now find nobody here", reason=str(error))
            return
        log.warning("socket removed: served anew", socket=str(rendezvous.path))
        self._server.close()
        self._renewal = asyncio.get_running_loop().create_task(self.start(rendezvous))

    def stop(self) -> None:
        """No more streams, and those that are open end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._renewal is not None:
            self._renewal.cancel()
        self._deaths.stop()
        for stream in list(self._streams.values()):
            stream.end()

    def catch_up(self) -> None:
        """Reads what nobody rang for."""
        self.quiet.read_all()

    async def hear_out_the_dead(self) -> None:
        """Before the stop: a supervisor ends us right after the engine."""
        await self._deaths.hear_out()

    # -- the core's orders

    def write(self, stream: int, messages: Sequence[Reply]) -> None:
        if (known := self._streams.get(stream)) is not None:
            known.write(messages)

    def end(self, stream: int) -> None:
        if (known := self._streams.get(stream)) is not None:
            known.end()

    # -- for the streams

    def admit(self, stream: RankStream, who: Credentials) -> int | None:
        """The stream's number, or None when it is not served."""
        if who.uid not in (self._uid, 0) and self._group not in who.groups:
            self.junk["foreign_user"] += 1
            structlog.get_logger("sidecar").warning(
                "stream of another user refused", pid=who.pid, uid=who.uid, groups=sorted(who.groups)
            )
            return None
        if len(self._streams) >= self._stream_limit:
            self.junk["too_many_streams"] += 1
            return None
        self.accepted += 1
        self._streams[self.accepted] = stream
        self._deaths.know(self.accepted, who.pid)
        return self.accepted

    def closed(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self._receiver.stream_closed(stream)
            self._deaths.watch(stream)

    # -- inside

    def _died(self, stream: int) -> None:
        """What the others have done with its rooms is known first."""
        self.catch_up()
        self._receiver.process_died(stream)
