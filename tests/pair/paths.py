"""Where the pair keeps what it builds: venvs, models, logs. All of it may be deleted at any time."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PAIR = REPO / "tests" / "pair"
SHIM = PAIR / "shim"


def build_dir() -> Path:
    return Path(os.environ.get("PD_SIDECAR_BUILD_DIR", REPO / "build"))


def venv_dir(version: str) -> Path:
    return build_dir() / "venvs" / f"sglang-{version}"


def python_of(version: str) -> Path:
    return venv_dir(version) / "bin" / "python"


def files_hash(roots: Iterable[Path]) -> str:
    """Names and bytes of every source file under the roots, in a stable order."""
    digest = hashlib.sha256()
    for root in roots:
        found = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
        for path in found:
            if "__pycache__" in path.parts:
                continue
            digest.update(str(path.relative_to(REPO)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
