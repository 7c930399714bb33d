"""Scorers J of candidate windows: larger is better. Each is a frozen record, saved with the run as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Scorer = Callable[[Tensor, Tensor | None], Tensor]  # windows (B,K,L,D) in the dataset's units, goals (B,d_g) -> (B,K)


@dataclass(frozen=True)
class Arrival:
    """Minus the steps that a plan spends away from the goal: soonest there, and staying there, wins."""

    dims: tuple[int, ...]
    radius: float
    stride: int

    def __call__(self, windows: Tensor, goal: Tensor | None) -> Tensor:
        assert goal is not None, "the arrival scorer needs a goal"
        away = (windows[..., list(self.dims)] - goal[:, None, None]).norm(dim=-1) / self.radius
        return -self.stride * away.clamp_max(1).sum(-1)
