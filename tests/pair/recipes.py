"""What goes into an engine's venv, version by version. A version is one line in `RECIPES`.

torch has its own step: its exact release decides between a CPU build and several GB of CUDA. What names torch as a
dependency is installed without its dependencies, for the same reason.
"""

import json
from dataclasses import asdict, dataclass

TORCH = ("torch==2.13.0", "numpy")

# fmt: off
COMMON = (
    "aiohttp", "anthropic", "compressed-tensors", "einops", "fastapi", "gguf", "interegular", "IPython", "jsonschema",
    "msgspec", "numba==0.65.1", "openai-harmony==0.0.4", "orjson", "outlines==0.1.11", "packaging",
    "partial_json_parser", "pillow", "prometheus-client", "psutil", "pybase64", "pydantic", "python-multipart", "pyzmq",
    "requests", "scipy", "sentencepiece", "setproctitle", "soundfile", "tiktoken", "torchao", "tqdm", "uvicorn",
    "uvloop", "watchfiles", "xxhash", "zstandard", "dill", "llguidance>=1.7.6,<2", "regex", "python-dateutil",
)
# fmt: on

ENGINE = (
    "torchvision==0.28.0",
    "apache-tvm-ffi==0.1.11",
    "triton==3.4.0",
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
)

TRACING = ("opentelemetry-sdk>=1.27", "opentelemetry-exporter-otlp>=1.27")
"""sglang's extra `tracing`: for `--enable-trace`."""

NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")

TRANSFORMERS_5_12 = ("transformers==5.12.1", "openai==2.6.1", "tokenizers==0.22.2", "compressed-tensors==0.18.0")
TRANSFORMERS_5_19 = ("transformers==5.19.0", "tokenizers==0.23.2", "compressed-tensors==0.18.0", "sentencepiece==0.2.1")

TESTS = ("sglang-router==0.3.2", "pytest>=8.3", "pytest-asyncio>=0.24")


@dataclass(frozen=True)
class Recipe:
    """`pins` come with their dependencies, `engine_pins` without."""

    version: str
    pins: tuple[str, ...]
    engine_pins: tuple[str, ...]

    def steps(self) -> list[tuple[str, list[str]]]:
        """Title and pip arguments of each step, in order."""
        return [
            ("torch", [*TORCH]),
            ("what sglang depends on", [*COMMON, *self.pins]),
            (f"sglang {self.version}", ["--no-deps", f"sglang=={self.version}", *ENGINE, *self.engine_pins]),
            ("router and pytest", [*TESTS]),
        ]

    def text(self) -> str:
        return json.dumps([asdict(self), self.steps()])


RECIPES = {
    recipe.version: recipe
    for recipe in (
        Recipe("0.5.18", ("transformers==5.12.1", "openai==2.6.1"), ("xgrammar==0.2.1",)),
        Recipe("0.5.19", TRANSFORMERS_5_12, ("xgrammar==0.2.1",)),
        Recipe("0.5.20", TRANSFORMERS_5_12, ("xgrammar==0.2.1",)),
        Recipe("0.5.21", (*TRANSFORMERS_5_12, "sentencepiece==0.2.1"), ("xgrammar==0.2.7",)),
        Recipe("0.5.22", (*TRANSFORMERS_5_19, "openai==2.6.1"), ("xgrammar==0.2.7",)),
        Recipe("0.5.23", (*TRANSFORMERS_5_19, "openai==2.8.0"), ("xgrammar==0.2.7", "deepseek-recipe==0.2.0")),
    )
}
