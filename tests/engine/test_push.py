"""Stock's own pushes with PD_SIDECAR_PUSH=all and without, on sglang's own manager, in processes of their own.

`PD_SIDECAR_LONG=1` plays stock's own 30 s and 32 trials of the one that aborts.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.engine

LONG = bool(os.environ.get("PD_SIDECAR_LONG"))
LIMIT_S = 280.0
STALL_S = 30.0 if LONG else 1.5

Played = dict[str, dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def played() -> Played:
    words = ["--whole", "--trials", "32"] if LONG else ["--trials", "2"]
    command = [sys.executable, "-m", "tests.engine.push_hazards", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results: Played = json.loads(done.stdout)
    print(json.dumps(results))
    return results


def test_a_decode_back_on_its_port_is_deaf_to_stock_for_good_and_hears_the_sidecar(played: Played) -> None:
    [stock], [ours] = played["black_hole"]["stock"], played["black_hole"]["all"]

    assert (stock["before"], stock["arrived"]) == (True, 0)
    assert (ours["before"], ours["arrived"]) == (True, ours["sent"])


def test_a_dead_decode_stalls_stocks_bootstrap_thread_and_not_ours(played: Played) -> None:
    [stock], [ours] = played["stall"]["stock"], played["stall"]["all"]

    assert stock["handshake_s"] >= STALL_S
    assert ours["handshake_s"] < STALL_S / 2


def test_a_socket_closed_under_a_sender_aborts_stock_and_not_ours(played: Played) -> None:
    stock, ours = (played["closed_under_a_sender"][kind] for kind in ("stock", "all"))

    assert any(trial.get("exit") == -6 for trial in stock), stock
    assert all("exit" not in trial and not trial["blocked"] for trial in ours), ours
