"""The waypoint controller that makes Maze2D data: a point mass goes from goal to goal through a maze, noisily."""

from __future__ import annotations

import contextlib
import io
import json
import math
import multiprocessing
import os
from collections import deque
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from kdp.datasets.minari_sets import check_free, dataset_id, write_folder
from kdp.errors import UserError

P_GAIN, D_GAIN = 10.0, 1.0  # the controller of D4RL's Maze2D sets
REACHED = 0.1  # a waypoint is passed within this distance
ARRIVED = 0.5  # the goal is reached, and another drawn, within this distance
NOISE = 0.5  # standard deviation of the noise on actions, as in D4RL
RADIUS = 0.45  # the environment's reward is given within this distance of its goal
EPISODE = 1000  # steps: several goals in one episode
SHARD = 25_000  # steps made by one process at a time, a multiple of EPISODE
STEP_BYTES, EPISODE_BYTES = 80, 25_000  # on disk
ABOUT = (
    "Regenerated Maze2D data, not D4RL's files: a point mass wanders from goal to goal by a noisy waypoint controller, "
    "in episodes of {episode} steps. desired_goal is the wanderer's goal of the moment. A step's reward is 1 where it "
    "starts within {radius} of {goal}, else 0."
)


class Journey(NamedTuple):
    """One episode of T steps, and where it ended."""

    observations: np.ndarray  # (T + 1, 4)
    goals: np.ndarray  # (T + 1, 2): the wanderer's, at each step
    actions: np.ndarray  # (T, 2)
    rewards: np.ndarray  # (T,)


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


def is_maze(about: Mapping[str, Any]) -> bool:
    """Was the dataset with this metadata made here?"""
    return "maze_map" in about and str(about.get("dataset_id")).startswith("regenerated/")


def make_maze_data(
    folder: Path,
    name: str,
    maze_map: list[list[int]],
    goal_cell: tuple[int, int] | None,
    episode_steps: int,
    steps: int,
    seed: int = 0,
) -> Path:
    """Writes `steps` steps to a Minari dataset, on all cores. The data depend on the seed, not on the cores.
    `episode_steps` is the time limit of the environment that other tools recover from the dataset."""
    if steps < 1:
        raise UserError(f"a dataset needs 1 step or more; got {steps}.")
    check_free(folder, "a maze's data", is_maze)
    sizes = [min(SHARD, steps - at) for at in range(0, steps, SHARD)]
    jobs = [(maze_map, goal_cell, size, (seed, number)) for number, size in enumerate(sizes)]
    processes = min(os.cpu_count() or 1, len(jobs))
    journeys: list[Journey] = []
    with multiprocessing.Pool(processes) as pool, Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"making {name}: {steps:,} steps", total=steps)
        for made in pool.imap(_roam, jobs):
            journeys += made
            bar.advance(task, sum(len(journey.actions) for journey in made))
        about = _about(name, maze_map, goal_cell, episode_steps, seed)
        env = point_maze(maze_map)
        spaces = env.observation_space, env.action_space
        env.close()
        buffers = map(_buffer, bar.track(journeys, description="writing"))
        size = STEP_BYTES * steps + EPISODE_BYTES * len(journeys)
        write_folder(folder, buffers, *spaces, _spec(maze_map, episode_steps), about, size)
    return folder


def _about(
    name: str, maze_map: list[list[int]], goal_cell: tuple[int, int] | None, episode_steps: int, seed: int
) -> dict[str, Any]:
    """The dataset's metadata."""
    goal = (
        "the wanderer's goal" if goal_cell is None else "the centre of the cell in row {}, column {}".format(*goal_cell)
    )
    about: dict[str, Any] = {
        "dataset_id": dataset_id(name),
        "description": ABOUT.format(episode=EPISODE, radius=RADIUS, goal=goal),
        "algorithm_name": "waypoint controller",
        "author": {"kdp"},
        "seed": seed,
        "maze_map": json.dumps(maze_map),
        "made_with": {package: version(package) for package in ("mujoco", "gymnasium-robotics", "numpy")},
        "requirements": ["gymnasium-robotics>=1.4.2"],
    }
    if goal_cell is not None:
        with_goal: list[list[Any]] = [list(row) for row in maze_map]
        with_goal[goal_cell[0]][goal_cell[1]] = "g"
        about["eval_env_spec"] = _spec(with_goal, episode_steps).to_json()
    return about


