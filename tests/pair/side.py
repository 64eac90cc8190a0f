"""How one server of a pair is launched: the choices of a test, turned into a command line and an environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tests.pair.paths import python_of

Role = Literal["prefill", "decode"]
SHIM = "pd_sidecar_shim"
PLUGIN = "pd_sidecar"
WITHOUT_SIDECAR = {"PD_SIDECAR_DISABLE", "PD_SIDECAR_EMBEDDED", "PD_SIDECAR_SOCKET"}
NOT_INHERITED = ("SGLANG_", "PD_S", "PYTHON", "MC_", "GLOO_", "OMP_")


@dataclass(frozen=True, kw_only=True)
class Side:
    """`timeout_s` is sglang's waiting timeout and bootstrap timeout; it takes whole seconds, and 300 for anything else.

    `args` and `env` come last and win.
    """

    role: Role
    sglang: str = "0.5.18"
    backend: str = "mooncake"
    plugin: bool = True
    tp: int = 1
    pp: int = 1
    overlap: bool = True
    timeout_s: int = 40
    max_total_tokens: int = 200_000
    context_length: int = 131_072
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.tp * self.pp

    @property
    def starts_sidecar(self) -> bool:
        """At the socket that its ground gave it."""
        return self.plugin and self.role == "prefill" and not self.env.keys() & WITHOUT_SIDECAR


@dataclass(frozen=True)
class PairSpec:
    prefill: Side
    decode: Side
    router: bool = False

    @classmethod
    def of(
        cls,
        *,
        prefill: Mapping[str, Any] | None = None,
        decode: Mapping[str, Any] | None = None,
        router: bool = False,
        **both: Any,
    ) -> "PairSpec":
        """Fields of `Side` for both servers, and those in which one of them differs."""
        shared = Side(role="prefill", **both)
        return cls(replace(shared, **(prefill or {})), replace(shared, role="decode", **(decode or {})), router)


@dataclass(frozen=True)
class Ports:
    http: int
    bootstrap: int
    torch: int


def command_line(side: Side, model: Path, ports: Ports) -> list[str]:
    words = [str(python_of(side.sglang)), "-m", "sglang.launch_server", "--model-path", str(model)]
    words += ["--host", "127.0.0.1", "--port", str(ports.http), "--nccl-port", str(ports.torch)]
    words += ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    words += ["--skip-server-warmup"]
    # The fraction only bounds the pool. sglang takes what others allocate while it starts for its own: leave it room.
    words += ["--mem-fraction-static", "0.6", "--max-total-tokens", str(side.max_total_tokens)]
    words += ["--context-length", str(side.context_length)]
    words += ["--tp-size", str(side.tp), "--pp-size", str(side.pp)]
    words += ["--disaggregation-mode", side.role, "--disaggregation-transfer-backend", side.backend]
    if side.role == "prefill":
        words += ["--disaggregation-bootstrap-port", str(ports.bootstrap)]
    else:
        words += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]  # the default pins CUDA memory
    if not side.overlap:
        words.append("--disable-overlap-schedule")
    return [*words, *side.args]


def environment(side: Side) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    env |= {
        "MC_FORCE_TCP": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "SGLANG_HOST_IP": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "THP_MEM_ALLOC_ENABLE": "1",  # torch in huge pages: the kernel ends a killed engine in a tenth of the time
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        # How often its HTTP process looks whether a client has gone: 4 s by default, in which a fast machine answers.
        "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": "1",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(side.timeout_s),
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(side.timeout_s),
        "SGLANG_PLUGINS": f"{PLUGIN},{SHIM}" if side.plugin else SHIM,
        "PD_SHIM_ROLE": side.role,
    }
    if side.tp > 1:
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(n % (os.cpu_count() or 1)) for n in range(side.tp))
    return env | dict(side.env)
