"""A small inverse-dynamics model: from where we are and where the plan wants us a few steps later, to the action.

It is the `inverse` executor of domains without a tracking law of their own, fitted to the dataset when training ends.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kdp.normalize import Normalizer
from kdp.sampler import generator
from kdp.windows import Episodes

STEPS, BATCH, WIDTH, RATE = 2000, 1024, 128, 2e-3


class InverseModel(nn.Module):
    """state, target (N,d_s) in the dataset's units, the target `gap` steps ahead -> actions (N,d_a)."""

    def __init__(self, normalizer: Normalizer, gap: int):
        super().__init__()
        self.normalizer, self.gap = normalizer, gap
        state_dim, action_dim = len(normalizer.state_mean), len(normalizer.action_mean)
        self.layers = nn.Sequential(
            nn.Linear(2 * state_dim, WIDTH),
            nn.SiLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.SiLU(),
            nn.Linear(WIDTH, action_dim),
        )

    def forward(self, state: Tensor, target: Tensor) -> Tensor:
        here, there = self.normalizer.state(state), self.normalizer.state(target)
        action = self.layers(torch.cat([here, there - here], -1))
        return action * self.normalizer.action_std + self.normalizer.action_mean


def fit_inverse(episodes: Episodes, normalizer: Normalizer, gap: int, seed: int, steps: int = STEPS) -> InverseModel:
    """Regression of actions on pairs of states `gap` steps apart, within one episode; the same seed, the same model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = InverseModel(normalizer, gap).to(episodes.steps.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for step in range(steps):
        first = torch.randint(len(episodes), (BATCH,), generator=generator(seed, step, 3)).to(episodes.steps.device)
        later = (first + gap).minimum(episodes.last_of(first))
        action = model(episodes.observations[first], episodes.observations[later])
        loss = ((action - episodes.actions[first]) / normalizer.action_std).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval().requires_grad_(False)
