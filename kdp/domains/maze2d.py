"""Maze2D: a point mass in a maze (PointMaze of gymnasium-robotics), judged as D4RL does: a fixed goal, a random start,
a reward of one for every step spent at the goal."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kdp.datasets import open_file
from kdp.datasets.waypoint import RADIUS, make_maze_data, point_maze
from kdp.domains.domain import Domain, Step
from kdp.keys import ScaledKey
from kdp.plan import Tracker
from kdp.score import Arrival
from kdp.windows import Episodes, Goals

POSITION, VELOCITY = (0, 1), (2, 3)


@dataclass(frozen=True)
class Maze:
    name: str
    map: tuple[tuple[int, ...], ...]  # rows, 1 a wall
    goal_cell: tuple[int, int]  # row, column
    episode_steps: int
    reference: tuple[float, float]
    data_steps: int

    @property
    def rows(self) -> list[list[int]]:
        return [list(row) for row in self.map]

    def make(self, steps: int | None = None, seed: int = 0, file: Path | None = None) -> Path:
        """Makes the data, in place of what is there."""
        file = file or data_folder() / f"{self.name}.hdf5"
        return make_maze_data(
            file, self.name, self.rows, self.goal_cell, self.data_steps if steps is None else steps, seed
        )

    def episodes(self) -> Episodes:
        """Reads the data, and makes it the first time."""
        file = data_folder() / f"{self.name}.hdf5"
        return open_file(file if file.exists() else self.make())


class MazeEnvironments:
    """N PointMaze environments, stepped one after the other (faster than processes on few cores)."""

    def __init__(self, maze: Maze, count: int):
        self.maze, self.limit = maze, maze.episode_steps
        self.envs = [point_maze(maze.rows) for _ in range(count)]

    def reset(self, seeds: list[int]) -> tuple[np.ndarray, np.ndarray]:
        self.time = 0
        observations = []
        for env, seed in zip(self.envs, seeds, strict=True):
            cell = np.array(self.maze.goal_cell)
            answer, _ = env.reset(seed=seed, options={"goal_cell": cell})
            env.goal = env.maze.cell_rowcol_to_xy(cell)  # the cell's centre: the library would add noise
            env.update_target_site_pos()
            observations.append(answer["observation"])
        return np.array(observations), np.array([env.goal for env in self.envs])

    def step(self, actions: np.ndarray) -> Step:
        self.time += 1
        answers = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        reward = np.array([answer[1] for answer in answers])
        done = np.full(len(self.envs), self.time >= self.limit)
        return Step(np.array([answer[0]["observation"] for answer in answers]), reward, done, reward > 0)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def data_folder() -> Path:
    """Where made datasets are kept: $KDP_DATA, else data/ in the current folder."""
    return Path(os.environ.get("KDP_DATA", "data"))


def _domain(maze: Maze, about: str, horizon: int, stride: int, tilt: float) -> Domain:
    return Domain(
        maze.name,
        about,
        episodes=maze.episodes,
        horizon=horizon,
        stride=stride,
        goals=Goals(POSITION, VELOCITY),
        key=ScaledKey((1, 1, 0.3, 0.3, 1, 1)),
        tilt=tilt,
        lambda_a=0.1,
        scorer=Arrival(POSITION, RADIUS, stride),
        tracker=Tracker(POSITION, VELOCITY, kp=10.0, kd=1.0, lookahead=12),
        environments=lambda count: MazeEnvironments(maze, count),
        episode_steps=maze.episode_steps,
        reference=maze.reference,
        steps=6000,
        walls=maze.rows,
        make=maze.make,
    )


UMAZE = Maze(
    "maze2d-umaze",
    ((1, 1, 1, 1, 1), (1, 0, 0, 0, 1), (1, 1, 1, 0, 1), (1, 0, 0, 0, 1), (1, 1, 1, 1, 1)),
    goal_cell=(1, 1),
    episode_steps=300,
    reference=(23.85, 161.86),
    data_steps=1_000_000,
)

MAZE2D = (_domain(UMAZE, "a point mass in a U-shaped maze (regenerated data)", horizon=128, stride=4, tilt=60.0),)
