"""The command line, called in this process."""

import asyncio
import os
import sys

import pytest

from sidecar.cli import main
from sidecar.detach import Caller
from tests.shell.scene import LIMIT_S


class Command:
    """Gives exit code, stdout and stderr. Variables of whoever runs the tests are not seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        for name in os.environ:
            if name.startswith("PD_SIDECAR_"):
                monkeypatch.delenv(name)
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["pd-sidecar", *arguments])
        code: object = 0
        try:
            main(Caller())
        except SystemExit as end:
            code = end.code
        out, err = self._capsys.readouterr()
        assert isinstance(code, int)
        return code, out, err

    async def aside(self, *arguments: str) -> tuple[int, str, str]:
        """While the loop serves."""
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.to_thread(self, *arguments)
