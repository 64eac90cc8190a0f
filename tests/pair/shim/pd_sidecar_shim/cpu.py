"""What sglang asks of a GPU that a CPU has not."""

import importlib.util
from typing import Any

import torch
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

from pd_sidecar_shim.patching import wrap

MEMORY_CALLS = ("register_memory", "deregister_memory", "get_xfer_descs", "get_reg_descs", "prep_xfer_dlist")


class NoEvent:
    """Stands in for torch.cuda.Event: on a CPU all work is done when the call returns."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def apply() -> None:
    if torch.cuda.is_available():
        return
    torch.cuda.Event = NoEvent  # type: ignore[assignment, misc]
    torch.cuda.current_stream = lambda *_, **__: torch.cpu.current_stream()  # type: ignore[assignment]
    _no_pinned_indices()
    if importlib.util.find_spec("nixl") is not None:
        _vram_is_dram()


def _no_pinned_indices() -> None:
    """From 0.5.23 this sender may take its indices from pinned memory, which needs CUDA."""
    if hasattr(MooncakeKVSender, "supports_host_tensor_indices"):
        MooncakeKVSender.supports_host_tensor_indices = False


def _vram_is_dram() -> None:
    from nixl._api import nixl_agent  # noqa: PLC0415 - not every venv has it

    for name in MEMORY_CALLS:
        wrap(nixl_agent, name, _with_dram)


def _with_dram(original: Any, *args: Any, **kwargs: Any) -> Any:
    changed = {key: _dram(value) for key, value in kwargs.items()}
    return original(*map(_dram, args), **changed)


def _dram(value: Any) -> Any:
    return "DRAM" if isinstance(value, str) and value == "VRAM" else value
