"""How many file descriptors there are and what they are for, worked out once at the start."""

import contextlib
import resource

from msgspec import Struct

ENOUGH = 65_536
"""libzmq keeps its sockets in a table of at most 65,535."""

OWN = 64
"""Log, listeners, event loop, libzmq's own, name look-ups."""

PER_CONNECTION = 4
"""A PUSH socket, its connection, and two for the monitor."""

PER_STREAM = 5
"""The stream, once more to be read aside from the loop, its doorbell, its memory, and the process at its other end."""

STREAMS = 400
VISITORS = 64
FEWEST = 16

SOCKETS_PER_CONNECTION = 4
"""Of libzmq: the PUSH socket, our end of its monitor, libzmq's own end, and one for those that it is still closing."""

OTHER_SOCKETS = 64


class DescriptorBudget(Struct, frozen=True, kw_only=True):
    """`connections` to decode endpoints and `streams` of ranks may be open at once, and `visitors` over HTTP."""

    limit: int
    connections: int
    streams: int
    visitors: int

    @property
    def zmq_sockets(self) -> int:
        """For ZMQ_MAX_SOCKETS."""
        return min(ENOUGH - 1, SOCKETS_PER_CONNECTION * self.connections + OTHER_SOCKETS)


def budget_of(limit: int) -> DescriptorBudget:
    """An eighth at most is for ranks, a sixteenth for HTTP; a tenth of the rest is left over for what was not thought
    of.
    """
    visitors = max(4, min(VISITORS, limit // 16))
    streams = max(FEWEST, min(STREAMS, limit // (8 * PER_STREAM)))
    free = (limit - OWN - visitors - PER_STREAM * streams) * 9 // 10
    return DescriptorBudget(
        limit=limit, connections=max(FEWEST, free // PER_CONNECTION), streams=streams, visitors=visitors
    )


def claim() -> DescriptorBudget:
    """Raises the soft limit to the hard one, as far as more are of use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return budget_of(ENOUGH if soft == resource.RLIM_INFINITY else min(soft, ENOUGH))
