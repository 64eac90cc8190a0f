"""Every way into a collective, counted: in which phase, which one, over which group, of what shape."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")

Entry = tuple[str, str, str, tuple[int, ...]]


class Collectives:
    """`entries`: (phase, name, group, shape of the tensor) in the order of this rank."""

    def __init__(self, groups: dict[str, dist.ProcessGroup]) -> None:
        self.phase = "start"
        self.entries: list[Entry] = []
        self._names = {id(group): name for name, group in groups.items()}
        self.after: Callable[[], None] | None = None
        """Called once, after the next collective."""
        for name in self.entry_points():
            setattr(dist, name, self._counted(name, getattr(dist, name)))

    @staticmethod
    def entry_points() -> list[str]:
        """All functions of torch.distributed that take a group and tensors or objects."""
        names = []
        for name in dir(dist):
            function = getattr(dist, name)
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            parameters = inspect.signature(function).parameters
            moves = any(each in parameters for each in MOVED)
            if ("group" in parameters and moves) or name in ("barrier", "monitored_barrier", *POINT_TO_POINT):
                names.append(name)
        return names

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def counted(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            group = bound.get("group")
            moved = next((bound[each] for each in MOVED if each in bound), None)
            shape = tuple(moved.shape) if isinstance(moved, torch.Tensor) else ()
            self.entries.append((self.phase, name, self._names.get(id(group), "other"), shape))
            outcome = original(*args, **kwargs)
            if name == "all_reduce" and self._is_last_of_poll(group):
                after, self.after = self.after, None
                if after is not None:
                    after()
            return outcome

        return counted

    def _is_last_of_poll(self, group: Any) -> bool:
        """sglang reduces over attention TP, then over attention CP."""
        return self._names.get(id(group)) == "attn_cp"


MOVED = (
    "tensor",
    "tensors",
    "tensor_list",
    "output_tensor",
    "input",
    "output",
    "obj",
    "object_list",
    "object_gather_list",
    "scatter_object_output_list",
    "scatter_object_input_list",
    "output_tensor_list",
    "input_tensor_list",
    "gather_list",
    "p2p_op_list",
)
