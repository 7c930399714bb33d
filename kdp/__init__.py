"""Keyed Drifting Policies: whole plans in one network call, learned from offline data."""

from kdp.errors import UserError
from kdp.plan import Plan, Planner
from kdp.runs import load

__version__ = "0.1.0"
__all__ = ["Plan", "Planner", "UserError", "load"]
