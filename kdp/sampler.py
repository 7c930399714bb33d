"""Batches for training: windows, their conditions and, for the joint field, their nearest windows in key space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kdp.keys import Condition, KeyMap
from kdp.neighbours import nearest
from kdp.normalize import Normalizer
from kdp.windows import Outcomes, Windows

Sight = Callable[[Tensor, Tensor], Tensor]

BLOCK = 1 << 13  # windows gathered at once
FAR = 1e3  # added to the distance of neighbours that are out of sight: they attract nothing
LARGEST = 1 << 29  # numbers in a table's windows: two gigabytes
REUSE = 4  # times that a table's windows are used, without goals: finding neighbours takes longer than many steps


@dataclass(frozen=True)
class Batch:
    """Standardised. Positives are there only if the method asked for them; the window itself is one of them, or one
    with the very same key."""

    windows: Tensor  # (B,L,D)
    condition: Condition
    keys: Tensor  # (B,d_k)
    positives: Tensor | None = None  # (B,P,L,D)
    key_distance: Tensor | None = None  # (B,P)
    arrival: Tensor | None = None  # (B,P) steps until the goal is reached, in goal problems
    followed: Followed | None = None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All there is, in a row."""
        condition = self.condition
        own = (self.windows, condition.state, condition.goal, self.keys)
        return (*own, self.positives, self.key_distance, self.arrival, *(self.followed or ()))

    @classmethod
    def of(cls, windows: Tensor, state: Tensor, goal: Tensor | None, *rest: Tensor) -> Batch:
        """From such a row."""
        keys, positives, distance, arrival, *after = rest
        followed = Followed(*after) if after else None
        return cls(windows, Condition(state, goal), keys, positives, distance, arrival, followed)


class Followed(NamedTuple):
    """What followed the windows' first steps, for scorers that learn."""

    reward: Tensor  # (B,) discounted sum over the next steps
    state: Tensor  # (B,d_s) after them, standardised
    discount: Tensor  # (B,) of what comes from there on; zero after a real end
    known: Tensor  # (B,) zero where the data do not say
    returns: Tensor  # (B,) discounted sum over all the steps to come


class Drawn(NamedTuple):
    """Windows to be gathered: their first steps (N,) and arrivals (N,), and pushes (N,d_s) where there are."""

    first: Tensor
    arrival: Tensor
    push: Tensor | None = None


class Table(NamedTuple):
    """T windows that batches are drawn from, with what a batch needs to know of each, computed once: a window is used
    once itself, and many times as another's neighbour."""

    first: Tensor  # (T,) their first steps
    windows: Tensor  # (T,L,D)
    condition: Condition
    keys: Tensor  # (T,d_k)
    arrival: Tensor  # (T,)
    near: Tensor | None  # (T,P) the nearest in key space, itself or one with the very same key first
    distance: Tensor | None  # (T,P)


