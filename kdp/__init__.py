"""Keyed Drifting Policies: whole plans in one network call, learned from offline data."""

import os
from typing import TYPE_CHECKING, Any

# Threads that wait for each other by spinning for long make training ten times slower as soon as another program
# wants a core. The OpenMP runtime reads this when torch is first imported; a value that is set already is left alone.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from kdp.errors import UserError  # noqa: E402
from kdp.record import Plan  # noqa: E402

if TYPE_CHECKING:
    from kdp.plan import Planner
    from kdp.runs import load

__version__ = "0.1.0"
__all__ = ["Plan", "Planner", "UserError", "load"]


def __getattr__(name: str) -> Any:
    """What needs PyTorch is imported when it is asked for: an exported planner does without."""
    if name == "Planner":
        from kdp.plan import Planner

        return Planner
    if name == "load":
        from kdp.runs import load

        return load
    raise AttributeError(f"module 'kdp' has no attribute {name!r}")
