"""Offline data from behaviour policies: episodes in any Gymnasium environment, as a Minari dataset."""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from kdp.datasets.minari_sets import check_free, dataset_id, write_folder
from kdp.datasets.policies import Policy, read_policy
from kdp.errors import UserError

SHARD = 25_000  # steps made by one process at a time; the last episode of each is cut short
LANES = 4  # environments side by side in a process; matrix products of more rows would start threads
EPISODE_BYTES = 20_000  # on disk, beside the steps
LABEL = "regenerated: not D4RL"
ABOUT = (
    "{label}. {env}, {steps} steps by {policies}: {how}. Episodes end where the environment ends them; the last of "
    "every {shard} steps is cut short."
)


class Played(NamedTuple):
    """One episode of T steps."""

    observations: np.ndarray  # (T + 1, d_s)
    actions: np.ndarray  # (T, d_a)
    rewards: np.ndarray  # (T,)
    terminated: bool  # a real end; otherwise it was cut short, by the time limit or by the number of steps
    seed: int  # the environment's


class Spaces(NamedTuple):
    """Where an environment's observations and actions lie."""

    observations: Any
    actions: Any
    spec: Any


def open_env(env_id: str) -> Any:
    """A Gymnasium environment by its id; gymnasium-robotics is asked too."""
    import gymnasium
    import mujoco

    before = mujoco.get_mju_user_warning()
    try:
        mujoco.set_mju_user_warning(lambda _: None)  # it calls parts of Gymnasium's own models deprecated, each time
        if env_id not in gymnasium.registry and ":" not in env_id:
            with contextlib.redirect_stderr(io.StringIO()):  # it speaks of its other environments when imported
                import gymnasium_robotics

            gymnasium.register_envs(gymnasium_robotics)
        return gymnasium.make(env_id, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        why = " ".join(str(error.args[0] if error.args else error).split()).rstrip(".")
        raise UserError(f"there is no environment {env_id!r} ({why}). Give an id such as Hopper-v5.") from error
    finally:
        mujoco.set_mju_user_warning(before)


def is_collected(about: Mapping[str, Any]) -> bool:
    """Was the dataset with this metadata made here?"""
    return about.get("label") == LABEL and "policies" in about


def collect(
    folder: Path,
    name: str,
    env_id: str,
    policies: Sequence[str | Path],
    steps: int,
    *,
    stochastic: bool = True,
    noise: float = 0.0,
    mix: Sequence[float] | None = None,
    seed: int = 0,
    jobs: int | None = None,
) -> Path:
    """Writes `steps` steps to the Minari dataset regenerated/NAME-v0 in `folder`. `mix` are the policies' shares of the
    steps, `noise` is the standard deviation of further noise on actions. The data depend on the seed, not on the number
    of processes."""
    shares = [1.0] * len(policies) if mix is None else list(mix)
    if not policies or len(shares) != len(policies):
        raise UserError(f"mix needs one share for each policy; got {len(shares)} for {len(policies)}.")
    if not all(share > 0 and math.isfinite(share) for share in shares):
        raise UserError(f"the shares of a mix must be more than zero; got {', '.join(f'{x:g}' for x in shares)}.")
    if steps < len(policies):
        raise UserError(f"a dataset needs 1 step or more of each policy; got {steps} for {len(policies)}.")
    if not (noise >= 0 and math.isfinite(noise)):
        raise UserError(f"noise must be 0 or more; got {noise:g}.")
    if seed < 0:
        raise UserError(f"seed must be 0 or more; got {seed}.")
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be 1 or more; got {jobs}.")
    check_free(folder, "collected data", is_collected)
    players = [read_policy(path) for path in policies]
    spaces = _spaces(env_id)
    for player in players:
        _check_fits(player, env_id, spaces, stochastic)
    counts = _counts(steps, shares)
    work: list[tuple] = []
    for player, count in zip(players, counts, strict=True):
        for size in (min(SHARD, count - at) for at in range(0, count, SHARD)):
            work.append((env_id, player, size, stochastic, noise, (seed, len(work))))
    episodes: list[Played] = []
    processes = min(jobs or os.cpu_count() or 1, len(work))
    with multiprocessing.Pool(processes) as pool, Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"collecting {name}: {steps:,} steps", total=steps)
        for played in pool.imap(_play, work):
            episodes += played
            bar.advance(task, sum(len(episode.actions) for episode in played))
        names = [player.name for player in players]
        how = ("actions drawn" if stochastic else "mean actions") + (f", noise {noise:g} added" if noise else "")
        about = {
            "dataset_id": dataset_id(name),
            "label": LABEL,
            "description": ABOUT.format(
                label=LABEL, env=env_id, steps=steps, policies=", ".join(names), how=how, shard=SHARD
            ),
            "algorithm_name": ", ".join(names),
            "author": {"kdp"},
            "policies": names,
            "mix": [share / sum(shares) for share in shares],
            "policy_steps": counts,
            "stochastic": stochastic,
            "noise": noise,
            "seed": seed,
            "made_with": {package: version(package) for package in ("gymnasium", "mujoco", "numpy")},
            "requirements": ["gymnasium-robotics>=1.4.2" if _robotics(spaces.spec) else "gymnasium[mujoco]>=1.2"],
        }
        buffers = map(_buffer, bar.track(episodes, description="writing"))
        width = 8 * (spaces.observations.shape[0] + spaces.actions.shape[0] + 2)
        size = width * steps + EPISODE_BYTES * len(episodes)
        write_folder(folder, buffers, spaces.observations, spaces.actions, spaces.spec, about, size)
    return folder