def _buffer(journey: Journey) -> Any:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    last = np.arange(len(journey.actions)) == len(journey.actions) - 1
    return EpisodeBuffer(
        observations={
            "observation": journey.observations,
            "achieved_goal": journey.observations[:, :2],
            "desired_goal": journey.goals,
        },
        actions=journey.actions,
        rewards=journey.rewards,
        terminations=np.zeros_like(last),
        truncations=last,
    )


def _spec(maze_map: list[list[Any]], episode_steps: int) -> Any:
    """What Minari makes the environment from; a cell "g" is the only goal."""
    from gymnasium.envs.registration import EnvSpec

    return EnvSpec(
        "PointMaze-v3",
        "gymnasium_robotics.envs.maze.point_maze:PointMazeEnv",
        max_episode_steps=episode_steps,
        kwargs={"maze_map": maze_map, "continuing_task": True, "reset_target": False},
    )


def point_maze(maze_map: list[list[int]]) -> Any:
    """One PointMaze environment whose episodes go on at the goal."""
    with contextlib.redirect_stderr(io.StringIO()):  # the library speaks of its other environments when imported
        from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

    env = PointMazeEnv(maze_map=maze_map, continuing_task=True)
    Path(env.tmp_xml_file_path).unlink(missing_ok=True)  # the library would leave one for each environment
    return env


def _roam(job: tuple) -> list[Journey]:
    return roam(*job)


def roam(
    maze_map: list[list[int]], goal_cell: tuple[int, int] | None, steps: int, seed: int | tuple[int, ...]
) -> list[Journey]:
    """One wanderer: from goal to goal, cut into episodes of EPISODE steps, each from a random place. Rewards are those
    of the maze's own goal, or of the wanderer's where the maze has none."""
    env, router = point_maze(maze_map), Router(maze_map)
    random = np.random.default_rng(seed)
    noise = random.normal(0, NOISE, (steps, 2))

    def place() -> tuple[int, np.ndarray]:
        cell = int(random.integers(len(router.cells)))
        return cell, router.centre[cell] + random.uniform(-0.25, 0.25, 2)

    def journey(noise: np.ndarray) -> Journey:
        count = len(noise)
        observations, goals = np.empty((count + 1, 4)), np.empty((count + 1, 2))
        actions = np.empty((count, 2), np.float32)
        state = np.concatenate([place()[1], np.zeros(2)])
        env.point_env.set_state(state[:2], state[2:])
        (goal_cell_number, goal), waypoint = place(), -1
        for t in range(count):
            while math.dist(state[:2], goal) < ARRIVED:
                (goal_cell_number, goal), waypoint = place(), -1
            here = router.cell_of(state[0], state[1])
            if waypoint < 0 or math.dist(state[:2], router.centre[waypoint]) < REACHED:
                waypoint = router.step[goal_cell_number, here]
            target = goal if waypoint == goal_cell_number else router.centre[waypoint]
            action = np.clip(P_GAIN * (target - state[:2]) - D_GAIN * state[2:] + noise[t], -1, 1)
            observations[t], goals[t], actions[t] = state, goal, action
            state = env.point_env.step(action)[0]
        observations[count], goals[count] = state, goal
        rewarded = np.float32(goals[:-1]) if goal_cell is None else router.centre[router.number[goal_cell]]
        away = np.linalg.norm(np.float32(observations[:-1, :2]) - rewarded, axis=1)
        return Journey(observations, goals, actions, (away <= RADIUS).astype(np.float32))

    env.reset(seed=int(random.integers(2**31)))
    journeys = [journey(noise[at : at + EPISODE]) for at in range(0, steps, EPISODE)]
    env.close()
    return journeys
