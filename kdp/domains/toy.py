"""Conditional problems with known answers: from one start, two equal or three unequal ways to go.

State (context, position, phase), action (velocity). An episode starts at position 0 with a random context, picks a
mode, and moves with its velocity, scaled by the context, for eight steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kdp.domains.domain import Domain, Step
from kdp.windows import Episodes

HORIZON = 8
NOISE = 0.05
NEAR = 0.25  # RMS distance of a window to a mode's own window


@dataclass(frozen=True)
class Toy:
    """Modes are velocities; shares are how often each is taken."""

    modes: tuple[float, ...]
    shares: tuple[float, ...]

    def episodes(self, count: int = 4000, seed: int = 0) -> Episodes:
        random = np.random.default_rng(seed)
        context = random.uniform(-1, 1, count)
        mode = random.choice(len(self.modes), count, p=self.shares)
        return self._episodes(context, self.velocity(context)[np.arange(count), mode], random)

    def held_out(self, context: float, count: int, seed: int) -> np.ndarray:
        """(count, H, 4) fresh windows from one start."""
        random = np.random.default_rng(seed)
        mode = random.choice(len(self.modes), count, p=self.shares)
        contexts = np.full(count, context)
        made = self._episodes(contexts, self.velocity(contexts)[np.arange(count), mode], random)
        return made.steps.numpy().reshape(count, HORIZON, 4)

    def velocity(self, context: np.ndarray) -> np.ndarray:
        """context (N,) -> (N, modes)."""
        return np.asarray(self.modes) * (1 + 0.3 * np.asarray(context)[:, None])

    def start(self, context: float) -> np.ndarray:
        return np.array([context, 0.0, 0.0], np.float32)

    def nearest_mode(self, windows: np.ndarray, context: float) -> np.ndarray:
        """windows (N,H,4) from one start -> the mode that each is near to, or -1."""
        velocity = self.velocity(np.array([context]))[0]
        path = np.stack(np.broadcast_arrays(velocity[:, None] * np.arange(HORIZON) / HORIZON, velocity[:, None]), -1)
        distance = np.sqrt(np.square(windows[:, None][..., [1, 3]] - path).mean((2, 3)))
        return np.where(distance.min(1) < NEAR, distance.argmin(1), -1)

    def _episodes(self, context: np.ndarray, velocity: np.ndarray, random: np.random.Generator) -> Episodes:
        count = len(context)
        actions = velocity[:, None] + random.normal(0, NOISE, (count, HORIZON))
        position = np.concatenate([np.zeros((count, 1)), actions.cumsum(1)[:, :-1] / HORIZON], 1)
        phase = np.broadcast_to(np.arange(HORIZON) / HORIZON, position.shape)
        observations = np.stack(np.broadcast_arrays(context[:, None], position, phase), -1)
        end = np.tile(np.arange(HORIZON) == HORIZON - 1, count)
        return Episodes.from_arrays(
            observations.reshape(-1, 3), actions.reshape(-1, 1), np.zeros(len(end)), end, np.zeros_like(end), "toy"
        )


class ToyEnvironments:
    """N toys side by side: success is to end near the place where one of the modes ends."""

    def __init__(self, toy: Toy, count: int):
        self.toy, self.count = toy, count

    def reset(self, seeds: list[int]) -> tuple[np.ndarray, None]:
        context = np.array([np.random.default_rng(seed).uniform(-1, 1) for seed in seeds])
        self.state = np.stack([context, np.zeros(self.count), np.zeros(self.count)], 1)
        return self.state.copy(), None

    def step(self, actions: np.ndarray) -> Step:
        self.state[:, 1] += actions[:, 0] / HORIZON
        self.state[:, 2] += 1 / HORIZON
        done = self.state[:, 2] > 1 - 0.5 / HORIZON
        ends = self.toy.velocity(self.state[:, 0])
        success = done & (np.abs(ends - self.state[:, 1:2]).min(1) < 0.15)
        return Step(self.state.copy(), success.astype(float), done, success)

    def close(self) -> None:
        """Nothing is held open."""


TWO = Toy((1.0, -1.0), (0.5, 0.5))
THREE = Toy((1.0, 0.0, -1.0), (0.5, 0.3, 0.2))


def _domain(name: str, toy: Toy, about: str) -> Domain:
    return Domain(
        name,
        about,
        episodes=toy.episodes,
        horizon=HORIZON,
        environments=lambda count: ToyEnvironments(toy, count),
        episode_steps=HORIZON,
        reference=(0.0, 1.0),
        steps=3000,
    )


TOYS = (
    _domain("toy", TWO, "one start, two equally likely ways to go"),
    _domain("toy-three", THREE, "one start, three ways to go, with shares .5 .3 .2"),
)
