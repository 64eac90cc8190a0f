"""Of which requests, refused before they have a sender, nobody can tell decode, as this server is launched."""

from collections.abc import Mapping
from typing import Any

TOKENIZER_WORKERS = "--tokenizer-worker-num > 1: those workers load no plugins"
RUST_SERVER = "SGLANG_RUST_SERVER: its tokenizer is not Python"
OTHER_HOST = "--node-rank > 0: the tokenizer process is on another host"
LOAD_BALANCE = (
    "--load-balance-method other than follow_bootstrap_room: decode waits to hear of a DP rank, and shakes no hands"
)

ALL = (TOKENIZER_WORKERS, RUST_SERVER, OTHER_HOST, LOAD_BALANCE)


def uncovered(server_args: Any, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those of `ALL` that are so here. What this sglang does not know is not so."""

    def said(name: str, default: Any) -> Any:
        return getattr(server_args, name, default)

    method = str(said("load_balance_method", "follow_bootstrap_room")).lower()
    claims = {
        TOKENIZER_WORKERS: said("tokenizer_worker_num", 1) > 1,
        RUST_SERVER: environ.get("SGLANG_RUST_SERVER", "").lower() in {"1", "true", "yes", "y"},
        OTHER_HOST: said("node_rank", 0) > 0,
        LOAD_BALANCE: said("dp_size", 1) > 1 and not method.endswith("follow_bootstrap_room"),
    }
    return tuple(text for text, is_so in claims.items() if is_so)
