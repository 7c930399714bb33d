"""Conditions, key maps, and the clamp that makes a window start where we are (and end at the goal)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Condition:
    """What is known when a plan is drawn, standardised: state (B,d_s) and, in goal problems, goal (B,d_g)."""

    state: Tensor
    goal: Tensor | None = None

    def vector(self) -> Tensor:
        """(B, d_s + d_g): what a generator is told."""
        return self.state if self.goal is None else torch.cat([self.state, self.goal], -1)

    def to(self, device: torch.device | str) -> Condition:
        return Condition(self.state.to(device), None if self.goal is None else self.goal.to(device))

    def __getitem__(self, index: Tensor) -> Condition:
        return Condition(self.state[index], None if self.goal is None else self.goal[index])

    def __len__(self) -> int:
        return len(self.state)


KeyMap = Callable[[Condition], Tensor]  # (B conditions) -> (B, d_k); only neighbourhoods are made of keys


def state_key(condition: Condition) -> Tensor:
    """kappa(x) = state(x)[0], the paper's key."""
    return condition.state


def state_goal_key(condition: Condition) -> Tensor:
    """The current state and the goal."""
    return condition.vector()


@dataclass(frozen=True)
class ScaledKey:
    """State and goal with a weight for each coordinate: 0 leaves it out, less than 1 makes it matter less."""

    weights: tuple[float, ...]

    def __call__(self, condition: Condition) -> Tensor:
        vector = condition.vector()
        return vector * torch.tensor(self.weights, dtype=vector.dtype, device=vector.device)


@dataclass(frozen=True)
class Clamp:
    """C and its mask M. The state is written on the first token and the goal's coordinates on one chosen token."""

    tokens: int
    width: int
    state_dim: int
    goal_dims: tuple[int, ...] = ()
    goal_token: int = -1

    def __call__(self, x: Tensor, condition: Condition) -> Tensor:
        """x (B,...,L,D) -> the same with the clamped coordinates overwritten."""
        between = [1] * (x.dim() - 3)
        known = torch.zeros(len(condition), self.tokens, self.width, dtype=x.dtype, device=x.device)
        known[:, 0, : self.state_dim] = condition.state
        if self.goal_dims:
            assert condition.goal is not None, "a clamp with goal coordinates needs a goal in the condition"
            for number, dim in enumerate(self.goal_dims):  # a list of them would make a GPU wait for the CPU
                known[:, self.goal_token, dim] = condition.goal[:, number]
        known = known.view(len(condition), *between, self.tokens, self.width)
        return torch.where(self.mask(x.device), x, known)

    def mask(self, device: torch.device | str = "cpu") -> Tensor:
        """M (L,D), false where clamped."""
        free = torch.ones(self.tokens, self.width, dtype=torch.bool, device=device)
        free[0, : self.state_dim] = False
        for dim in self.goal_dims:  # by slices: a single number would be copied from the CPU
            free[self.goal_token, dim : dim + 1] = False
        return free


class Clamped(nn.Module):
    """The clamp with its constants made once: neither a plan nor a training step makes them again."""

    def __init__(self, clamp: Clamp):
        super().__init__()
        source = torch.zeros(clamp.tokens, clamp.width, dtype=torch.long)  # coordinates of the condition; 0 where free
        source[0, : clamp.state_dim] = torch.arange(clamp.state_dim)
        for number, dim in enumerate(clamp.goal_dims):
            source[clamp.goal_token, dim] = clamp.state_dim + number
        self.free: Tensor
        self.source: Tensor
        self.register_buffer("free", clamp.mask(), persistent=False)
        self.register_buffer("source", source, persistent=False)

    def forward(self, x: Tensor, condition: Condition) -> Tensor:
        """x (B,...,L,D) -> the same with the clamped coordinates overwritten."""
        known = self.known(condition)
        for _ in range(x.dim() - 3):
            known = known.unsqueeze(1)
        return torch.where(self.free, x, known)

    def known(self, condition: Condition) -> Tensor:
        """(B,L,D): what is to be written, and anything where nothing is."""
        return condition.vector()[:, self.source]
