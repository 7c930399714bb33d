"""Scorers J of candidate windows: larger is better. Each is a frozen record, saved with the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Scorer = Callable[[Tensor, Tensor | None], Tensor]  # windows (B,K,L,D) in the dataset's units, goals (B,d_g) -> (B,K)

BETWEEN = 4  # places looked at from one token to the next
STRAY = 25.0  # a planned place where the data have never been costs as much as this many steps
SIGHT = 16  # places looked at on the way to a target
LARGEST = 1 << 24  # cells of a grid


@dataclass(frozen=True)
class Support:
    """Where the data have been: a grid of cells over the coordinates of a goal."""

    low: Tensor  # (d,) the grid's first corner
    size: Tensor  # () side of a cell
    seen: Tensor  # (n_1,...,n_d) bool

    @classmethod
    def fit(cls, places: Tensor, size: float) -> Support | None:
        """places (N,d) of the data; None where a grid would have too many cells."""
        low = places.amin(0) - size / 2
        shape = [int(n) for n in ((places.amax(0) - low) / size).long() + 1]
        if torch.tensor(shape, dtype=torch.float64).prod() > LARGEST:
            return None
        seen = torch.zeros(shape, dtype=torch.bool, device=places.device)
        seen[((places - low) / size).long().unbind(-1)] = True
        return cls(low, torch.tensor(size), seen)

    def __call__(self, places: Tensor) -> Tensor:
        """places (...,d) -> (...) whether the data have been there."""
        cell = ((places - self.low) / self.size).floor().long()
        last = torch.tensor(self.seen.shape, device=cell.device) - 1
        inside = ((cell >= 0) & (cell <= last)).all(-1)
        return inside & self.seen[cell.clamp_min(0).minimum(last).unbind(-1)]

    def between(self, here: Tensor, there: Tensor) -> Tensor:
        """here (N,d), there (N,n,d) -> (N,n) whether the data have been all along the straight way, `here` apart."""
        share = torch.arange(1, SIGHT + 1, device=here.device)[:, None] / SIGHT
        return self(torch.lerp(here[:, None, None], there[:, :, None], share)).all(-1)

    def to(self, device: torch.device | str) -> Support:
        return Support(self.low.to(device), self.size.to(device), self.seen.to(device))

    def tensors(self) -> dict[str, Tensor]:
        return {"low": self.low, "size": self.size, "seen": self.seen}


@dataclass(frozen=True)
class Arrival:
    """Minus the steps that a plan spends away from the goal: soonest there, and staying there, wins. A plan through
    places where the data have never been (a wall, say) loses to one that keeps to them."""

    dims: tuple[int, ...]
    radius: float
    stride: int
    support: Support | None = None

    def __call__(self, windows: Tensor, goal: Tensor | None) -> Tensor:
        assert goal is not None, "the arrival scorer needs a goal"
        places = windows[..., list(self.dims)]
        away = (places - goal[:, None, None]).norm(dim=-1) / self.radius
        score = -self.stride * away.clamp_max(1).sum(-1)
        if self.support is None:
            return score
        share = torch.arange(BETWEEN, device=places.device)[:, None] / BETWEEN
        line = torch.lerp(places[..., :-1, None, :], places[..., 1:, None, :], share)  # (B,K,L-1,BETWEEN,d)
        return score - STRAY * (~self.support(line)).sum((-1, -2))
