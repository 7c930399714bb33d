"""The waypoint controller that makes Maze2D data: a point mass goes from goal to goal through a maze, noisily."""

from __future__ import annotations

import contextlib
import io
import json
import math
import multiprocessing
import os
from collections import deque
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from kdp.datasets.files import write_hdf5
from kdp.errors import UserError

P_GAIN, D_GAIN = 10.0, 1.0  # the controller of D4RL's Maze2D sets
REACHED = 0.1  # a waypoint is passed within this distance
ARRIVED = 0.5  # the goal is reached, and another drawn, within this distance
NOISE = 0.5  # standard deviation of the noise on actions, as in D4RL
RADIUS = 0.45  # the environment's reward is given within this distance of its goal
EPISODE = 1000  # steps: several goals in one episode
SHARD = 25_000  # steps made by one process at a time, a multiple of EPISODE


class Router:
    """Shortest ways through a maze (a list of rows, 1 a wall): `step[goal, cell]` is the next cell on the way."""

    def __init__(self, maze_map: list[list[int]]):
        self.walls = np.array([[cell == 1 for cell in row] for row in maze_map])
        self.cells = np.argwhere(~self.walls)
        self.number = -np.ones(self.walls.shape, int)
        self.number[tuple(self.cells.T)] = np.arange(len(self.cells))
        self.step = np.array([self._toward(goal) for goal in self.cells])
        rows, cols = self.walls.shape
        self.centre = np.stack([self.cells[:, 1] + 0.5 - cols / 2, rows / 2 - self.cells[:, 0] - 0.5], 1)

    @property
    def longest(self) -> int:
        """Steps from cell to cell on the longest of the shortest ways."""
        at, goal = np.meshgrid(np.arange(len(self.cells)), np.arange(len(self.cells)))
        count = 0
        while (at != goal).any() and count <= len(self.cells):
            at, count = self.step[goal, at], count + 1
        return count

    def cell_of(self, x: float, y: float) -> int:
        """The number of the cell that a place lies in."""
        rows, cols = self.walls.shape
        return int(self.number[int(rows / 2 - y), int(x + cols / 2)])

    def _toward(self, goal: np.ndarray) -> np.ndarray:
        toward = -np.ones(len(self.cells), int)
        toward[self.number[tuple(goal)]] = self.number[tuple(goal)]
        queue = deque([tuple(goal)])
        while queue:
            row, col = queue.popleft()
            for near in ((row + 1, col), (row - 1, col), (row, col + 1), (row, col - 1)):
                inside = 0 <= near[0] < self.walls.shape[0] and 0 <= near[1] < self.walls.shape[1]
                if inside and not self.walls[near] and toward[self.number[near]] < 0:
                    toward[self.number[near]] = self.number[row, col]
                    queue.append(near)
        return toward


def make_maze_data(
    path: Path, name: str, maze_map: list[list[int]], goal_cell: tuple[int, int] | None, steps: int, seed: int = 0
) -> Path:
    """Writes `steps` steps to a D4RL-layout HDF5 file, on all cores. The data depend on the seed, not on the cores."""
    if steps < 1:
        raise UserError(f"a dataset needs 1 step or more; got {steps}.")
    sizes = [min(SHARD, steps - at) for at in range(0, steps, SHARD)]
    jobs = [(maze_map, goal_cell, size, (seed, number)) for number, size in enumerate(sizes)]
    processes = min(os.cpu_count() or 1, len(jobs))
    shards = []
    with multiprocessing.Pool(processes) as pool, Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"making {name}: {steps:,} steps", total=steps)
        for shard in pool.imap(_roam, jobs):
            shards.append(shard)
            bar.advance(task, len(shard["actions"]))
    arrays = {key: np.concatenate([shard[key] for shard in shards]) for key in shards[0]}
    about: dict[str, str | int | float] = {"name": f"regenerated/{name}", "maker": "waypoint controller", "seed": seed}
    about["maze_map"] = json.dumps(maze_map)
    about |= {package: version(package) for package in ("mujoco", "gymnasium-robotics")}
    write_hdf5(path, arrays, about)
    return path


def point_maze(maze_map: list[list[int]]) -> Any:
    """One PointMaze environment whose episodes go on at the goal."""
    with contextlib.redirect_stderr(io.StringIO()):  # the library speaks of its other environments when imported
        from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

    return PointMazeEnv(maze_map=maze_map, continuing_task=True)


def _roam(job: tuple) -> dict[str, np.ndarray]:
    return roam(*job)


def roam(
    maze_map: list[list[int]], goal_cell: tuple[int, int] | None, steps: int, seed: int | tuple[int, ...]
) -> dict[str, np.ndarray]:
    """One wanderer, in D4RL's arrays: from goal to goal, cut into episodes of EPISODE steps, each from a random place.
    Rewards are those of the maze's own goal, or of the wanderer's where the maze has none."""
    env, router = point_maze(maze_map), Router(maze_map)
    random = np.random.default_rng(seed)
    observations, actions = np.empty((steps, 4), np.float32), np.empty((steps, 2), np.float32)
    goals, noise = np.empty((steps, 2), np.float32), random.normal(0, NOISE, (steps, 2))

    def place() -> tuple[int, np.ndarray]:
        cell = int(random.integers(len(router.cells)))
        return cell, router.centre[cell] + random.uniform(-0.25, 0.25, 2)

    env.reset(seed=int(random.integers(2**31)))
    for t in range(steps):
        if t % EPISODE == 0:
            state = np.concatenate([place()[1], np.zeros(2)])
            env.point_env.set_state(state[:2], state[2:])
            (goal_cell_number, goal), waypoint = place(), -1
        while math.dist(state[:2], goal) < ARRIVED:
            (goal_cell_number, goal), waypoint = place(), -1
        here = router.cell_of(state[0], state[1])
        if waypoint < 0 or math.dist(state[:2], router.centre[waypoint]) < REACHED:
            waypoint = router.step[goal_cell_number, here]
        target = goal if waypoint == goal_cell_number else router.centre[waypoint]
        action = np.clip(P_GAIN * (target - state[:2]) - D_GAIN * state[2:] + noise[t], -1, 1)
        observations[t], actions[t], goals[t] = state, action, goal
        state = env.point_env.step(action)[0]
    env.close()
    rewarded = goals if goal_cell is None else router.centre[router.number[goal_cell]]
    return {
        "observations": observations,
        "actions": actions,
        "rewards": (np.linalg.norm(observations[:, :2] - rewarded, axis=1) <= RADIUS).astype(np.float32),
        "terminals": np.zeros(steps, bool),
        "timeouts": (np.arange(steps) % EPISODE == EPISODE - 1) | (np.arange(steps) == steps - 1),
        "infos/goal": goals,
    }
