"""The parsers of KV registrations out of each published sglang, run by themselves.

The very classes of the wheel, with what they use of their modules; torch, numpy and the vendors' libraries are not
needed for them.
"""

import __future__

import ast
import dataclasses
import struct
import subprocess
import sys
import typing
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sglang_hooks.messages.values import Family
from tests.pair.paths import build_dir

DOWNLOAD_LIMIT_S = 300.0
DISAGGREGATION = "sglang/srt/disaggregation"
SHARED = {
    "common/utils.py": ("unpack_list_of_buffers", "unpack_int_lists"),
    "common/staging_handler.py": ("StagingRegisterInfo",),
}
OWN = {
    Family.MOONCAKE: ("mooncake/conn.py", ("KVArgsRegisterInfo",)),
    Family.NIXL: (
        "nixl/conn.py",
        ("KV_MEM_KINDS", "_normalize_kv_mem_kinds", "_unpack_kv_mem_kinds", "KVArgsRegisterInfo"),
    ),
    Family.MORI: ("mori/conn.py", ("_unpack_mem_desc_list", "_unpack_mem_desc_lists", "KVArgsRegisterInfo")),
}


class Described:
    """In place of the vendor's descriptions (`EngineDesc`, `MemoryDesc`)."""

    @classmethod
    def unpack(cls, blob: bytes) -> str:
        return blob.decode("ascii")


@cache
def archive_of(version: str) -> zipfile.ZipFile:
    """Downloaded once, without what it depends on."""
    folder = build_dir() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"sglang-{version}-*.whl"
    if not any(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", folder, f"sglang=={version}"], check=True, timeout=DOWNLOAD_LIMIT_S)
    wheel: Path = next(iter(sorted(folder.glob(pattern))))
    return zipfile.ZipFile(wheel)


@cache
def parser_of(version: str, family: Family) -> Callable[[list[bytes]], Any]:
    """`KVArgsRegisterInfo.from_zmq` as prefill's thread calls it: behind the guard, where there is one."""
    module: dict[str, Any] = {**vars(typing), "dataclasses": dataclasses, "struct": struct, "msgspec": msgspec}
    module |= {"EngineDesc": Described, "MemoryDesc": Described, "__name__": __name__}
    file, names = OWN[family]
    for source, wanted in (*SHARED.items(), (file, names)):
        for node in _members(version, source, wanted):
            code = compile(
                ast.Module([node], []), source, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True
            )
            exec(code, module)  # noqa: S102 - the wheel's own source
    from_zmq: Callable[[list[bytes]], Any] = module["KVArgsRegisterInfo"].from_zmq
    return from_zmq if family is Family.MOONCAKE else lambda frames: from_zmq(frames[1:])


def _members(version: str, file: str, names: tuple[str, ...]) -> Iterator[ast.stmt]:
    tree = ast.parse(archive_of(version).read(f"{DISAGGREGATION}/{file}"))
    for node in tree.body:
        targets = [getattr(target, "id", None) for target in getattr(node, "targets", [])]
        if getattr(node, "name", None) in names or any(target in names for target in targets):
            yield node
