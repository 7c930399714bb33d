"""Locomotion: half-cheetah, hopper and walker (Gymnasium's MuJoCo environments, v5), scored on D4RL's scale.

Data are collected from behaviour policies and called regenerated. D4RL's and Minari's own sets are trained on by their
path or id, and judged in the same environments."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kdp.datasets.collect import collect, is_collected, open_env
from kdp.datasets.minari_sets import data_folder, dataset_id, holds_dataset, read_folder, read_metadata
from kdp.domains.domain import Domain, Step
from kdp.errors import UserError
from kdp.networks import Sizes
from kdp.windows import Episodes

EPISODE_STEPS = 1000


class Body(NamedTuple):
    env: str
    reference: tuple[float, float]  # D4RL's
    replay_steps: int  # in D4RL's medium-replay set
    falls: bool  # an episode can end early


BODIES = {
    "halfcheetah": Body("HalfCheetah-v5", (-280.178953, 12135.0), 202_000, falls=False),
    "hopper": Body("Hopper-v5", (-20.272305, 3234.3), 402_000, falls=True),
    "walker2d": Body("Walker2d-v5", (1.629008, 4592.3), 302_000, falls=True),
}
KINDS = {
    "medium": "a policy half-way",
    "medium-expert": "half medium, half expert",
    "medium-replay": "a mix of snapshots of one training",
    "expert": "a trained policy",
}


@dataclass(frozen=True)
class Task:
    """A body, and the kind of policies that its data come from."""

    body: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.body}-{self.kind}"

    @property
    def env(self) -> str:
        return BODIES[self.body].env

    @property
    def folder(self) -> Path:
        return data_folder() / dataset_id(self.name)

    @property
    def there(self) -> bool:
        return holds_dataset(self.folder)

    def policies(self, folder: Path) -> list[Path]:
        """The files in a folder of policies that its data come from."""
        if self.kind == "medium-replay":
            return sorted(folder.glob(f"{self.body}-replay-*.npz"))
        kinds = ("medium", "expert") if self.kind == "medium-expert" else (self.kind,)
        return [folder / f"{self.body}-{kind}.npz" for kind in kinds]

    @property
    def steps(self) -> int:
        """As many as D4RL has."""
        special = {"medium-expert": 2_000_000, "medium-replay": BODIES[self.body].replay_steps}
        return special.get(self.kind, 1_000_000)

    def collect(self, policies: Path, steps: int | None = None) -> Path:
        """Collects the data from the policies in a folder."""
        return collect(self.folder, self.name, self.env, self.policies(policies), steps or self.steps)

    def episodes(self) -> Episodes:
        """Reads what was collected, or says how to get it."""
        if not self.there:
            raise UserError(f"there are no data of {self.name} in {self.folder}. {self.remedy()}")
        return self.read(self.folder)

    def read(self, folder: Path) -> Episodes:
        env = json.loads(read_metadata(folder).get("env_spec") or "{}").get("id")
        if env != self.env:
            raise UserError(
                f"data of {self.name} must be of {self.env}; those in {folder} are of {env}. {self.remedy()}"
            )
        return read_folder(folder, f"regenerated/{self.name}")

    def remedy(self) -> str:
        """Where data come from: a command for each way that there is."""
        policies = ",".join(path.name for path in self.policies(Path())) or "SNAPSHOT.npz,SNAPSHOT.npz,..."
        words = f"--env {self.env} --policy {policies} --steps {self.steps} --name {self.name}"
        ways = [f"Collect them with `kdp data collect {words}`"]
        if self.kind in KINDS:
            ways.append(f"fetch D4RL's with `kdp data download {self.name}-v2` and train on that file")
        if self.kind in ("medium", "expert"):
            ways.append(f"train on Minari's with `kdp train mujoco/{self.body}/{self.kind}-v0`")
        return ", or ".join(ways) + "."


class GymEnvironments:
    """N Gymnasium environments, stepped one after the other (faster than processes on few cores); one that is done is
    left alone. Success is to reach the time limit, where one can fall before it."""

    def __init__(self, body: Body, count: int):
        self.falls, self.envs = body.falls, [open_env(body.env) for _ in range(count)]
        self.low, self.high = self.envs[0].action_space.low, self.envs[0].action_space.high

    def reset(self, seeds: list[int]) -> tuple[np.ndarray, None]:
        self.states = np.array([env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=True)])
        self.done = np.zeros(len(self.envs), bool)
        return self.states.copy(), None

    def step(self, actions: np.ndarray) -> Step:
        reward, success = np.zeros(len(self.envs)), np.zeros(len(self.envs), bool)
        for i in np.flatnonzero(~self.done):
            action = np.clip(actions[i], self.low, self.high)
            self.states[i], reward[i], fell, over, _ = self.envs[i].step(action)
            self.done[i] = fell or over
            success[i] = self.falls and over and not fell
        return Step(self.states.copy(), reward, self.done.copy(), success)

    def close(self) -> None:
        for env in self.envs:
            env.close()


NETWORK = Sizes(blocks=1, trunk=2)  # most of a plan is what its state asks for (docs/trials.md)


def locomotion_domain(task: Task, about: str) -> Domain:
    body = BODIES[task.body]
    return Domain(
        task.name,
        f"{task.body}, {about}",
        episodes=task.episodes,
        horizon=4,
        key_temperature=0.05,
        network=NETWORK,
        weight_decay=0.03,
        temperature=0.75,
        bounded=True,
        positives=1,  # of a hundred thousand windows the nearest is ten bandwidths away (docs/trials.md)
        environments=lambda count: GymEnvironments(body, count),
        episode_steps=EPISODE_STEPS,
        reference=body.reference,
        value="return",
        apart=5.0,
        blend=4.0,
        trace=0.9,
        sees="actions",
        favour=8.0,
    )


def locomotion_of_folder(folder: Path) -> Domain | None:
    """The domain of a folder that `kdp data collect --name` wrote; None for any other dataset."""
    about = read_metadata(folder)
    if not is_collected(about):
        return None
    for task, domain in TASKS.items():
        if dataset_id(task.name) == about.get("dataset_id"):
            if folder.resolve() == task.folder.resolve():
                return domain
            return replace(domain, episodes=partial(task.read, folder), source=str(folder.resolve()))
    return None


TASKS = {
    task: locomotion_domain(task, about)
    for task, about in (
        *((Task(body, kind), about) for body in BODIES for kind, about in KINDS.items()),
        (Task("halfcheetah", "medium-narrow"), "a policy half-way with little spread"),
    )
}
LOCOMOTION = tuple(TASKS.values())
REMEDIES = {task.name: task.remedy() for task in TASKS}
