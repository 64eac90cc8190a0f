"""Controls on KV writes by files in the directory PD_SHIM_CONTROL: `hold` keeps them waiting, `fail` lets them fail.

Both are looked at for every write, in the transfer worker's own thread.
"""

import importlib.util
import itertools
import os
import time
from pathlib import Path
from typing import Any

from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine

from pd_sidecar_shim.journal import note
from pd_sidecar_shim.patching import wrap

HOLD_LIMIT_S = 120.0
_numbers = itertools.count(1)


def apply() -> None:
    wrap(MooncakeTransferEngine, "batch_transfer_sync", _mooncake)
    if importlib.util.find_spec("nixl") is not None:
        from nixl._api import nixl_agent  # noqa: PLC0415 - not every venv has it

        wrap(nixl_agent, "transfer", _nixl)


def _mooncake(original: Any, engine: Any, session: str, sources: list[int], *args: Any, **kwargs: Any) -> int:
    number = next(_numbers)
    note("write_began", number=number, session=session, blocks=len(sources))
    _while_held()
    result: int = -1 if _is_set("fail") else original(engine, session, sources, *args, **kwargs)
    note("write_ended", number=number, session=session, result=result)
    return result


def _nixl(original: Any, agent: Any, handle: Any, *args: Any, **kwargs: Any) -> str:
    """Posting a write. Its end is polled for by the engine and not seen here."""
    number = next(_numbers)
    note("write_began", number=number)
    _while_held()
    result: str = "ERR" if _is_set("fail") else original(agent, handle, *args, **kwargs)
    note("write_ended", number=number, result=result)
    return result


def _is_set(name: str) -> bool:
    folder = os.environ.get("PD_SHIM_CONTROL")
    return folder is not None and Path(folder, name).exists()


def _while_held() -> None:
    deadline = time.monotonic() + HOLD_LIMIT_S
    while _is_set("hold") and time.monotonic() < deadline:
        time.sleep(0.005)
