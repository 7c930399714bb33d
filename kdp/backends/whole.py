"""A whole plan as one function of tensors: what every backend computes, compiles, records or exports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kdp.keys import Condition
from kdp.normalize import Normalizer
from kdp.score import BETWEEN, STRAY, Arrival, Scorer, Support
from kdp.value import Value, Worth


class WholePlan(nn.Module):
    """observation (N,d_s), noise, goal (N,d_g) -> candidates (N,K,L,D), scores (N,K), chosen (N,).

    All in the dataset's units but the noise, which is as the method draws it. Every constant is a buffer, made once,
    and nothing depends on the data: it can be traced and recorded. What all K candidates share is computed once.
    """

    def __init__(
        self, method: Any, normalizer: Normalizer, goal_dims: tuple[int, ...] = (), scorer: Scorer | None = None
    ):
        super().__init__()
        self.method, self.goal_dims = method, goal_dims
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

    def forward(self, observation: Tensor, noise: Tensor, goal: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        condition = Condition((observation - self.state_mean) / self.state_std)
        if goal is not None:
            condition = Condition(condition.state, (goal - self.goal_mean) / self.goal_std)
        x = self.method.decode(noise, condition)  # Alg. 2, l. 1-2
        windows = x * self.token_std + self.token_mean
        scores = self.score(windows, x, goal)  # l. 3-6
        return windows, scores, scores.argmax(1)

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


def _score(scorer: Scorer | None) -> nn.Module:
    if scorer is None:
        return _NoScore()
    if isinstance(scorer, Arrival):
        return _Arrival(scorer)
    if isinstance(scorer, Worth):
        return _Worth(scorer)
    return _Any(scorer)


class _NoScore(nn.Module):
    def forward(self, windows: Tensor, x: Tensor, goal: Tensor | None) -> Tensor:
        return (windows[:, :, 0, 0] > torch.inf).float()  # zeros, as many as there are: a constant could be folded


class _Any(nn.Module):
    """A scorer that is a function like any other."""

    def __init__(self, scorer: Scorer):
        super().__init__()
        self.scorer = scorer

    def forward(self, windows: Tensor, x: Tensor, goal: Tensor | None) -> Tensor:
        return self.scorer(windows, goal)


class _Worth(nn.Module):
    """value.Worth, of the standardised windows as they are, and without copies of them: a critic looks at the first
    state and action alone."""

    def __init__(self, worth: Worth):
        super().__init__()
        value = worth.value
        self.config, self.critic = value.config, value.config.scorer == "critic"
        self.network = value.q if self.critic else value.returns
        self.told = value.state_dim + value.action_dim

    def forward(self, windows: Tensor, x: Tensor, goal: Tensor | None) -> Tensor:
        return Value.score(self, x)  # type: ignore[arg-type]

    def each(self, x: Tensor) -> Tensor:
        """x (N,K,L,D) -> (heads,N,K) what each of the ensemble says."""
        told = x[:, :, 0, : self.told].reshape(-1, self.told) if self.critic else x.reshape(-1, x[0, 0].numel())
        return self.network.stack(told.expand(self.config.heads, -1, -1)).reshape(self.config.heads, len(x), -1)


class _Arrival(nn.Module):
    """score.Arrival, with the grid of known places laid out for one look-up a place."""

    dims: Tensor

    def __init__(self, arrival: Arrival):
        super().__init__()
        self.arrival = arrival
        first, last = arrival.dims[0], arrival.dims[-1]
        self.run = slice(first, last + 1) if arrival.dims == tuple(range(first, last + 1)) else None
        self.register_buffer("dims", torch.tensor(arrival.dims), persistent=False)
        self.support = None if arrival.support is None else _Support(arrival.support)

    def forward(self, windows: Tensor, x: Tensor, goal: Tensor | None) -> Tensor:
        assert goal is not None, "the arrival scorer needs a goal"
        places = windows[..., self.run] if self.run else windows.index_select(-1, self.dims)
        away = (places - goal[:, None, None]).norm(dim=-1) / self.arrival.radius
        score = -self.arrival.stride * away.clamp_max(1).sum(-1)
        return score if self.support is None else score - STRAY * self.support(places)


class _Support(nn.Module):
    """places (B,K,L,d) -> (B,K) how many of those on the way are not known.

    The grid has a border of unknown cells, so that a place outside is looked up like any other.
    """

    def __init__(self, support: Support):
        super().__init__()
        shape = support.seen.shape
        seen = support.seen.new_zeros([n + 2 for n in shape])
        seen[tuple(slice(1, n + 1) for n in shape)] = support.seen
        device = seen.device
        self.low: Tensor
        self.size: Tensor
        self.unknown: Tensor
        self.top: Tensor
        self.step: Tensor
        self.share: Tensor
        for name, tensor in {
            "low": support.low,
            "size": support.size,
            "unknown": (~seen).flatten().float(),
            "top": torch.tensor(shape, device=device),
            "step": torch.tensor(seen.stride(), device=device),
            "share": (torch.arange(BETWEEN) / BETWEEN)[:, None].to(device),
        }.items():
            self.register_buffer(name, tensor.clone(), persistent=False)

    def forward(self, places: Tensor) -> Tensor:
        line = torch.lerp(places[..., :-1, None, :], places[..., 1:, None, :], self.share)  # (B,K,L-1,BETWEEN,d)
        cell = ((line - self.low) / self.size).floor().long().clamp_min(-1).minimum(self.top) + 1
        return self.unknown[(cell * self.step).sum(-1)].sum((-1, -2))
