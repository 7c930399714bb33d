"""A domain: data, how to look at it, and (where there is one) the environment to be judged in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np

from kdp.keys import KeyMap, state_key
from kdp.networks import Sizes
from kdp.plan import Tracker
from kdp.score import Arrival
from kdp.windows import Episodes, Goals


class Step(NamedTuple):
    """What N environments answer, (N,...) each."""

    observation: np.ndarray
    reward: np.ndarray
    done: np.ndarray
    success: np.ndarray


class Environments(Protocol):
    """N environments side by side, each for one episode."""

    def reset(self, seeds: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """-> observations (N,d_s), goals (N,d_g) or None."""

    def step(self, actions: np.ndarray) -> Step: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Domain:
    name: str
    about: str
    episodes: Callable[[], Episodes]
    """Reads the data, and makes it the first time where it can be made."""
    source: str | None = None
    """What `kdp train` was given, where it is not the name."""
    horizon: int = 32
    stride: int = 1
    goals: Goals | None = None
    key: KeyMap = state_key
    key_temperature: float | None = None
    """Default of drift.key_temperature, less where what is done hangs on small differences of state. None: the field's
    own."""
    positives: int | None = None
    """Default of drift.positives: 1 where states are so sparse that no other key is near. None: the field's own."""
    tilt: float = 0.0
    """Default of drift.tilt, in steps."""
    lambda_a: float = 1.0
    """Default of drift.lambda_a: less where the data's actions are mostly noise."""
    network: Sizes = Sizes()
    """Default of the network's sizes."""
    weight_decay: float | None = None
    """Default of loop.weight_decay: more where every window is its own only example. None: the loop's own."""
    relabel: bool = False
    """Default of --relabel: on where the data's actions are mostly noise."""
    temperature: float = 1.0
    """Default of --temperature: less where what is usual is better than what is drawn."""
    bounded: bool = False
    """Default of --bounded: on where data's actions are often the largest that there are."""
    push: float = 0.0
    """Noise on where every other training window begins, in units of how far the data move in a token; its actions lead
    back. With relabel only."""
    hurry: float = 1.0
    """How many tokens ahead the inverse model's targets lie; it is fitted to targets one token ahead."""
    scorer: Arrival | None = None
    value: Literal["none", "return", "critic"] = "none"
    """Default of value.scorer: a scorer that is learned from rewards."""
    apart: float = 0.0
    """Default of value.apart for a critic, for each step of the generator's training."""
    blend: float = 0.0
    """Default of value.blend: more than 0 where there is one way to act in each state, and noise about it."""
    trace: float = 1.0
    """Default of value.trace."""
    sees: Literal["window", "actions"] = "window"
    """Default of value.sees."""
    smooth: float = 0.0
    """Default of value.smooth."""
    wish: float = 0.0
    """Default of value.wish: more than 0 where data of good and of bad policies meet."""
    favour: float = 0.0
    """Default of value.favour: more than 0 where there are good and bad episodes."""
    tracker: Tracker | None = None
    environments: Callable[[int], Environments] | None = None
    episode_steps: int = 1000
    reference: tuple[float, float] | None = None
    """Returns that score 0 and 100."""
    steps: int = 20_000
    """Training steps unless asked otherwise."""
    walls: list[list[int]] | None = None
    """A map for pictures: rows, 1 a wall."""
    make: Callable[[int | None, int, Path | None], Path] | None = None
    """`kdp data make`: (steps, seed, folder), steps and folder None for the usual -> the folder."""

    @property
    def executor(self) -> str:
        """The usual executor: track where there is a law for it."""
        return "track" if self.tracker else "action"
