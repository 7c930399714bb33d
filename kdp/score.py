"""Scorers J of candidate windows: larger is better. Each is a frozen record, saved with the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    border: tuple[list[float], float, Tensor, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    """What a look-up needs: the grid in a row, within a border of unknown cells, so that a place outside of it is
    looked up like any other."""

    def __post_init__(self) -> None:
        shape = self.seen.shape
        known = self.seen.new_zeros([n + 2 for n in shape])
        known[tuple(slice(1, n + 1) for n in shape)] = self.seen
        border = (self.low.tolist(), float(self.size), (~known).flatten().float(), known.stride())
        object.__setattr__(self, "border", border)

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
        return self.unknown(places.unbind(-1)) == 0

    def unknown(self, places: Sequence[Tensor]) -> Tensor:
        """places, d times (...) -> (...) one where the data have not been, else zero: a single look-up each."""
        low, size, grid, steps = self.border
        index: Tensor | int = 0
        for at, place in enumerate(places):
            cell = ((place - low[at]) / size).floor().long().clamp(-1, self.seen.shape[at])
            index = index + steps[at] * (cell + 1)
        return grid[index]

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
        places = [windows[..., dim] for dim in self.dims]  # a last axis of two numbers is slow to compute with
        apart = torch.stack([place - goal[:, at, None, None] for at, place in enumerate(places)])
        away = apart.norm(dim=0) / self.radius
        score = -self.stride * away.clamp_max(1).sum(-1)
        if self.support is None:
            return score
        share = torch.arange(BETWEEN, device=score.device).view(-1, 1, 1, 1) / BETWEEN
        line = [torch.lerp(place[..., :-1], place[..., 1:], share) for place in places]  # d times (BETWEEN,B,K,L-1)
        return score - STRAY * self.support.unknown(line).sum((0, -1))
