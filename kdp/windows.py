"""Episodes and the windows cut from them.

Letters, used everywhere: H steps in a window, m steps in a token (the stride), L = H/m tokens, D = d_s + m*d_a token
width (state first, then the m actions that follow it), B windows in a batch.

    step     0   1   2   3   4   5   6   7            H = 8, m = 4, L = 2
    token    [s0 a0  a1  a2  a3] [s4 a4  a5  a6  a7]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kdp.errors import UserError


@dataclass(frozen=True)
class Episodes:
    """A dataset: its steps one after the other, in one float32 copy, and where each episode starts."""

    steps: Tensor  # (N, d_s + d_a)
    rewards: Tensor  # (N,)
    terminals: Tensor  # (N,) bool: a real end, after which there is nothing; a time limit is not one
    starts: Tensor  # (E + 1,) the first step of each episode, then N
    state_dim: int
    name: str = "episodes"

    @classmethod
    def from_arrays(
        cls,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminals: np.ndarray,
        timeouts: np.ndarray,
        name: str = "episodes",
    ) -> Episodes:
        """Flat arrays of N steps; an episode ends after a terminal, after a timeout, and where the data end."""
        count, state_dim = observations.shape
        steps = np.empty((count, state_dim + actions.shape[1]), np.float32)
        steps[:, :state_dim], steps[:, state_dim:] = observations, actions
        ends = np.flatnonzero(np.asarray(terminals, bool) | np.asarray(timeouts, bool)) + 1
        starts = np.unique(np.concatenate([[0], ends, [count]]))
        return cls(
            torch.from_numpy(steps),
            torch.from_numpy(np.asarray(rewards, np.float32)),
            torch.from_numpy(np.asarray(terminals, bool)),
            torch.from_numpy(starts),
            state_dim,
            name,
        )

    @property
    def observations(self) -> Tensor:
        return self.steps[:, : self.state_dim]

    @property
    def actions(self) -> Tensor:
        return self.steps[:, self.state_dim :]

    @property
    def lengths(self) -> Tensor:
        return self.starts.diff()

    @property
    def action_dim(self) -> int:
        return self.steps.shape[1] - self.state_dim

    def __len__(self) -> int:
        return len(self.steps)

    def to(self, device: torch.device | str) -> Episodes:
        """The same on another device: training reads its batches from where it computes."""
        steps, rewards, terminals = self.steps.to(device), self.rewards.to(device), self.terminals.to(device)
        return replace(self, steps=steps, rewards=rewards, terminals=terminals, starts=self.starts.to(device))

    def last_of(self, index: Tensor) -> Tensor:
        """The last step of the episode that each step belongs to."""
        return self.starts[torch.searchsorted(self.starts, index, right=True)] - 1

    def returns_to_go(self, discount: float) -> Tensor:
        """(N,) discounted sum of rewards from each step to the end of its episode."""
        return self.summed(self.rewards, discount)

    def summed(self, numbers: Tensor, discount: float) -> Tensor:
        """(N,) discounted sums of these numbers (N,) from each step to the end of its episode."""
        out = numbers.double().numpy().copy()
        rank = np.arange(len(out)) - np.repeat(self.starts[:-1].numpy(), self.lengths.numpy())
        back = np.repeat(self.lengths.numpy(), self.lengths.numpy()) - 1 - rank  # steps left in the episode
        order = np.argsort(back, kind="stable")
        bounds = np.searchsorted(back[order], np.arange(1, back.max() + 2))
        for lo, hi in zip(bounds[:-1], bounds[1:], strict=True):  # every episode's k-th last step at once
            out[order[lo:hi]] += discount * out[order[lo:hi] + 1]
        return torch.from_numpy(out.astype(np.float32))

    def split(self, holdout: float, seed: int = 0) -> tuple[Episodes, Episodes]:
        """Whole episodes, at random: (train, held out)."""
        count = len(self.starts) - 1
        order = np.random.default_rng(seed).permutation(count)
        cut = max(1, round(holdout * count))
        if cut >= count:
            raise UserError(f"holding out {holdout:.0%} of {count} episodes leaves none to train on; hold out fewer.")
        return self._pick(np.sort(order[cut:])), self._pick(np.sort(order[:cut]))

    def _pick(self, which: np.ndarray) -> Episodes:
        starts = self.starts.tolist()
        keep = torch.cat([torch.arange(starts[e], starts[e + 1]) for e in which])
        first = torch.cat([torch.zeros(1, dtype=torch.long), self.lengths[torch.from_numpy(which)].cumsum(0)])
        return replace(
            self, steps=self.steps[keep], rewards=self.rewards[keep], terminals=self.terminals[keep], starts=first
        )


class Outcomes(NamedTuple):
    """What followed each step of a dataset, (N,) each."""

    reward: Tensor  # discounted sum over the next steps
    later: Tensor  # the step after them
    discount: Tensor  # of what comes from there on; zero after a real end
    known: Tensor  # zero at a time limit's last step, after which nothing was written down; else one
    returns: Tensor  # discounted sum over all the steps to come

    @classmethod
    def of(cls, episodes: Episodes, discount: float, steps: int = 1) -> Outcomes:
        """Over `steps` steps, fewer at the end of an episode. A real end is followed by nothing. A time limit is not an
        end: what its last state is worth is not known from the data, and for the returns the episode is thought to
        go on as it was on average."""
        first = torch.arange(len(episodes))
        last = episodes.last_of(first)
        ends = episodes.terminals[last]
        count = (last - first + ends.long()).clamp_max(steps)  # rewards before the later state, or the end
        reward = torch.zeros(len(episodes), dtype=torch.float64)
        for step in range(steps):
            here = episodes.rewards[(first + step).minimum(last)].double()
            reward += torch.where(step < count, discount**step * here, 0.0)
        over = ends & (first + count > last)
        later = torch.where(over, last, first + count)
        total = torch.zeros(len(episodes.lengths), dtype=torch.float64)
        which = torch.repeat_interleave(torch.arange(len(total)), episodes.lengths)
        average = total.index_add(0, which, episodes.rewards.double()) / episodes.lengths
        beyond = torch.where(ends, 0.0, discount ** (last - first + 1) * average[which] / (1 - discount))
        returns = episodes.returns_to_go(discount) + beyond
        left = torch.where(over, 0.0, discount**count)
        return cls(reward.float(), later, left.float(), (count > 0).float(), returns.float())

    def to(self, device: torch.device | str) -> Outcomes:
        return Outcomes(*(part.to(device) for part in self))


def favoured(episodes: Episodes, favour: float) -> Tensor:
    """(N,) the sums, up to 1, of the chances that windows are drawn with. Those of the best episode have exp(favour)
    times the chance of the worst's, and those in between by their rank, so that whatever the returns are, about
    2 / favour of the data count. An episode that was cut short, and did not end by itself, is thought to go on as it
    was on average, for as long as the longest."""
    lengths, last = episodes.lengths, episodes.starts[1:] - 1
    which = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    worth = torch.zeros(len(lengths), dtype=torch.float64).index_add(0, which, episodes.rewards.double())
    worth = torch.where(episodes.terminals[last], worth, worth * lengths.max() / lengths)
    _, level = worth.unique(return_inverse=True)  # equal returns, equal chances
    steps = torch.zeros(int(level.max()) + 1, dtype=torch.float64).index_add(0, level, lengths.double())
    rank = (steps.cumsum(0) - steps / 2) / len(episodes)  # the share of all steps that is worse
    sums = (favour * (rank - 1))[level][which].exp().cumsum(0)
    return sums / sums[-1]


@dataclass(frozen=True)
class Goals:
    """Hindsight goals: the goal of a window is a place it comes to, and from then on the window stays there."""

    dims: tuple[int, ...]
    """State coordinates that make a goal."""
    still: tuple[int, ...] = ()
    """State coordinates that are zero at rest (velocities)."""


Reach = Callable[[Tensor, Tensor], Tensor]  # states (N,d_s) and those wanted a token later (N,d_s) -> actions (N,d_a)


class Windows:
    """All windows of a dataset by their first step. Every step starts one: a window that would run past the end of
    its episode repeats the last step instead (so an episode of T steps has T windows).

    A hindsight window stays at its goal, where the data may have passed at full speed: the data's actions do not brake.
    `reach` gives actions that do; see kdp/inverse.py.
    """

    def __init__(
        self,
        episodes: Episodes,
        horizon: int,
        stride: int = 1,
        goals: Goals | None = None,
        reach: Reach | None = None,
    ):
        longest = int(episodes.lengths.max())
        fitting = min(horizon, longest) // max(stride, 1) * max(stride, 1)
        remedy = (
            f"Try horizon={fitting} stride={max(stride, 1)}." if fitting > 0 else f"Try horizon={longest} stride=1."
        )
        if stride < 1 or horizon < 1 or horizon % stride:
            rule = "horizon must be a multiple of the stride, and both 1 or more"
            raise UserError(f"{rule}; got {horizon=} {stride=}. {remedy}")
        if horizon > longest:
            raise UserError(
                f"horizon must not be longer than every episode; got {horizon=}, and the longest of "
                f"{len(episodes.lengths)} episodes has {longest} steps. {remedy}"
            )
        self.episodes, self.horizon, self.stride, self.goals, self.reach = episodes, horizon, stride, goals, reach
        self.tokens, self.width = horizon // stride, episodes.state_dim + stride * episodes.action_dim

    def __len__(self) -> int:
        return len(self.episodes)

    def sample(self, count: int, generator: torch.Generator, share: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """First steps (count,) and, in goal problems, steps until the goal (count,), else zeros; drawn on the CPU. All
        steps are as likely, or have the chances whose sums are `share` (N,), up to 1 (favoured).

        Arrival is half of the time log-uniform and half uniform over 0..H-1, cut at the last token's state and at the
        end of the episode: plans for near goals need their share, and the plan at the goal is to stay.
        """
        device = self.episodes.steps.device
        if share is None:
            first = torch.randint(len(self), (count,), generator=generator).to(device)
        else:
            at = torch.rand(count, generator=generator, dtype=torch.float64).to(device)
            first = torch.searchsorted(share, at, right=True).clamp_max(len(self) - 1)
        if self.goals is None:
            return first, torch.zeros_like(first)
        u = torch.rand(count, generator=generator, dtype=torch.float64)
        log_uniform = (self.horizon**u).floor() - 1
        uniform = (self.horizon * u).floor()
        coin = torch.rand(count, generator=generator) < 0.5
        wanted = torch.where(coin, log_uniform, uniform).long().clamp_max(self.horizon - self.stride)
        return first, wanted.to(device).minimum(self.episodes.last_of(first) - first)

    def gather(self, first: Tensor, arrival: Tensor, push: Tensor | None = None) -> Tensor:
        """Windows (B,L,D) in the dataset's units, from their first steps (B,) and arrivals (B,). With a push (B,d_s) a
        window begins that far off."""
        data, step = self.episodes, torch.arange(self.horizon, device=first.device)
        index = (first[:, None] + step).minimum(data.last_of(first)[:, None])
        if self.goals is not None:
            index = index.minimum((first + arrival)[:, None])
        states = data.observations[index[:, :: self.stride]]  # (B,L,d_s)
        actions = data.actions[index]  # (B,H,d_a)
        if self.goals is not None:
            there = step >= arrival[:, None]  # (B,H)
            actions = actions.masked_fill(there[..., None], 0.0)
            if self.reach is not None:
                at, better = self._labels(first, arrival, push, self.reach)
                actions = actions.scatter(1, at[..., None].expand_as(better), better)
            resting = there[:, :: self.stride] & (step[:: self.stride] > 0)  # the first state is as it is
            for dim in self.goals.still:
                states[..., dim].masked_fill_(resting, 0.0)
        if push is not None:
            states[:, 0] += push
        return torch.cat([states, actions.reshape(len(first), self.tokens, -1)], -1)

    def _labels(self, first: Tensor, arrival: Tensor, push: Tensor | None, reach: Reach) -> tuple[Tensor, Tensor]:
        """Steps (B,n) where the data's own actions do not fit the window, and actions (B,n,d_a) by `reach` that do: in
        the token before arrival they come to rest at the goal, and after a push, which fades over the first token, they
        lead back to the data."""
        token = torch.arange(self.stride + 1, device=first.device)
        step = ((arrival - self.stride).clamp_min(0)[:, None] + token).minimum(arrival[:, None])  # the last may repeat
        if push is not None:
            step = torch.cat([step, token[:-1].expand(len(first), -1)], 1)  # (B,2m+1); a step may be in both
        here = self._at(first, arrival, step, step > arrival[:, None])
        there = self._at(first, arrival, step + self.stride, step + self.stride >= arrival[:, None])
        if push is not None:
            here = here + push[:, None] * (1 - step / self.stride).clamp_min(0)[..., None]
        return step, reach(here.flatten(0, 1), there.flatten(0, 1)).view(*step.shape, -1)

    def _at(self, first: Tensor, arrival: Tensor, step: Tensor, resting: Tensor) -> Tensor:
        """The states (B,n,d_s) of windows at steps (B,n): the goal from arrival on, at rest where `resting`."""
        assert self.goals is not None
        states = self.episodes.observations[first[:, None] + step.minimum(arrival[:, None])]
        for dim in self.goals.still:
            states[..., dim].masked_fill_(resting, 0.0)
        return states

    def goal(self, first: Tensor, arrival: Tensor) -> Tensor | None:
        """The goals (B,d_g) that these windows come to, in the dataset's units."""
        if self.goals is None:
            return None
        return self.episodes.observations[first + arrival][:, list(self.goals.dims)]
