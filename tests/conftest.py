"""For all tests: a bounded run of Hypothesis, repeatable and unhurried, since the machine may be busy with engines."""

import os

from hypothesis import settings

settings.register_profile("short", deadline=None, max_examples=60, derandomize=True, database=None)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("long" if os.environ.get("PD_SIDECAR_LONG") else "short")
