"""`kdp bench maze2d`: train every method on every maze, judge it under every protocol, one row each."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from kdp.bench.jobs import EPISODES, Judging, Protocol, Training, judge_all, train_all
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.methods.diffuser import DiffusionConfig

TASKS = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
EXECUTORS = ("track", "inverse", "action")

# How each method is judged. The open-loop row of Diffuser is its published protocol. A plan of Diffuser is 20 calls, so
# its closed loop has K = 4: 80 windows through the network. KDP has 64 for less, its usual 16, and 4 beside Diffuser's.
# Regression has only one plan to offer.
PROTOCOLS = {
    "diffuser": (
        Protocol("track", candidates=4),
        Protocol("inverse", candidates=4),
        Protocol("action", candidates=4),
        Protocol("track", candidates=4, warm=5),
        Protocol("track", candidates=1, chunk=0),
    ),
    "kdp": (
        Protocol("track", candidates=16),
        Protocol("inverse", candidates=16),
        Protocol("action", candidates=16),
        Protocol("track", candidates=64),
        Protocol("inverse", candidates=64),
        Protocol("action", candidates=64),
        Protocol("track", candidates=4),
        Protocol("track", candidates=1, chunk=0),
    ),
    "bc": (
        Protocol("track", candidates=1),
        Protocol("inverse", candidates=1),
        Protocol("action", candidates=1),
    ),
}  # slowest method first: that is the order of the jobs


def bench_maze2d(
    tasks: list[str],
    methods: list[str],
    executors: list[str],
    seeds: int,
    jobs: int,
    minutes: float | None,
    quick: bool,
    timed: bool,
    device: str,
    runs: Path,
    pictures: Path | None,
    results: Path,
    console: Console,
) -> None:
    """Runs are kept in `runs`: a study that was stopped goes on where it stopped, and does nothing twice."""
    trainings = maze_runs(tasks, methods, seeds, minutes, quick, device, runs)
    train_all(trainings, jobs, console)
    judgings = [
        Judging(
            "maze2d",
            training,
            protocol.quick() if quick else protocol,
            quick,
            2 if quick else EPISODES,
            picture=_picture(pictures, training, protocol),
        )
        for training in trainings
        for protocol in PROTOCOLS[training.config.method]
        if protocol.executor in executors
    ]
    judge_all(judgings, jobs, results, console, timed)


def maze_runs(
    tasks: list[str], methods: list[str], seeds: int, minutes: float | None, quick: bool, device: str, runs: Path
) -> list[Training]:
    """The runs of the study, those that take longest first."""
    return [
        Training(
            quick_config(task, method, seed) if quick else RunConfig(task, method=method, seed=seed, minutes=minutes),
            runs / f"{task}-{method}-{seed}{'-quick' if quick else ''}",
            device,
        )
        for task in sorted(tasks, key=lambda task: -DOMAINS[task].episode_steps)
        for method in PROTOCOLS
        if method in methods
        for seed in range(seeds)
    ]


def quick_config(task: str, method: str, seed: int) -> RunConfig:
    """A few steps, to see that it runs."""
    return RunConfig(task, method=method, seed=seed, steps=5, batch=16, diffusion=DiffusionConfig(steps=2))


def _picture(folder: Path | None, training: Training, protocol: Protocol) -> Path | None:
    """Where the plans of a method in a maze are drawn: its first seed, tracking in closed loop."""
    config = training.config
    drawn = protocol == PROTOCOLS[config.method][0] and config.seed == 0
    return folder / f"plans-{config.dataset}-{config.method}.png" if folder is not None and drawn else None
