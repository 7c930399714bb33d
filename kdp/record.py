"""A plan as a record, and the checks of what it is asked for: numpy only, so that a robot needs no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kdp.errors import UserError

FAINT = 0.05  # of a blend: scores that differ by less than this hardly count, in units of the spread of all the returns


@dataclass(frozen=True)
class Plan:
    """One decision, in the dataset's units."""

    best: np.ndarray  # (L,D) the window to be followed, state block first: the chosen one, or all K blended
    scores: np.ndarray  # (K,); zeros where there is no scorer
    chosen: int  # the best candidate's number
    state_dim: int
    action_dim: int
    latency_s: float
    fetch: Callable[[], np.ndarray]  # all the windows, from where they were computed: a GPU, perhaps

    @cached_property
    def candidates(self) -> np.ndarray:
        """(K,L,D), fetched when first asked for: a robot follows one of them."""
        return self.fetch()

    def __getstate__(self) -> dict[str, Any]:
        return {"candidates": self.candidates} | {k: v for k, v in vars(self).items() if k != "fetch"}

    @property
    def states(self) -> np.ndarray:
        """(L,d_s) planned states, one a token."""
        return self.best[:, : self.state_dim]

    @property
    def actions(self) -> np.ndarray:
        """(H,d_a) planned actions, one a step: the stride undone."""
        return self.best[:, self.state_dim :].reshape(-1, self.action_dim)


def followed(candidates: np.ndarray, scores: np.ndarray, chosen: int, blend: float) -> np.ndarray:
    """candidates (K,L,D), scores (K,) -> (L,D): the chosen one or, with a blend, plan.Plans.best's mean of all."""
    if not blend:
        return candidates[chosen]
    weight = np.exp(blend * (scores - scores[chosen]) / (scores.std() + FAINT))
    return np.tensordot((weight / weight.sum()).astype(candidates.dtype), candidates, 1)


def asked(observation: Any, goal: Any, state_dim: int, goal_dim: int) -> tuple[np.ndarray, np.ndarray | None]:
    """What a plan is asked for, checked: observation (1,d_s) and, in goal problems, goal (1,d_g)."""
    row = _row("observation", observation, state_dim)
    if not goal_dim:
        if goal is not None:
            raise UserError("this run was trained without goals; leave the goal out.")
        return row, None
    if goal is None:
        raise UserError(f"this run plans toward a goal of {goal_dim} numbers; got none. Give one.")
    return row, _row("goal", goal, goal_dim)


def check_candidates(candidates: int) -> None:
    if candidates < 1:
        raise UserError(f"candidates must be 1 or more; got {candidates}.")


def _row(name: str, value: Any, size: int) -> np.ndarray:
    row = np.array(value, np.float32)  # of its own: what is given may not be ours to share
    if row.shape != (size,):
        raise UserError(f"{name} must be {size} numbers; got shape {row.shape}.")
    if not all(map(math.isfinite, row.tolist())):  # a few numbers: sooner than numpy
        raise UserError(f"{name} must be finite; got {row.tolist()}.")
    return row[None]
