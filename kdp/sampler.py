"""Batches for training: windows, their conditions and, for the joint field, their nearest windows in key space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kdp.keys import Condition, KeyMap
from kdp.neighbours import Neighbours
from kdp.normalize import Normalizer
from kdp.windows import Labels, Windows


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


class Drawn(NamedTuple):
    """Windows to be gathered: their first steps (N,) and arrivals (N,), pushes (N,d_s) and labels where there are."""

    first: Tensor
    arrival: Tensor
    push: Tensor | None = None
    labels: Labels | None = None

    def pick(self, index: Tensor) -> Drawn:
        labels = None if self.labels is None else Labels(*(part[index] for part in self.labels))
        return Drawn(self.first[index], self.arrival[index], None if self.push is None else self.push[index], labels)


def generator(*seed: int) -> torch.Generator:
    """A CPU generator for one purpose at one step: training resumes exactly because nothing else is remembered."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))


class Sampler:
    """Draws batches. With positives > 0, a table of `table` windows is indexed by key and drawn anew every `refresh`
    steps: in goal problems one window has as many keys as places it comes to. Not `keyed`: the positives are any.

    Every other window begins off the data, by noise of standard deviation `push` (d_s,): states that a planner's own
    actions may lead to, and the data never did."""

    def __init__(
        self,
        windows: Windows,
        normalizer: Normalizer,
        key: KeyMap,
        batch: int,
        positives: int = 0,
        seed: int = 0,
        table: int = 50_000,
        refresh: int = 250,
        keyed: bool = True,
        push: Tensor | None = None,
    ):
        self.windows, self.normalizer, self.key = windows, normalizer, key
        self.batch, self.positives, self.seed = batch, positives, seed
        self.table, self.refresh, self.keyed, self.push, self.epoch = table, refresh, keyed, push, -1

    def __call__(self, step: int) -> Batch:
        random = generator(self.seed, step, 0)
        if not self.positives:
            own = self._draw(self.batch, random)
            condition = self.condition(own)
            return Batch(self.gather(own), condition, self.key(condition))
        self._index(step // self.refresh)
        size, device = len(self.drawn.first), self.drawn.first.device
        chosen = torch.randint(size, (self.batch,), generator=random).to(device)
        own = self.drawn.pick(chosen)
        condition = self.condition(own)
        keys = self.key(condition)
        if self.keyed:
            distance, near = self.neighbours.search(keys, self.positives)
        else:  # an ablation: the own window and any others
            near = torch.randint(size, (self.batch, self.positives), generator=random).to(device)
            near[:, 0] = chosen
            distance = torch.zeros(near.shape, device=device)
        positives = self.gather(self.drawn.pick(near.flatten()))
        positives = positives.view(*near.shape, *positives.shape[1:])
        return Batch(self.gather(own), condition, keys, positives, distance, self.drawn.arrival[near].float())

    def condition(self, drawn: Drawn) -> Condition:
        state = self.windows.episodes.observations[drawn.first]
        state = self.normalizer.state(state if drawn.push is None else state + drawn.push)
        goal = self.windows.goal(drawn.first, drawn.arrival)
        if goal is None or self.windows.goals is None:
            return Condition(state)
        return Condition(state, self.normalizer.goal(goal, self.windows.goals.dims))

    def gather(self, drawn: Drawn) -> Tensor:
        return self.normalizer.tokens(self.windows.gather(*drawn))

    def _draw(self, count: int, random: torch.Generator) -> Drawn:
        first, arrival = self.windows.sample(count, random)
        push = None
        if self.push is not None:
            noise = torch.randn(count, len(self.push), generator=random) * (torch.arange(count) % 2)[:, None]
            push = noise.to(self.push) * self.push
        return Drawn(first, arrival, push, self.windows.labels(first, arrival, push))

    def _index(self, epoch: int) -> None:
        whole = self.windows.goals is None and len(self.windows) <= self.table
        if epoch == self.epoch or (whole and self.epoch >= 0):
            return
        random = generator(self.seed, epoch, 1)
        if whole:
            first = torch.arange(len(self.windows), device=self.windows.episodes.steps.device)
            self.drawn = Drawn(first, torch.zeros_like(first))
        else:
            self.drawn = self._draw(self.table, random)
        self.neighbours = Neighbours(self.key(self.condition(self.drawn)))
        self.epoch = epoch
