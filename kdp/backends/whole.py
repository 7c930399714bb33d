"""A whole plan as one function of tensors: what every backend computes, compiles, records or exports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kdp.keys import Condition
from kdp.normalize import Normalizer
from kdp.score import Arrival, Scorer
from kdp.value import Worth, ranked


class WholePlan(nn.Module):
    """observation (N,d_s), noise, goal (N,d_g) -> candidates (N,K,L,D), scores (N,K), chosen (N,).

    All in the dataset's units but the noise, which is as the method draws it. Every constant is a buffer, made once,
    and nothing depends on the data: it can be traced and recorded. What all K candidates share is computed once.
    """

    def __init__(
        self,
        method: Any,
        normalizer: Normalizer,
        goal_dims: tuple[int, ...] = (),
        scorer: Scorer | None = None,
        blend: float = 0.0,
    ):
        super().__init__()
        self.method, self.goal_dims, self.blend = method, goal_dims, blend
        self.tokens, self.width = method.clamp.tokens, method.clamp.width
        self.state_mean: Tensor
        self.state_std: Tensor
        self.goal_mean: Tensor
        self.goal_std: Tensor
        self.token_mean: Tensor
        self.token_std: Tensor
        dims = list(goal_dims)
        mean, std = normalizer.moments(self.width)
        for name, tensor in {
            "state_mean": normalizer.state_mean,
            "state_std": normalizer.state_std,
            "goal_mean": normalizer.state_mean[dims],
            "goal_std": normalizer.state_std[dims],
            "token_mean": mean,
            "token_std": std,
        }.items():
            self.register_buffer(name, tensor.clone(), persistent=False)
        self.score = _score(scorer)
        self.caution = scorer.value.config.caution if isinstance(scorer, Worth) else 0.0

    def forward(self, observation: Tensor, noise: Tensor, goal: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = self.method.decode(noise, self.condition(observation, goal))  # Alg. 2, l. 1-2
        windows = self.in_units(x)
        scores = ranked(self.score(windows, x, goal), self.caution)  # l. 3-6
        return windows, scores, scores.argmax(1)

    def condition(self, observation: Tensor, goal: Tensor | None) -> Condition:
        """What is told, standardised."""
        state = (observation - self.state_mean) / self.state_std
        return Condition(state, None if goal is None else (goal - self.goal_mean) / self.goal_std)

    def in_units(self, x: Tensor) -> Tensor:
        """Standardised windows (...,L,D) -> in the dataset's units."""
        return x * self.token_std + self.token_mean

    def example(self, candidates: int, seed: int = 0, count: int = 1) -> tuple[Tensor, ...]:
        """Inputs for `count` plans, about as far from the mean as the data are: to trace with, and to compare by."""
        random = torch.Generator().manual_seed(seed)
        device = self.state_mean.device
        state = torch.randn(count, len(self.state_mean), generator=random).to(device)
        told = [state * self.state_std + self.state_mean, self.method.draw(count, candidates, random).to(device)]
        if self.goal_dims:
            goal = torch.randn(count, len(self.goal_mean), generator=random).to(device)
            told.append(goal * self.goal_std + self.goal_mean)
        return tuple(told)


def known(scorer: Scorer | None) -> bool:
    """Whether a scorer is one of ours, of which graphs can be made; any other function is only called."""
    return scorer is None or isinstance(scorer, Arrival | Worth)


def _score(scorer: Scorer | None) -> nn.Module:
    """windows (N,K,L,D), the same standardised, goal -> votes (heads,N,K)."""
    if scorer is None:
        return NoScore()
    if isinstance(scorer, Worth):
        return WorthScore(scorer)
    return _Any(scorer)


class NoScore(nn.Module):
    def forward(self, windows: Tensor, x: Tensor, goal: Tensor | None) -> Tensor:
        return (windows[None, :, :, 0, 0] > torch.inf).float()  # zeros, not a constant: that would be folded


class _Any(nn.Module):
    """A scorer that is a function like any other, whose constants are written into graphs."""

    def __init__(self, scorer: Scorer):
        super().__init__()
        self.scorer = scorer

    def forward(self, windows: Tensor, x: Tensor, goal: Tensor | None) -> Tensor:
        return self.scorer(windows, goal)[None]


class WorthScore(nn.Module):
    """value.Worth, of the standardised windows as they are, and without copies of them: a critic looks at the first
    state and action alone."""

    def __init__(self, worth: Worth):
        super().__init__()
        value = worth.value
        self.heads, self.critic = value.config.heads, value.config.scorer == "critic"
        self.network = value.q if self.critic else value.returns
        self.told = value.state_dim + value.action_dim

    def forward(self, windows: Tensor, x: Tensor, goal: Tensor | None) -> Tensor:
        told = x[:, :, 0, : self.told].reshape(-1, self.told) if self.critic else x.reshape(-1, x[0, 0].numel())
        return self.network.stack(told.expand(self.heads, -1, -1)).reshape(self.heads, len(x), -1)
