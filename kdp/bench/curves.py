"""`kdp bench curves`: the score over training time. Each run is stopped now and then, judged, and resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from kdp.bench.jobs import Judging, Training, is_finished, judge_run, said, side_by_side, train_until
from kdp.bench.locomotion import RANKED, locomotion_runs, protocols
from kdp.bench.maze2d import PROTOCOLS, maze_runs
from kdp.bench.maze2d import TASKS as MAZES
from kdp.bench.results import Rows, append, holds, read
from kdp.domains import DOMAINS
from kdp.runs import CONFIG

EPISODES, SPAN = 25, 64  # the first point is at 1/64 of the training
MEASURED = "points.jsonl"  # in the run folder: a stopped study does not forget a run's earlier points


@dataclass(frozen=True)
class Curve:
    """A run and the steps at which it is judged."""

    judging: Judging
    stops: tuple[int, ...]


def bench_curves(
    tasks: list[str],
    methods: list[str],
    seeds: int,
    steps: int | None,
    points: int,
    quick: bool,
    jobs: int,
    device: str,
    runs: Path,
    results: Path,
    console: Console,
) -> None:
    """A curve for each run; its rows are written when it is done."""
    judgings = [
        Judging("curves", training, protocol.quick() if quick else protocol, quick, 2 if quick else EPISODES)
        for training in maze_runs([task for task in tasks if task in MAZES], methods, seeds, None, quick, device, runs)
        for protocol in PROTOCOLS[training.config.method][:1]
    ]
    judgings += [
        Judging("curves", beside(training), protocol, quick, 2 if quick else EPISODES, {"variant": variant})
        for variant, training in locomotion_runs(
            [task for task in tasks if task not in MAZES], methods, seeds, steps, quick, device, runs
        )
        for protocol in protocols(training.config.method, [RANKED], quick)
    ]
    curves = [curve_of(judging, steps, points) for judging in judgings]
    for curve in curves:
        is_finished(curve.judging.training)  # refuses a folder with another run
    for task in tasks:
        DOMAINS[task].episodes()  # made here, once, before the processes look for it
    for rows, stopped in side_by_side(follow, curves, jobs, "curves", console):
        there = read(results)
        for row in rows:
            if not holds(there, row):
                append(results, row | {"jobs": jobs})
                console.print(said(row), soft_wrap=True)
        if stopped:
            raise KeyboardInterrupt


def beside(training: Training) -> Training:
    """The same with a scorer that learns beside the generator, so that there is one at every stop."""
    return replace(training, config=replace(training.config, value=replace(training.config.value, apart=0)))


def curve_of(judging: Judging, steps: int | None, points: int) -> Curve:
    """A run of so many steps, the domain's own unless given, and its stops."""
    training = judging.training
    if not judging.quick:
        training = replace(training, config=replace(training.config, steps=steps))
    total = training.config.for_domain(DOMAINS[training.config.dataset]).steps or 1
    return Curve(replace(judging, training=training), spaced(total, points))


def spaced(steps: int, points: int) -> tuple[int, ...]:
    """Steps in geometric order, the last one the end of the training."""
    first = max(1, steps // SPAN)
    return tuple(sorted({round(step) for step in np.geomspace(first, steps, points)}))


def follow(curve: Curve) -> tuple[Rows, bool]:
    """Trains from stop to stop and judges at each; returns the rows, and whether it was interrupted. A stop that was
    passed without being judged is left out."""
    training = curve.judging.training
    kept = training.folder / MEASURED
    if not (training.folder / CONFIG).exists():
        kept.unlink(missing_ok=True)
    for stop in curve.stops:
        if holds(read(kept), {"train_steps": stop, "episodes": curve.judging.episodes}):
            continue
        outcome = train_until(training, stop)
        if outcome.interrupted:
            return read(kept), True
        if outcome.step == stop:
            append(kept, judge_run(curve.judging))
    return read(kept), False
