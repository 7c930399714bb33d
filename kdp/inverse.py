"""A small inverse-dynamics model: from where we are and where the plan wants us a few steps later, to the action.

It is fitted to the dataset before training begins, and serves twice: as the `inverse` executor, which needs no law
of a domain's own, and to relabel the dataset's actions, so that a plan's own actions mean what its states say.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from kdp.normalize import Normalizer
from kdp.sampler import generator
from kdp.windows import Episodes

STEPS, BATCH, WIDTH, RATE = 2000, 1024, 128, 2e-3
BLOCK = 1 << 15  # states at once


class InverseModel(nn.Module):
    """state, target (N,d_s) in the dataset's units, the target `gap` steps ahead -> actions (N,d_a).

    As an executor it is given targets `ahead` steps ahead. More than the gap hurries: what takes the plan `ahead` steps
    is tried in `gap`, as a tracking law does that looks ahead. Demonstrators with noise on their actions dawdle.
    """

    def __init__(self, normalizer: Normalizer, gap: int, ahead: int | None = None):
        super().__init__()
        self.normalizer, self.gap, self.ahead = normalizer, gap, gap if ahead is None else ahead
        state_dim, action_dim = len(normalizer.state_mean), len(normalizer.action_mean)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", torch.full((action_dim,), -torch.inf))  # of the data's actions
        self.register_buffer("high", torch.full((action_dim,), torch.inf))
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

    @torch.no_grad()
    def within(self, state: Tensor, target: Tensor) -> Tensor:
        """The same for any number of states, kept within the range of the data's actions."""
        blocks = zip(state.split(BLOCK), target.split(BLOCK), strict=True)
        return torch.cat([self(here, there) for here, there in blocks]).clamp(self.low, self.high)


def fit_inverse(
    episodes: Episodes, normalizer: Normalizer, gap: int, seed: int, steps: int = STEPS, ahead: int | None = None
) -> InverseModel:
    """Regression of actions on pairs of states `gap` steps apart, within one episode; the same seed, the same model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = InverseModel(normalizer, gap, ahead).to(episodes.steps.device)
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
    model.low, model.high = episodes.actions.amin(0), episodes.actions.amax(0)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def relabelled(episodes: Episodes, model: InverseModel) -> Episodes:
    """The same episodes with the actions that lead, on average, from each state to the one `gap` steps later: the noise
    on the data's actions is gone."""
    first = torch.arange(len(episodes), device=episodes.steps.device)
    later = (first + model.gap).minimum(episodes.last_of(first))
    actions = model.within(episodes.observations, episodes.observations[later])
    return replace(episodes, steps=torch.cat([episodes.observations, actions], 1))
