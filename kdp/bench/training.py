"""`kdp bench training`: how many steps training makes in a second, by the sizes of a step, and where its time goes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from kdp.bench.results import Row, Rows, append, row
from kdp.config import RunConfig
from kdp.domains import DOMAINS, Domain
from kdp.inverse import InverseModel
from kdp.parts import Parts, assemble
from kdp.train import GRAPH_AFTER, Update, has_bf16, move_average
from kdp.value import method_of
from kdp.windows import Episodes

STAGES = ("batch", "generator", "field", "backward", "optimizer", "average")
VALUES = {"samples": (1, 2, 4, 8, 16), "positives": (4, 8, 16, 32, 64)}
CONDITIONS = {"cpu": (32, 64, 128, 256, 512), "cuda": (256, 512, 1024, 2048, 4096)}
LOOPS = ("plain", "bf16", "fuse", "bf16+fuse")  # LoopConfig's switches
AXES = ("conditions", *VALUES, "loop")
LONG = 100_000  # steps of the run that a step is taken from: its table of windows is a long run's
WARM = GRAPH_AFTER + 2  # steps before the clock


def bench_training(
    tasks: list[str], axes: list[str], seconds: float, quick: bool, device: str, path: Path, console: Console
) -> None:
    """A row for each value of each axis, all else as usual."""
    rows = []
    for task in tasks:
        domain = DOMAINS[task]
        episodes = domain.episodes()
        inverse = assemble(RunConfig(task, steps=1).for_domain(domain, device), domain, episodes, device).inverse
        for axis, value in track(list(points(axes, quick, device)), task, console=console):
            config = sized(RunConfig(task, steps=50 if quick else LONG), axis, value, domain, device)
            measured = speed(config, domain, episodes, inverse, 0.05 if quick else seconds, device)
            about = {"task": task, "dataset": episodes.name, "method": "kdp", "field": config.drift.field}
            rows.append(row("training", device, **about, axis=axis, value=value, **measured, quick=quick))
            append(path, rows[-1])
    console.print(spoken(rows))


def points(axes: list[str], quick: bool, device: str) -> Iterator[tuple[str, int | str]]:
    kind = torch.device(device).type
    loops = LOOPS if has_bf16(device) else tuple(name for name in LOOPS if "bf16" not in name)
    known: dict[str, tuple[int | str, ...]] = {**VALUES, "conditions": CONDITIONS[kind], "loop": loops}
    for axis in axes:
        values = known[axis]
        yield from ((axis, value) for value in (values[:2] if quick else values))


def sized(config: RunConfig, axis: str, value: int | str, domain: Domain, device: str) -> RunConfig:
    """The domain's own settings with one size, or the loop, changed; the number of conditions stays where the others
    change."""
    usual = config.for_domain(domain, device)
    assert usual.batch
    if axis == "loop":
        return replace(usual, loop=replace(usual.loop, **dict.fromkeys({*str(value).split("+")} - {"plain"}, True)))
    conditions = int(value) if axis == "conditions" else usual.batch // usual.drift.samples
    sizes: dict[str, Any] = {} if axis == "conditions" else {axis: value}
    drift = replace(usual.drift, **sizes)
    return replace(usual, drift=drift, batch=conditions * drift.samples)


def speed(
    config: RunConfig, domain: Domain, episodes: Episodes, inverse: InverseModel, seconds: float, device: str
) -> Row:
    """Steps in a second as training takes them, and the milliseconds of each stage, launched one after the other."""
    clock = clock_of(device)
    parts = assemble(config, domain, episodes, device, inverse)
    begin = clock()
    parts.sampler(0)
    table = clock() - begin
    average = copy.deepcopy(parts.learner).requires_grad_(False)
    update = Update(parts.learner, config.loop)

    def step(number: int) -> None:
        update(parts.sampler(number % parts.sampler.refresh), config.loop.lr, number)
        move_average(average, parts.learner, config.loop.ema)

    for number in range(WARM):
        step(number)
    begin, count = clock(), 0
    while count < 3 or time.perf_counter() - begin < seconds:
        step(count)
        count += 1
    rate = count / (clock() - begin)
    assert config.batch
    return {
        "conditions": config.batch // config.drift.samples,
        "samples": config.drift.samples,
        "positives": config.drift.positives,
        "steps_per_s": rate,
        "windows_per_s": rate * config.batch,
        "steps_timed": count,
        "table_s": table,
        "table_steps": parts.sampler.refresh,
        "graph": update.graph is not None,
        "stages_ms": stages(parts, average, config, seconds / 2, clock),
    }


def stages(
    parts: Parts, average: nn.Module, config: RunConfig, seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Medians. `field` is the loss less the generator: the field and, where there is one, the scorer."""
    learner, update = parts.learner, Update(parts.learner, config.loop)
    method = method_of(learner)
    taken: list[list[float]] = []
    begin = clock()
    while len(taken) < 3 or clock() - begin < seconds:
        at = [clock()]
        batch = parts.sampler(len(taken) % parts.sampler.refresh)
        at.append(clock())
        with update.rounded():
            method.sample(batch.condition, method.samples, update.random)
            at.append(clock())
            loss = update.loss(batch, learner.draws(len(batch.windows), update.random))[0]
        at.append(clock())
        update.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        at.append(clock())
        update.advance()
        at.append(clock())
        move_average(average, learner, config.loop.ema)
        at.append(clock())
        taken.append([1e3 * float(ms) for ms in np.diff(at)])
    times = dict(zip(STAGES, np.median(taken[1:], 0), strict=True))
    return {name: float(ms) for name, ms in (times | {"field": times["field"] - times["generator"]}).items()}


def clock_of(device: str) -> Callable[[], float]:
    """Seconds, when all that was asked for is done."""

    def clock() -> float:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def spoken(rows: Rows) -> Table:
    table = Table("varied", "", "steps/s", *STAGES, title="Training: milliseconds by stage", box=None, pad_edge=False)
    for one in rows:
        times = [f"{one['stages_ms'][name]:.2f}" for name in STAGES]
        table.add_row(one["axis"], str(one["value"]), f"{one['steps_per_s']:.1f}", *times)
    return table
