"""Regression: the mean window of a condition. The floor under every method that models more than the mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kdp.keys import Clamp, Clamped, Condition
from kdp.networks import NetworkConfig, build_generator
from kdp.sampler import Batch


class BC(nn.Module):
    """KDP's network without its noise, regressed onto the data; `weight` (L,D) is zero where clamped."""

    nfe, samples, positives = 1, 1, 0

    def __init__(self, clamp: Clamp, weight: Tensor, network: NetworkConfig):
        super().__init__()
        self.clamp = clamp
        self.generator = build_generator(network, 1, clamp.told, clamp.tokens, clamp.width)
        self.clamped = Clamped(clamp)
        self.weight: Tensor
        self.register_buffer("weight", weight, persistent=False)

    def sample(self, condition: Condition, n: int, generator: torch.Generator) -> Tensor:
        """B conditions -> n times the same clamped window (B,n,L,D), standardised."""
        return self.decode(self.draw(len(condition), n, generator), condition)

    def draw(self, count: int, n: int, generator: torch.Generator) -> Tensor:
        """There is no noise: zeros (count,n,1), whose shape alone is looked at."""
        return torch.zeros(count, n, 1)

    def decode(self, noise: Tensor, condition: Condition) -> Tensor:
        """noise (B,n,1) -> the clamped window of each condition, n times (B,n,L,D)."""
        constant = condition.state.new_ones(len(condition), 1)  # where KDP has its noise
        x = self.generator(constant, condition.vector()).unflatten(-1, (self.clamp.tokens, self.clamp.width))
        return self.clamped(self.clamped.within(x), condition)[:, None].expand(-1, noise.shape[1], -1, -1)

    def cool(self, temperature: float) -> None:
        """There is no noise."""

    def draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Nothing is random in a step."""
        return ()

    def loss(self, batch: Batch, draws: tuple[Tensor, ...], value: object = None) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.decode(batch.windows.new_zeros(len(batch.windows), 1, 1), batch.condition).squeeze(1)
        return squared_error(x, batch.windows, self.weight, self.clamp.state_dim)


def squared_error(x: Tensor, y: Tensor, weight: Tensor, state_dim: int) -> tuple[Tensor, dict[str, Tensor]]:
    """x, y (...,L,D), weight (L,D) -> the weighted mean square, and its two parts for the log."""
    error = weight * (x.to(y) - y).square()
    parts = {"error/state": error[..., :state_dim], "error/action": error[..., state_dim:]}
    return error.mean(), {name: part.detach().mean() for name, part in parts.items()}
