"""Returns with less noise, for the return model to learn from: λ-returns, by what is usual from a state.

What follows a window by chance, hundreds of steps later, says nothing of the window, and a return is mostly that. In a
λ-return what comes later than a few steps is replaced, more and more, by what is usual from the states that were
reached: a regression of the returns on states alone, made before training begins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kdp.networks import Critic
from kdp.normalize import Normalizer
from kdp.sampler import generator
from kdp.windows import Episodes

STEPS, BATCH, RATE = 2000, 1024, 1e-3
BLOCK = 1 << 15  # states at once


def lambda_returns(
    episodes: Episodes,
    normalizer: Normalizer,
    returns: Tensor,
    discount: float,
    trace: float,
    seed: int,
    steps: int | None = None,
) -> Tensor:
    """λ-returns (N,) from the returns (N,), where those are. A run of few steps fits what is usual in as few."""
    usual = fit_usual(episodes, normalizer, returns.cpu(), seed, min(steps or STEPS, STEPS))
    return traced(episodes, usual, discount, trace).to(returns.device)


def traced(episodes: Episodes, usual: Tensor, discount: float, trace: float) -> Tensor:
    """usual (N,) what is usual from each step's state -> λ-returns (N,), λ = `trace`.

    G_t = r_t + discount * ((1 - trace) * usual_{t+1} + trace * G_{t+1}). Nothing follows a real end. What followed the
    last step before a time limit is not in the data: it is what is usual there. Trace 1: returns, of the data alone
    but for that; 0: one reward and what is usual then.
    """
    last = episodes.starts[1:] - 1
    later = torch.cat([usual[1:], usual[-1:]])
    part = episodes.rewards.double() + discount * (1 - trace) * later.double()
    part[last] = torch.where(episodes.terminals[last], episodes.rewards[last].double(), usual[last].double())
    return episodes.summed(part, discount * trace)


def fit_usual(episodes: Episodes, normalizer: Normalizer, returns: Tensor, seed: int, steps: int = STEPS) -> Tensor:
    """(N,) what is usual from every state: returns (N,) by regression; the same seed, the same numbers. Computed where
    the normalizer is, and left on the CPU."""
    device = normalizer.state_mean.device
    states, mean, spread = normalizer.state(episodes.observations.to(device)), returns.mean(), returns.std()
    goals = ((returns - mean) / spread.clamp_min(1e-6)).to(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Critic(episodes.state_dim, heads=1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for step in range(steps):
        some = torch.randint(len(goals), (BATCH,), generator=generator(seed, step, 4)).to(device)
        loss = (model(states[some])[0] - goals[some]).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return torch.cat([model(some)[0] for some in states.split(BLOCK)]).cpu() * spread + mean
