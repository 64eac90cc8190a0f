"""The cells, and what each must show. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tests.pair.versions import at_least

VERSIONS = ("0.5.18", "0.5.20", "0.5.23")
BACKENDS = ("mooncake", "nixl")


@dataclass(frozen=True)
class Build:
    """One side of a pair."""

    version: str
    plugin: bool

    @property
    def name(self) -> str:
        return f"{self.version} + plugin" if self.plugin else self.version


@dataclass(frozen=True)
class Cell:
    backend: str
    prefill: Build
    decode: Build

    @property
    def name(self) -> str:
        return f"{self.backend}: P {self.prefill.name}, D {self.decode.name}"

    @property
    def is_stock(self) -> bool:
        return not (self.prefill.plugin or self.decode.plugin)

    @property
    def is_told(self) -> bool:
        """With NIXL a stock decode up to 0.5.19 reads no message about a request's end."""
        hears = self.backend != "nixl" or self.decode.plugin or at_least(self.decode.version, "0.5.20")
        return self.prefill.plugin and hears

    @property
    def gets_cause(self) -> bool:
        """Mooncake: a stock decode takes a cause from 0.5.20 on, but only from 0.5.21 on its registration tells it from
        one that a fourth frame would cost its control thread. NIXL's message has a place for it.
        """
        needed = "0.5.20" if self.backend == "nixl" else "0.5.21"
        return self.is_told and (self.decode.plugin or at_least(self.decode.version, needed))


def builds(versions: Sequence[str]) -> list[Build]:
    return [Build(version, plugin) for version, plugin in product(versions, (False, True))]


def all_cells(backend: str, versions: Sequence[str]) -> list[Cell]:
    """Of two versions the stock pair comes first: it shows whether they can run together at all."""
    return [Cell(backend, prefill, decode) for decode, prefill in product(builds(versions), builds(versions))]
