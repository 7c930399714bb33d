"""Maze2D: a point mass in a maze (PointMaze of gymnasium-robotics), judged as D4RL does: a fixed goal, a random start,
a reward of one for every step spent at the goal. Multi2D draws a new goal for each episode. Any other map will do."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kdp.datasets.minari_sets import data_folder, dataset_id, holds_dataset, read_folder, read_metadata
from kdp.datasets.waypoint import RADIUS, Router, is_maze, make_maze_data, point_maze
from kdp.domains.domain import Domain, Step
from kdp.errors import UserError
from kdp.keys import ScaledKey
from kdp.networks import Sizes
from kdp.plan import Tracker
from kdp.score import Arrival
from kdp.windows import Episodes, Goals

POSITION, VELOCITY = (0, 1), (2, 3)
SMALL = Sizes(width=256, blocks=3, channels=32, noise=16, bands=4)
MIDDLE = Sizes(width=512, blocks=4, channels=32, noise=16, bands=4)  # the largest that a CPU trains in minutes
BIG = Sizes(width=1024, blocks=4, channels=32, noise=32, bands=4)
SHORT = 8  # cells of the longest way through a maze that the small network serves
STEPS_PER_CELL = 28  # the waypoint controller needs about 20; plans that just fit their horizon cut corners


@dataclass(frozen=True)
class Maze:
    name: str
    map: tuple[tuple[int, ...], ...]  # rows, 1 a wall
    episode_steps: int
    goal_cell: tuple[int, int] | None = None  # row, column; None: a new goal for each episode
    reference: tuple[float, float] | None = None
    data_steps: int = 1_000_000

    @property
    def rows(self) -> list[list[int]]:
        return [list(row) for row in self.map]

    @property
    def folder(self) -> Path:
        return data_folder() / dataset_id(self.name)

    def make(self, steps: int | None = None, seed: int = 0, folder: Path | None = None) -> Path:
        """Makes the data, in place of those that are there."""
        steps = self.data_steps if steps is None else steps
        return make_maze_data(
            folder or self.folder, self.name, self.rows, self.goal_cell, self.episode_steps, steps, seed
        )

    def episodes(self) -> Episodes:
        """Reads the data, and makes them the first time."""
        return self.read(self.folder if holds_dataset(self.folder) else self.make())

    def read(self, folder: Path) -> Episodes:
        return read_folder(folder, f"regenerated/{self.name}")


class MazeEnvironments:
    """N PointMaze environments, stepped one after the other (faster than processes on few cores)."""

    def __init__(self, maze: Maze, count: int):
        self.maze, self.limit = maze, maze.episode_steps
        self.envs = [point_maze(maze.rows) for _ in range(count)]

    def reset(self, seeds: list[int]) -> tuple[np.ndarray, np.ndarray]:
        self.time = 0
        observations = []
        for env, seed in zip(self.envs, seeds, strict=True):
            if self.maze.goal_cell is None:
                answer, _ = env.reset(seed=seed)
            else:
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


def maze_domain(maze: Maze, about: str, horizon: int, stride: int, network: Sizes) -> Domain:
    return Domain(
        maze.name,
        about,
        episodes=maze.episodes,
        horizon=horizon,
        stride=stride,
        goals=Goals(POSITION, VELOCITY),
        key=ScaledKey((1, 1, 0.3, 0.3, 1, 1)),
        tilt=20.0,
        lambda_a=0.1,
        network=network,
        relabel=True,
        push=1.0,
        hurry=5.0,
        scorer=Arrival(POSITION, RADIUS, stride),
        tracker=Tracker(POSITION, VELOCITY, kp=10.0, kd=1.0, lookahead=28),
        environments=lambda count: MazeEnvironments(maze, count),
        episode_steps=maze.episode_steps,
        reference=maze.reference,
        steps=6000,
        walls=maze.rows,
        make=maze.make,
    )


def custom_maze(rows: list[list[int]], folder: Path | None = None) -> Domain:
    """The domain of any map: random starts and goals, horizon and time limit from its longest way."""
    router = Router(rows)
    horizon = -(-STEPS_PER_CELL * max(router.longest, 2) // 8) * 8
    maze = Maze("maze2d", tuple(tuple(row) for row in rows), episode_steps=round(2.5 * horizon))
    about, stride = "a point mass in a maze of your own", 4 if horizon <= 160 else 8
    domain = maze_domain(maze, about, horizon, stride, SMALL if router.longest <= SHORT else MIDDLE)
    return domain if folder is None else _with_data(domain, maze, folder)


def maze_of_folder(folder: Path) -> Domain | None:
    """The domain of a folder that `kdp data make` wrote; None for any other dataset."""
    about = read_metadata(folder)
    if not is_maze(about):
        return None
    rows = _map(str(about["maze_map"]), folder)
    for maze, domain in FIXED.items():
        if maze.rows == rows and dataset_id(maze.name) == about.get("dataset_id"):
            return domain if folder.resolve() == maze.folder.resolve() else _with_data(domain, maze, folder)
    return custom_maze(rows, folder)


def _with_data(domain: Domain, maze: Maze, folder: Path) -> Domain:
    return replace(domain, episodes=lambda: maze.read(folder), source=str(folder.resolve()), make=None)


def read_map(file: Path) -> list[list[int]]:
    """A map from JSON: a list of rows, 1 a wall, 0 free."""
    try:
        return _map(file.read_text(), file)
    except (FileNotFoundError, IsADirectoryError):
        tiny = "[[1,1,1,1], [1,0,0,1], [1,1,1,1]]"
        raise UserError(
            f"a map is a file of rows in JSON, 1 a wall and 0 free, such as {tiny}; there is no file {file}. "
            "Check the path, or write one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as a map in JSON ({error}).") from error


def _map(text: str, file: Path) -> list[list[int]]:
    """Checks a map; `file` is where it is from."""
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{file} cannot be read as a map in JSON ({error}).") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise UserError(f"a map is a list of rows; {file} holds something else.")
    if len({len(row) for row in rows}) > 1 or not all(cell in (0, 1) for row in rows for cell in row):
        raise UserError(f"a map's rows have one length and hold only 0 (free) and 1 (a wall); {file} breaks that.")
    walls = np.array(rows) == 1
    if not (walls[[0, -1]].all() and walls[:, [0, -1]].all()):
        raise UserError(f"a map must have walls all around; {file} is open at its edge.")
    router = Router(rows)
    if len(router.cells) < 2 or (router.step < 0).any():
        raise UserError(f"a map needs two free cells or more, and a way between any two; {file} has no such way.")
    return rows


UMAZE = Maze(
    "maze2d-umaze",
    ((1, 1, 1, 1, 1), (1, 0, 0, 0, 1), (1, 1, 1, 0, 1), (1, 0, 0, 0, 1), (1, 1, 1, 1, 1)),
    episode_steps=300,
    goal_cell=(1, 1),
    reference=(23.85, 161.86),
)
MEDIUM = Maze(
    "maze2d-medium",
    (
        (1, 1, 1, 1, 1, 1, 1, 1),
        (1, 0, 0, 1, 1, 0, 0, 1),
        (1, 0, 0, 1, 0, 0, 0, 1),
        (1, 1, 0, 0, 0, 1, 1, 1),
        (1, 0, 0, 1, 0, 0, 0, 1),
        (1, 0, 1, 0, 0, 1, 0, 1),
        (1, 0, 0, 0, 1, 0, 0, 1),
        (1, 1, 1, 1, 1, 1, 1, 1),
    ),
    episode_steps=600,
    goal_cell=(6, 6),
    reference=(13.13, 277.39),
    data_steps=2_000_000,
)
LARGE = Maze(
    "maze2d-large",
    (
        (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1),
        (1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1),
        (1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1),
        (1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1),
        (1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1),
        (1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1),
        (1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1),
        (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    ),
    episode_steps=800,
    goal_cell=(7, 9),
    reference=(6.7, 273.99),
    data_steps=4_000_000,
)
SIZES = {UMAZE: (192, 8, SMALL), MEDIUM: (256, 8, BIG), LARGE: (384, 8, BIG)}  # horizon, stride


def _multi(domain: Domain, maze: Maze) -> Domain:
    """The same maze and data, judged with a new goal in each episode."""
    free = replace(maze, goal_cell=None)
    about = f"the same {maze.name[7:]} maze and data, a new goal each episode"
    name = maze.name.replace("maze2d", "multi2d")
    return replace(domain, name=name, about=about, environments=lambda count: MazeEnvironments(free, count))


FIXED = {
    maze: maze_domain(maze, f"point mass, {maze.name[7:]} maze, fixed goal", *size) for maze, size in SIZES.items()
}
MAZE2D = (*FIXED.values(), *(_multi(domain, maze) for maze, domain in FIXED.items()))
