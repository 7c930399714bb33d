"""Batches for training: windows, their conditions and, for the joint field, their nearest windows in key space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kdp.keys import Condition, KeyMap
from kdp.neighbours import Neighbours
from kdp.normalize import Normalizer
from kdp.windows import Windows


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


def generator(*seed: int) -> torch.Generator:
    """A CPU generator for one purpose at one step: training resumes exactly because nothing else is remembered."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))


class Sampler:
    """Draws batches. With positives > 0, a table of `table` windows is indexed by key and drawn anew every `refresh`
    steps: in goal problems one window has as many keys as places it comes to. Not `keyed`: the positives are any."""

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
    ):
        self.windows, self.normalizer, self.key = windows, normalizer, key
        self.batch, self.positives, self.seed = batch, positives, seed
        self.table, self.refresh, self.keyed, self.epoch = table, refresh, keyed, -1

    def __call__(self, step: int) -> Batch:
        random = generator(self.seed, step, 0)
        if not self.positives:
            first, arrival = self.windows.sample(self.batch, random)
            condition = self.condition(first, arrival)
            return Batch(self.gather(first, arrival), condition, self.key(condition))
        self._index(step // self.refresh)
        chosen = torch.randint(len(self.first), (self.batch,), generator=random).to(self.first.device)
        condition = self.condition(self.first[chosen], self.arrival[chosen])
        keys = self.key(condition)
        if self.keyed:
            distance, near = self.neighbours.search(keys, self.positives)
        else:  # an ablation: the own window and any others
            near = torch.randint(len(self.first), (self.batch, self.positives), generator=random).to(chosen.device)
            near[:, 0] = chosen
            distance = torch.zeros(near.shape, device=near.device)
        positives = self.gather(self.first[near.flatten()], self.arrival[near.flatten()])
        positives = positives.view(*near.shape, *positives.shape[1:])
        own = self.gather(self.first[chosen], self.arrival[chosen])
        return Batch(own, condition, keys, positives, distance, self.arrival[near].float())

    def condition(self, first: Tensor, arrival: Tensor) -> Condition:
        state = self.normalizer.state(self.windows.episodes.observations[first])
        goal = self.windows.goal(first, arrival)
        if goal is None or self.windows.goals is None:
            return Condition(state)
        return Condition(state, self.normalizer.goal(goal, self.windows.goals.dims))

    def gather(self, first: Tensor, arrival: Tensor) -> Tensor:
        return self.normalizer.tokens(self.windows.gather(first, arrival))

    def _index(self, epoch: int) -> None:
        whole = self.windows.goals is None and len(self.windows) <= self.table
        if epoch == self.epoch or (whole and self.epoch >= 0):
            return
        random = generator(self.seed, epoch, 1)
        if whole:
            self.first = torch.arange(len(self.windows), device=self.windows.episodes.steps.device)
            self.arrival = torch.zeros_like(self.first)
        else:
            self.first, self.arrival = self.windows.sample(self.table, random)
        self.neighbours = Neighbours(self.key(self.condition(self.first, self.arrival)))
        self.epoch = epoch
