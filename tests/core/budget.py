"""How long the machines run: `PD_SIDECAR_LONG=1`, as `make machines` sets it, is 2,000 examples of 100 steps."""

import os

from hypothesis import HealthCheck, settings

LONG = bool(os.environ.get("PD_SIDECAR_LONG"))
BUDGET = settings(
    max_examples=2000 if LONG else 60,
    stateful_step_count=100 if LONG else 50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
