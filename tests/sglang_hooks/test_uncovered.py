from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hooks.uncovered import LOAD_BALANCE, OTHER_HOST, RUST_SERVER, TOKENIZER_WORKERS, uncovered


@pytest.mark.parametrize(
    ("args", "environ", "texts"),
    [
        ({}, {}, ()),
        ({"tokenizer_worker_num": 4}, {}, (TOKENIZER_WORKERS,)),
        ({"node_rank": 1}, {}, (OTHER_HOST,)),
        ({"dp_size": 2, "load_balance_method": "follow_bootstrap_room"}, {}, ()),
        ({"dp_size": 2, "load_balance_method": "round_robin"}, {}, (LOAD_BALANCE,)),
        ({"dp_size": 1, "load_balance_method": "round_robin"}, {}, ()),
        ({}, {"SGLANG_RUST_SERVER": "1"}, (RUST_SERVER,)),
        ({}, {"SGLANG_RUST_SERVER": "0"}, ()),
    ],
)
def test_what_a_launch_leaves_uncovered(args: dict[str, Any], environ: dict[str, str], texts: tuple[str, ...]) -> None:
    assert uncovered(SimpleNamespace(**args), environ) == texts
