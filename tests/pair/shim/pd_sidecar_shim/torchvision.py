"""torchvision here is a CUDA build: its import fails unless the two operators it registers fakes for exist already.

A meta-path finder, installed by a .pth file, reaches every process of the venv before its first import, spawned or not.
"""

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OPERATORS = ("nms", "qnms")
_keep: list[Any] = []


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision" and not _keep:
            _define_operators()
        return None


def _define_operators() -> None:
    import torch  # noqa: PLC0415 - most processes that read the .pth file never need it

    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep.append(library)  # the definitions live as long as this object


def install() -> None:
    """May be called more than once: a venv whose lib64 is a link to lib reads its .pth files twice."""
    if not any(isinstance(finder, BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, BeforeTorchvision())
