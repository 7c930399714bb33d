"""Measures of samples: how well they fit held-out windows, and whether plans go through walls."""

from __future__ import annotations

import numpy as np
import torch

from kdp.domains.domain import Domain
from kdp.methods.kdp import KDP
from kdp.plan import Planner
from kdp.sampler import Batch, Sampler


@torch.inference_mode()
def energy_score(method: KDP, batch: Batch, samples: int = 64, seed: int = 0) -> float:
    """The conditional energy score: smaller is better, and only the data's own conditional distribution is best.

    E|x - y| - E|x - x'| / 2 over samples x of a held-out window's condition and that window y, by coordinate.
    """
    free = method.clamp.mask(batch.windows.device)
    x = method.sample(batch.condition, samples, torch.Generator().manual_seed(seed))[..., free]  # (B,K,N)
    y = batch.windows[:, None][..., free]
    fit = torch.cdist(x, y).mean()
    spread = torch.cdist(x, x).sum((1, 2)).mean() / (samples * (samples - 1))
    return float((fit - spread / 2) / free.sum().sqrt())


def wall_share(planner: Planner, sampler: Sampler, domain: Domain, candidates: int = 16) -> float:
    """Share of chosen plans, from held-out starts and goals, that go through a wall."""
    assert domain.walls is not None and domain.goals is not None
    batch = sampler(1)
    states = planner.normalizer.unstate(batch.condition.state)
    goals = sampler.windows.goal(*sampler.windows.sample(len(states), torch.Generator().manual_seed(0)))
    plans = planner.plan_batch(states, goals, candidates, torch.Generator().manual_seed(0))
    return float(touches_wall(plans.best[..., :2].cpu().numpy(), np.array(domain.walls)).mean())


def touches_wall(paths: np.ndarray, walls: np.ndarray, between: int = 8) -> np.ndarray:
    """paths (N,L,2) -> (N,) whether the straight lines between planned places enter a wall's cell."""
    rows, cols = walls.shape
    share = np.linspace(0, 1, between, endpoint=False)[:, None]
    fine = paths[:, :-1, None] * (1 - share) + paths[:, 1:, None] * share
    row = np.clip(np.floor(rows / 2 - fine[..., 1]).astype(int), 0, rows - 1)
    col = np.clip(np.floor(fine[..., 0] + cols / 2).astype(int), 0, cols - 1)
    return walls[row, col].astype(bool).any((1, 2))