def _spaces(env_id: str) -> Spaces:
    """The spaces of an environment that data can be collected in."""
    import gymnasium
    from gymnasium.spaces import Box

    env = open_env(env_id)
    found = Spaces(env.observation_space, env.action_space, gymnasium.spec(env.spec.id))
    env.close()
    for what, space in (("observation", found.observations), ("action", found.actions)):
        if not isinstance(space, Box) or len(space.shape) != 1:
            shown = shorten(str(space), 120, placeholder=" ...")
            raise UserError(f"{what}s must be a vector, a 1-D Box; {env_id} has {what}s in {shown}.")
    if not found.actions.is_bounded():
        raise UserError(f"actions must have bounds, onto which a policy's [-1, 1] is stretched; {env_id} has none.")
    return found


def _check_fits(policy: Policy, env_id: str, spaces: Spaces, stochastic: bool) -> None:
    have, want = (policy.state_dim, policy.action_dim), (spaces.observations.shape[0], spaces.actions.shape[0])
    if have != want:
        raise UserError(
            f"a policy must fit its environment; {policy.name} takes {have[0]} numbers and gives {have[1]}, and "
            f"{env_id} has observations of {want[0]} and actions of {want[1]}."
        )
    if stochastic and policy.log_std is None:
        raise UserError(
            f"{policy.name} has no log_std to draw actions with; use --no-stochastic, with --noise if wished."
        )


def _counts(steps: int, shares: list[float]) -> list[int]:
    """Whole numbers in these shares, which add up to `steps`."""
    ends = np.round(np.cumsum([0.0, *shares]) / sum(shares) * steps).astype(int)
    return np.diff(ends).tolist()


def _robotics(spec: Any) -> bool:
    return str(spec.entry_point).startswith("gymnasium_robotics")


def _buffer(episode: Played) -> Any:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    last = np.arange(len(episode.actions)) == len(episode.actions) - 1
    return EpisodeBuffer(
        seed=episode.seed,
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=last & episode.terminated,
        truncations=last & (not episode.terminated),
    )


class _Playing:
    """An episode under way, with randomness of its own."""

    def __init__(self, env: Any, seed: tuple[int, ...]):
        self.env, self.random = env, np.random.default_rng(seed)
        self.seed = int(self.random.integers(2**31))
        self.observations = [env.reset(seed=self.seed)[0]]
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.terminated = self.done = False

    def __len__(self) -> int:
        return len(self.actions)

    def step(self, action: np.ndarray) -> None:
        observation, reward, self.terminated, truncated, _ = self.env.step(action)
        self.done = bool(self.terminated or truncated)
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(float(reward))

    def first(self, steps: int) -> Played:
        """The episode's first steps, or all where it has no more."""
        return Played(
            np.array(self.observations[: steps + 1]),
            np.array(self.actions[:steps]),
            np.array(self.rewards[:steps]),
            bool(self.terminated and steps >= len(self)),
            self.seed,
        )


def _play(job: tuple) -> list[Played]:
    return play(*job)


def play(
    env_id: str, policy: Policy, steps: int, stochastic: bool, noise: float, seed: tuple[int, ...]
) -> list[Played]:
    """Episodes of one policy, one after the other until there are `steps` steps; the last is cut there. They are played
    side by side and kept in the order of their seeds, whichever ends first: short ones have no advantage."""
    envs = [open_env(env_id) for _ in range(LANES)]
    space = envs[0].action_space
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    free, started, running = envs[::-1], list[_Playing](), list[_Playing]()
    while not _enough(started, steps):
        while free and (not running or _expected(started) < steps):
            running.append(_Playing(free.pop(), (*seed, len(started))))
            started.append(running[-1])
        draws = np.array([episode.random.standard_normal((2, len(low))) for episode in running])
        states = np.array([episode.observations[-1] for episode in running])
        actions = policy.act(states, draws[:, 0] if stochastic else None)
        if noise:
            actions = np.clip(actions + noise * draws[:, 1], -1, 1)
        actions = ((low + high) / 2 + (high - low) / 2 * actions).astype(space.dtype).clip(space.low, space.high)
        for episode, action in zip(running, actions, strict=True):
            episode.step(action)
        free += [episode.env for episode in running if episode.done]
        running = [episode for episode in running if not episode.done]
    for env in envs:
        env.close()
    kept: list[Played] = []
    for episode in started:
        kept.append(episode.first(steps))
        steps -= len(kept[-1].actions)
        if steps == 0:
            break
    return kept


def _enough(started: list[_Playing], steps: int) -> bool:
    """Are there `steps` steps, all episodes complete but the last that is needed?"""
    count = 0
    for episode in started:
        count += len(episode)
        if count >= steps or not episode.done:
            break
    return count >= steps


def _expected(started: list[_Playing]) -> float:
    """How many steps there will be when all that runs has ended, if that goes as it went so far."""
    ended = [len(episode) for episode in started if episode.done]
    usual = sum(ended) / len(ended) if ended else 0.0
    return sum(len(episode) if episode.done else max(len(episode), usual) for episode in started)
