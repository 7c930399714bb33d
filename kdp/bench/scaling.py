"""`kdp bench candidates` and `kdp bench horizon`: score and latency, by how many plans and by how long they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from kdp.bench.jobs import EPISODES, Judging, Training, judge_all, train_all
from kdp.bench.maze2d import PROTOCOLS, maze_runs
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.errors import UserError, did_you_mean
from kdp.runs import read_config

CANDIDATES = (1, 4, 16, 64, 256)
HORIZONS = (96, 128, 192, 256, 384)


def bench_candidates(
    trainings: list[Training], values: list[int], quick: bool, jobs: int, results: Path, console: Console
) -> None:
    """Every run with every K, tracking; runs that are not finished are trained first."""
    train_all(trainings, jobs, console)
    judgings = [_judging(training, "candidates", k, quick) for k in sorted(values)[::-1] for training in trainings]
    judge_all(judgings, jobs, results, console)


def bench_horizon(
    tasks: list[str],
    methods: list[str],
    values: list[int],
    seeds: int,
    minutes: float | None,
    quick: bool,
    jobs: int,
    device: str,
    runs: Path,
    results: Path,
    console: Console,
) -> None:
    """A run for every horizon, all else equal, tracking; the longest first."""
    trainings = []
    for horizon in sorted(values)[::-1]:
        for training in maze_runs(tasks, methods, seeds, minutes, quick, device, runs):
            folder = training.folder.with_name(f"{training.folder.name}-H{horizon}")
            trainings.append(replace(training, config=replace(training.config, horizon=horizon), folder=folder))
    train_all(trainings, jobs, console)
    judge_all([_judging(t, "horizon", t.config.horizon or 0, quick) for t in trainings], jobs, results, console)


def given_runs(folders: list[Path], device: str) -> list[Training]:
    """Run folders from anywhere, as they were trained."""
    trainings = []
    for folder in folders:
        about = read_config(folder)
        if about["domain"] is None:
            raise UserError(
                f"{folder} was trained on a file, which has no environment to be judged in. Choose a run of a domain."
            )
        trainings.append(Training(RunConfig.from_json(about["config"]), folder, device))
    return trainings


def _judging(training: Training, axis: str, value: int, quick: bool) -> Judging:
    """The method's own closed loop with the track executor, K = 16 where K is not what is varied."""
    method = training.config.method
    if method not in PROTOCOLS:
        raise UserError(f"{method!r} is not a method of this study. {did_you_mean(method, PROTOCOLS)}")
    protocol = PROTOCOLS[method][0]
    protocol = protocol.quick() if quick else protocol
    if axis == "candidates":
        protocol = replace(protocol, candidates=value)
    if DOMAINS[training.config.dataset].tracker is None:
        protocol = replace(protocol, executor="action")
    return Judging("scaling", training, protocol, quick, 2 if quick else EPISODES, {"axis": axis, "value": value})
