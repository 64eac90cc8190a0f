"""OPT's weights for a pipeline: sglang asks the model which layers are its stage's, and only the decoder knows."""

from typing import Any

from sglang.srt.models.opt import OPTModel


def apply() -> None:
    for name in ("start_layer", "end_layer"):
        setattr(OPTModel, name, property(_of_decoder(name)))


def _of_decoder(name: str) -> Any:
    return lambda model: getattr(model.decoder, name)