def seed_of(*seed: int) -> int:
    """A seed for one purpose at one step: training resumes exactly because nothing else is remembered."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def generator(*seed: int) -> torch.Generator:
    """A CPU generator with such a seed."""
    return torch.Generator().manual_seed(seed_of(*seed))


class Sampler:
    """Draws batches. With one positive, a window is its own. With more, batches come from a table of `table` windows,
    drawn anew when each has been used about REUSE times; in goal problems once, as one window has as many keys as
    places it comes to. Not `keyed`: positives are any.

    Every other window begins off the data, by noise of standard deviation `push` (d_s,): states that a planner's own
    actions may lead to, and the data never did. With `sight` (places (N,d), (N,n,d) -> (N,n)), a neighbour must lie in
    sight of its window, where they begin and where they go to: behind a wall, the same goal may be much nearer. With
    `returns` (N,) of every step, standardised, conditions say what follows. `share` (N,) as of Windows.sample."""

    def __init__(
        self,
        windows: Windows,
        normalizer: Normalizer,
        key: KeyMap,
        batch: int,
        positives: int = 0,
        seed: int = 0,
        table: int = 50_000,
        keyed: bool = True,
        push: Tensor | None = None,
        outcomes: Outcomes | None = None,
        sight: Sight | None = None,
        returns: Tensor | None = None,
        share: Tensor | None = None,
    ):
        self.outcomes, self.sight, self.returns, self.share = outcomes, sight, returns, share
        self.windows, self.normalizer, self.key = windows, normalizer, key
        self.batch, self.positives, self.seed = batch, positives, seed
        self.size = min(table, max(positives, LARGEST // (windows.tokens * windows.width)))
        self.refresh = -(-self.size * (REUSE if windows.goals is None else 1) // batch)  # steps
        self.keyed, self.push, self.epoch = keyed, push, -1
        self.table: Table | None = None

    def __call__(self, step: int) -> Batch:
        random = generator(self.seed, step, 0)
        if self.positives < 2:
            own = self._draw(self.batch, random)
            condition, windows = self.condition(own), self.gather(own)
            batch = Batch(windows, condition, self.key(condition), followed=self.followed(own.first))
            if not self.positives:
                return batch
            arrival = own.arrival[:, None].float()
            return replace(batch, positives=windows[:, None], key_distance=torch.zeros_like(arrival), arrival=arrival)
        table = self._table(step // self.refresh)
        size, device = len(table.arrival), table.arrival.device
        chosen = torch.randint(size, (self.batch,), generator=random).to(device)
        if table.near is not None and table.distance is not None:
            near, distance = table.near[chosen], table.distance[chosen]
        else:  # an ablation: the own window and any others
            near = torch.randint(size, (self.batch, self.positives), generator=random).to(device)
            near[:, 0] = chosen
            distance = torch.zeros(near.shape, device=device)
        return Batch(
            table.windows[chosen],
            table.condition[chosen],
            table.keys[chosen],
            table.windows[near],
            distance,
            table.arrival[near].float(),
            self.followed(table.first[chosen]),
        )

    def ahead(self) -> Callable[[int], Batch]:
        """The same, or many batches at once where that is no great table."""
        return Ahead(self) if self.positives < 2 and self.windows.goals is None else self

    def condition(self, drawn: Drawn) -> Condition:
        state = self.windows.episodes.observations[drawn.first]
        state = self.normalizer.state(state if drawn.push is None else state + drawn.push)
        if self.returns is not None:
            return Condition(state, self.returns[drawn.first, None])
        goal = self.windows.goal(drawn.first, drawn.arrival)
        if goal is None or self.windows.goals is None:
            return Condition(state)
        return Condition(state, self.normalizer.goal(goal, self.windows.goals.dims))

    def followed(self, first: Tensor) -> Followed | None:
        """What followed these steps (B,), where it was given."""
        if self.outcomes is None:
            return None
        reward, later, discount, known, returns = (part[first] for part in self.outcomes)
        state = self.normalizer.state(self.windows.episodes.observations[later])
        return Followed(reward, state, discount, known, returns)

    def gather(self, drawn: Drawn) -> Tensor:
        """The windows (N,L,D), standardised."""
        out = torch.empty(len(drawn.first), self.windows.tokens, self.windows.width, device=drawn.first.device)
        for lo in range(0, len(out), BLOCK):
            some = (None if part is None else part[lo : lo + BLOCK] for part in drawn)
            out[lo : lo + BLOCK] = self.normalizer.tokens(self.windows.gather(*some))  # type: ignore[arg-type]
        return out

    def _draw(self, count: int, random: torch.Generator) -> Drawn:
        first, arrival = self.windows.sample(count, random, self.share)
        push = None
        if self.push is not None:
            noise = torch.randn(count, len(self.push), generator=random) * (torch.arange(count) % 2)[:, None]
            push = noise.to(self.push) * self.push
        return Drawn(first, arrival, push)

    def _table(self, epoch: int) -> Table:
        whole = self.windows.goals is None and self.share is None and len(self.windows) <= self.size
        if self.table is not None and (epoch == self.epoch or whole):
            return self.table
        if whole:
            first = torch.arange(len(self.windows), device=self.windows.episodes.steps.device)
            drawn = Drawn(first, torch.zeros_like(first))
        else:
            drawn = self._draw(self.size, generator(self.seed, epoch, 1))
        condition = self.condition(drawn)
        keys = self.key(condition)
        distance, near = nearest(keys, self.positives) if self.keyed else (None, None)
        if near is not None and distance is not None and self.sight is not None:
            distance = distance + FAR * ~self._seen(condition, near)
        windows = self.gather(drawn)
        self.epoch, self.table = epoch, Table(drawn.first, windows, condition, keys, drawn.arrival, near, distance)
        return self.table

    def _seen(self, condition: Condition, near: Tensor) -> Tensor:
        """near (T,P) -> (T,P) whether these are in sight; the first, itself, always is."""
        assert self.sight is not None and self.windows.goals is not None and condition.goal is not None
        dims, seen = list(self.windows.goals.dims), torch.empty(near.shape, dtype=torch.bool, device=near.device)
        ends = [self.normalizer.ungoal(end, tuple(dims)) for end in (condition.state[:, dims], condition.goal)]
        for lo in range(0, len(near), BLOCK):
            some = near[lo : lo + BLOCK]
            begin, goal = (self.sight(end[lo : lo + BLOCK], end[some]) for end in ends)
            seen[lo : lo + BLOCK] = begin & goal
        seen[:, 0] = True
        return seen


class Ahead:
    """The batches of a sampler, of which it draws BLOCKS at once: for steps that take less time than drawing one."""

    BLOCKS = 32

    def __init__(self, sampler: Sampler):
        self.sampler, self.size, self.block = sampler, sampler.batch, -1
        sampler.batch *= self.BLOCKS

    def __call__(self, step: int) -> Batch:
        block, at = divmod(step, self.BLOCKS)
        if block != self.block:
            self.block, self.drawn = block, self.sampler(block).tensors()
        rows = slice(at * self.size, (at + 1) * self.size)
        return Batch.of(*(None if tensor is None else tensor[rows] for tensor in self.drawn))  # type: ignore[arg-type]
