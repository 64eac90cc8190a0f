"""One published sglang, as source files in a wheel."""

import ast
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType

from tests.pair.paths import build_dir

DOWNLOAD_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Function:
    """`used`: globals and attributes that its body mentions, as `CodeType.co_names` has them."""

    parameters: tuple[str, ...]
    used: frozenset[str]


class Wheel:
    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        self._modules: dict[str, ast.Module] = {}

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(self._archive.namelist())

    def find(self, target: str) -> ast.AST | None:
        """By dotted name: a module's member, or a class's. Inherited members are not looked for."""
        parts = target.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            file = "/".join(parts[:cut]) + ".py"
            if file in self._files:
                return _member(self._module(file), parts[cut:])
        return None

    def source(self, module: str) -> str:
        return self._archive.read(module.replace(".", "/") + ".py").decode()

    def function(self, target: str) -> Function | None:
        node = self.find(target)
        return _function(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None

    def _module(self, file: str) -> ast.Module:
        if file not in self._modules:
            self._modules[file] = ast.parse(self._archive.read(file))
        return self._modules[file]


def wheel_of(version: str) -> Wheel:
    """Downloaded once, without what it depends on."""
    folder = build_dir() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(folder.glob(f"sglang-{version}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", folder, f"sglang=={version}"], check=True, timeout=DOWNLOAD_LIMIT_S)
        found = sorted(folder.glob(f"sglang-{version}-*.whl"))
    return Wheel(found[0])


def _member(node: ast.AST, names: list[str]) -> ast.AST | None:
    for name in names:
        members = (child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == name)
        found = next(members, None)
        if found is None:
            return None
        node = found
    return node


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    is_bound = any(isinstance(each, ast.Name) and each.id == "classmethod" for each in node.decorator_list)
    node.decorator_list = []
    for argument in named:
        argument.annotation = None
    node.returns = None
    code = compile(ast.fix_missing_locations(ast.Module([node], [])), "wheel", "exec", dont_inherit=True)
    (body,) = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return Function(tuple(argument.arg for argument in named[is_bound:]), frozenset(body.co_names))
