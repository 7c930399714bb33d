"""Keyed Drifting Policies: whole plans in one network call, learned from offline data."""

import os

# Threads that wait for each other by spinning for long make training ten times slower as soon as another program
# wants a core. The OpenMP runtime reads this when torch is first imported; a value that is set already is left alone.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from kdp.errors import UserError  # noqa: E402
from kdp.plan import Plan, Planner  # noqa: E402
from kdp.runs import load  # noqa: E402

__version__ = "0.1.0"
__all__ = ["Plan", "Planner", "UserError", "load"]
