"""Standardise states and actions: fit, apply, invert. Saved with the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalizer:
    """Mean and standard deviation of states (d_s) and actions (d_a); tokens hold one state and m actions."""

    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    @classmethod
    def fit(cls, observations: Tensor, actions: Tensor) -> Normalizer:
        """observations (N,d_s), actions (N,d_a). A constant column keeps its size: it is only centred."""
        return cls(*_moments(observations), *_moments(actions))

    def state(self, s: Tensor) -> Tensor:
        return (s - self.state_mean) / self.state_std

    def unstate(self, s: Tensor) -> Tensor:
        return s * self.state_std + self.state_mean

    def goal(self, g: Tensor, dims: tuple[int, ...]) -> Tensor:
        """A goal is a few state coordinates, and is standardised as they are."""
        return (g - self.state_mean[list(dims)]) / self.state_std[list(dims)]

    def ungoal(self, g: Tensor, dims: tuple[int, ...]) -> Tensor:
        return g * self.state_std[list(dims)] + self.state_mean[list(dims)]

    def tokens(self, x: Tensor) -> Tensor:
        """x (...,D) in the dataset's units -> standardised."""
        mean, std = self.moments(x.shape[-1])
        return (x - mean) / std

    def untokens(self, x: Tensor) -> Tensor:
        """x (...,D) standardised -> in the dataset's units."""
        mean, std = self.moments(x.shape[-1])
        return x * std + mean

    def to(self, device: torch.device | str) -> Normalizer:
        return replace(self, **{k: v.to(device) for k, v in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))

    def moments(self, width: int) -> tuple[Tensor, Tensor]:
        """Means and standard deviations (width,) of a token's coordinates."""
        stride = (width - len(self.state_mean)) // len(self.action_mean)
        mean = torch.cat([self.state_mean, self.action_mean.repeat(stride)])
        return mean, torch.cat([self.state_std, self.action_std.repeat(stride)])


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = x.double().mean(0), x.double().std(0, correction=0)
    std = torch.where(std > 1e-6 * (1 + mean.abs()), std, torch.ones_like(std))
    return mean.float(), std.float()
