"""Wishes: a method that is told what return follows a window can be asked for a good one.

In training, a condition says what return the data got from there on. A plan's condition does not know, so it wishes:
for the return that a share of the data, from such a state, stayed below. Where data of good and of bad policies meet,
that tells them apart; where all that differs is luck, the windows are hardly others.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kdp.keys import Clamp, Clamped, Condition
from kdp.sampler import Batch

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # quantiles that are learned; others lie in between
WIDTH = 256


class Wishing(nn.Module):
    """A method, and the quantiles of the returns from a state. A condition without a return gets the one of `level`."""

    def __init__(self, method: Any, level: float):
        super().__init__()
        self.method = method
        inputs = method.clamp.state_dim
        self.quantiles = nn.Sequential(
            *(nn.Linear(inputs, WIDTH), nn.LayerNorm(WIDTH), nn.SiLU()),
            *(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.SiLU()),
            nn.Linear(WIDTH, len(LEVELS)),
        )
        self.levels: Tensor
        self.mix: Tensor
        self.register_buffer("levels", torch.tensor(LEVELS), persistent=False)
        self.register_buffer("mix", mixed(level), persistent=False)

    @property
    def clamp(self) -> Clamp:
        return self.method.clamp

    @property
    def clamped(self) -> Clamped:
        return self.method.clamped

    @property
    def samples(self) -> int:
        return self.method.samples

    @property
    def positives(self) -> int:
        return self.method.positives

    @property
    def nfe(self) -> int:
        return self.method.nfe

    @property
    def refine(self) -> Any:
        """Where the method has it."""
        refine = self.method.refine

        def wished(windows: Tensor, condition: Condition, *rest: Any, **options: Any) -> Tensor:
            return refine(windows, self.wished(condition), *rest, **options)

        return wished

    def wished(self, condition: Condition) -> Condition:
        """The same with a return, standardised as the data's are."""
        if condition.goal is not None:
            return condition
        return Condition(condition.state, self.quantiles(condition.state) @ self.mix)

    def sample(self, condition: Condition, *rest: Any, **options: Any) -> Tensor:
        return self.method.sample(self.wished(condition), *rest, **options)

    def draw(self, count: int, n: int, generator: torch.Generator) -> Tensor:
        return self.method.draw(count, n, generator)

    def decode(self, noise: Tensor, condition: Condition) -> Tensor:
        return self.method.decode(noise, self.wished(condition))

    def cool(self, temperature: float) -> None:
        self.method.cool(temperature)

    def draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.method.draws(count, generator)

    def loss(self, batch: Batch, draws: tuple[Tensor, ...], value: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The method's, and that of the quantiles."""
        assert batch.condition.goal is not None, "in training, a condition says what return follows"
        loss, metrics = self.method.loss(batch, draws, value)
        error = pinball(self.quantiles(batch.condition.state).to(batch.windows), batch.condition.goal, self.levels)
        return loss + error, metrics | {"wish/error": error.detach()}


def pinball(guess: Tensor, seen: Tensor, levels: Tensor) -> Tensor:
    """guess (B,n) of the quantiles `levels` (n,), seen (B,1) -> (): least where they are the quantiles."""
    over = seen - guess
    return torch.maximum(levels * over, (levels - 1) * over).mean()


def mixed(level: float) -> Tensor:
    """(n,1) how much each of LEVELS counts in the quantile `level`: the two beside it, or the outermost one."""
    mix = torch.zeros(len(LEVELS), 1)
    level = min(max(level, LEVELS[0]), LEVELS[-1])
    for at, (low, high) in enumerate(pairwise(LEVELS)):
        if low <= level <= high:
            share = (level - low) / (high - low)
            mix[at], mix[at + 1] = 1 - share, share
            break
    return mix
