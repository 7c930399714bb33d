"""Measures of samples: how well they fit held-out windows, how much they differ, and whether they go through walls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdp.bench.evaluate import Episode
from kdp.domains.domain import Domain
from kdp.domains.toy import THREE, TWO, Toy
from kdp.keys import Clamp
from kdp.plan import Planner
from kdp.sampler import Sampler
from kdp.windows import Windows

SAMPLES, NEIGHBOURS = 64, 16
AT_ONCE = 16_384  # windows drawn in one call
TOYS = {"toy": TWO, "toy-three": THREE}
CONTEXTS = (-0.8, 0.0, 0.8)  # where the toys' modes are counted


@torch.inference_mode()
def held_out_measures(planner: Planner, domain: Domain, windows: Windows, conditions: int) -> dict[str, Any]:
    """Samples of so many held-out conditions, against the windows that followed them and their nearest neighbours."""
    batch = Sampler(windows, planner.normalizer, domain.key, conditions, NEIGHBOURS, 1, table=400 * conditions)(0)
    assert batch.positives is not None
    x = planner.sample(batch.condition, SAMPLES, torch.Generator().manual_seed(0))
    free = Clamp(windows.tokens, windows.width, planner.state_dim, planner.goal_dims).mask(x.device)
    first = slice(planner.state_dim, planner.state_dim + planner.action_dim)
    measured = {
        "energy_score": energy_score(x[..., free], batch.windows[:, free]),
        "diversity": diversity(x[:, :, 0, first]),
        "data_diversity": diversity(batch.positives[:, :, 0, first]),
    }
    toy = TOYS.get(domain.name)
    return measured | ({"near": None, "shares": None} if toy is None else modes(planner, toy))


def energy_score(x: Tensor, y: Tensor) -> float:
    """x (B,K,N) samples of B conditions, y (B,N) the windows that followed them. Smaller is better, and only the data's
    own conditional distribution is best: E|x - y| - E|x - x'| / 2, by coordinate."""
    count = x.shape[1]
    fit = torch.cdist(x, y[:, None]).mean()
    spread = torch.cdist(x, x).sum((1, 2)).mean() / (count * (count - 1))
    return float((fit - spread / 2) / x.shape[2] ** 0.5)


def diversity(actions: Tensor) -> float:
    """actions (B,K,d_a) of K windows of B conditions -> their standard deviation, mean over conditions and d_a."""
    return float(actions.std(1).mean())


def modes(planner: Planner, toy: Toy) -> dict[str, Any]:
    """Share of samples near a mode (worst context) and the modes' shares (mean over contexts)."""
    near, shares = [], []
    for context in CONTEXTS:
        plan = planner.plan(toy.start(context), candidates=1000)
        mode = toy.nearest_mode(plan.candidates, context)
        near.append(float((mode >= 0).mean()))
        shares.append([float((mode == m).mean()) for m in range(len(toy.modes))])
    return {"near": min(near), "shares": np.mean(shares, 0).round(3).tolist()}


def on_the_way(played: list[Episode], count: int) -> tuple[np.ndarray, np.ndarray]:
    """At least `count` states (N,d_s) of these episodes, as many of each, and their goals (N,d_g): the start, and
    evenly from there until the goal is reached, or to the end where it is not."""
    each = -(-count // len(played))
    states, goals = [], []
    for episode in played:
        last = len(episode.states) - 1 if episode.steps_to_success is None else episode.steps_to_success
        assert episode.goal is not None
        states.append(episode.states[np.linspace(0, last, each, endpoint=False).astype(int)])
        goals.append(np.repeat(episode.goal[None], each, 0))
    return np.concatenate(states), np.concatenate(goals)


def wall_share(planner: Planner, walls, states: np.ndarray, goals: np.ndarray, candidates: int) -> float:
    """Share of the chosen plans, from states (N,d_s) to goals (N,d_g), that go through a wall."""
    random = torch.Generator().manual_seed(0)
    size = max(1, AT_ONCE // candidates)
    touched = []
    for at in range(0, len(states), size):
        here, there = (
            torch.as_tensor(x[at : at + size], dtype=torch.float32, device=planner.device) for x in (states, goals)
        )
        best = planner.plan_batch(here, there, candidates, random).best
        touched.append(touches_wall(best[..., list(planner.goal_dims[:2])].cpu().numpy(), np.array(walls)))
    return float(np.concatenate(touched).mean())


def touches_wall(paths: np.ndarray, walls: np.ndarray, between: int = 8) -> np.ndarray:
    """paths (N,L,2) -> (N,) whether the straight lines between planned places enter a wall's cell."""
    rows, cols = walls.shape
    share = np.linspace(0, 1, between, endpoint=False)[:, None]
    fine = paths[:, :-1, None] * (1 - share) + paths[:, 1:, None] * share
    row = np.clip(np.floor(rows / 2 - fine[..., 1]).astype(int), 0, rows - 1)
    col = np.clip(np.floor(fine[..., 0] + cols / 2).astype(int), 0, cols - 1)
    return walls[row, col].astype(bool).any((1, 2))
