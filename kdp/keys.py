"""Conditions, key maps, and the clamp that makes a window start where we are (and end at the goal)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Condition:
    """What is known when a plan is drawn, standardised: state (B,d_s) and, in goal problems, goal (B,d_g), or what is
    wished for in its place (kdp/wish.py)."""

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
class ReturnKey:
    """Another key, and the return that follows."""

    key: KeyMap

    def __call__(self, condition: Condition) -> Tensor:
        assert condition.goal is not None
        return torch.cat([self.key(Condition(condition.state)), condition.goal], -1)


@dataclass(frozen=True)
class Clamp:
    """What C writes, and its mask M: the state on the first token and the goal's coordinates on one chosen token."""

    tokens: int
    width: int
    state_dim: int
    goal_dims: tuple[int, ...] = ()
    goal_token: int = -1
    returns: bool = False
    """The condition says what return follows, which is in no window (kdp/wish.py)."""
    bounded: bool = False
    """C also keeps actions within the range of the data's."""

    @property
    def told(self) -> int:
        """Numbers in a condition."""
        return self.state_dim + len(self.goal_dims) + self.returns

    def mask(self, device: torch.device | str = "cpu") -> Tensor:
        """M (L,D), false where clamped."""
        free = torch.ones(self.tokens, self.width, dtype=torch.bool, device=device)
        free[0, : self.state_dim] = False
        for dim in self.goal_dims:  # by slices: a single number would be copied from the CPU
            free[self.goal_token, dim : dim + 1] = False
        return free


class Clamped(nn.Module):
    """C itself, with its constants made once: neither a plan nor a training step makes them again."""

    def __init__(self, clamp: Clamp):
        super().__init__()
        self.goals, self.state_dim = bool(clamp.goal_dims), clamp.state_dim
        source = torch.zeros(clamp.tokens, clamp.width, dtype=torch.long)  # coordinates of the condition; 0 where free
        source[0, : clamp.state_dim] = torch.arange(clamp.state_dim)
        for number, dim in enumerate(clamp.goal_dims):
            source[clamp.goal_token, dim] = clamp.state_dim + number
        self.free: Tensor
        self.source: Tensor
        self.register_buffer("free", clamp.mask(), persistent=False)
        self.register_buffer("source", source, persistent=False)
        self.low: Tensor | None
        self.high: Tensor | None
        for name, end in (("low", -torch.inf), ("high", torch.inf)):
            ends = torch.full((clamp.tokens, clamp.width), end) if clamp.bounded else None  # whole: quick to compare
            self.register_buffer(name, ends)

    def bound(self, low: Tensor, high: Tensor) -> None:
        """From now on actions are kept between these (d_a,), standardised; the same for every action of a token."""
        assert self.low is not None and self.high is not None
        for ends, values in ((self.low, low), (self.high, high)):
            ends[:, self.state_dim :] = values.repeat((ends.shape[1] - self.state_dim) // len(values))

    def within(self, x: Tensor, limit: float = torch.inf) -> Tensor:
        """x (...,L,D) -> the same with actions in the data's range, where they are to be kept there, and no coordinate
        further than `limit` from zero. Gradients pass as if nothing had been done: what lies outside can come back."""
        if self.low is None or self.high is None:
            return x if limit == torch.inf else x.clamp(-limit, limit)
        kept = x.clamp(self.low.clamp_min(-limit), self.high.clamp_max(limit))
        return kept.detach() + (x - x.detach()) if torch.is_grad_enabled() else kept

    def forward(self, x: Tensor, condition: Condition) -> Tensor:
        """x (B,...,L,D) -> the same with the clamped coordinates overwritten."""
        known = self.known(condition)
        for _ in range(x.dim() - 3):
            known = known.unsqueeze(1)
        return torch.where(self.free, x, known)

    def known(self, condition: Condition) -> Tensor:
        """(B,L,D): what is to be written, and anything where nothing is."""
        assert condition.goal is not None or not self.goals, (
            "a clamp with goal coordinates needs a goal in the condition"
        )
        return condition.vector()[:, self.source]
