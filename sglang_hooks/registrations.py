"""What decode endpoints have registered with, for a sidecar that has not heard it: decode registers once."""

from collections import OrderedDict
from collections.abc import Iterator

from sidecar.model import DecodeEndpoint, DecodeRegistered

LIMIT = 8192
"""As many as a sidecar remembers of one rank."""


class Registrations:
    """The last one of each endpoint, with the number of the first time. The one heard longest ago is evicted."""

    def __init__(self, *, limit: int = LIMIT) -> None:
        self.evicted = 0
        self._limit = limit
        self._last: OrderedDict[DecodeEndpoint, DecodeRegistered] = OrderedDict()

    def __iter__(self) -> Iterator[DecodeRegistered]:
        return iter(self._last.values())

    def find(self, endpoint: DecodeEndpoint) -> DecodeRegistered | None:
        return self._last.get(endpoint)

    def note(self, fact: DecodeRegistered) -> None:
        self._last[fact.endpoint] = fact
        self._last.move_to_end(fact.endpoint)
        if len(self._last) > self._limit:
            self._last.popitem(last=False)
            self.evicted += 1
