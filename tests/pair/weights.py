"""The model of all pairs: made once, cached by the text of `make_model.py`."""

import shutil
from pathlib import Path

from tests.pair.paths import PAIR, build_dir, files_hash, python_of
from tests.pair.progress import run_logged, step


def ensure_model(version: str) -> Path:
    """The folder for `--model-path`. Any engine version can make it; all can serve it."""
    maker = PAIR / "make_model.py"
    folder = build_dir() / "models" / f"opt-{files_hash([maker])[:12]}"
    if folder.exists():
        return folder
    with step("model and tokenizer"):
        unfinished = folder.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        run_logged([python_of(version), maker, unfinished], log=unfinished / "make.log", limit_s=300)
        unfinished.rename(folder)
    return folder
