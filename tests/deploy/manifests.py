"""The overlays as kubectl renders them."""

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.pair.paths import REPO

FOLDER = REPO / "deploy" / "kubernetes"
COMPONENTS = FOLDER / "components"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())

Object = dict[str, Any]


@functools.cache
def render(folder: Path) -> tuple[Object, ...]:
    """By the kubectl of the dev extra: Debian's own is older than Kustomize's components."""
    kubectl = Path(sys.executable).with_name("kubectl")
    ended = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return tuple(yaml.load_all(ended.stdout, Loader=yaml.CSafeLoader))


def templates(manifest: Object) -> Iterator[Object]:
    """All pod templates in it, at whatever depth."""
    if isinstance(manifest.get("spec"), dict) and "containers" in manifest["spec"]:
        yield manifest
        return
    for value in manifest.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from templates(part)


def prefill_templates(overlay: str) -> list[Object]:
    found = [pod for manifest in render(FOLDER / "overlays" / overlay) for pod in templates(manifest)]
    return [pod for pod in found if pod.get("metadata", {}).get("labels", {}).get("pd-sidecar") == "prefill"]


def container(pod: Object, name: str) -> Object:
    (found,) = [init for init in pod["spec"].get("initContainers", []) if init["name"] == name]
    assert isinstance(found, dict)
    return found


def variables(of: Object) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in of.get("env", []) if "value" in entry}


def mounts(of: Object) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in of.get("volumeMounts", [])}
