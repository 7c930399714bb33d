"""`kdp bench locomotion`: KDP with and without value, the published field, Diffuser, regression and offline RL, on the
same data, judged in the same episodes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from kdp.bench.jobs import Judging, Protocol, Training, judge_all, said, side_by_side, train_all
from kdp.bench.opponents import groups_of, measure_opponents, opponents_of
from kdp.bench.results import read
from kdp.config import RunConfig
from kdp.domains.locomotion import BODIES
from kdp.domains.locomotion import TASKS as SETS
from kdp.drift import DriftConfig
from kdp.errors import UserError, did_you_mean
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.train import WEIGHT_DECAY, LoopConfig
from kdp.value import ValueConfig

TASKS = tuple(f"{body}-{kind}" for kind in ("medium", "medium-expert") for body in BODIES)
EPISODES, CANDIDATES = 20, 64
BATCH = 4096  # windows in a step on a GPU; KDP, and every method on a CPU, has its usual number

# Ours; with the paper's scorer, which sees whole windows; of all episodes alike; with a critic; with value in the field
# too; asked for a return; the published field, of which the best of all is followed as published; Diffuser with our
# network and windows, ranked by the paper's scorer (which suited it better in trials) and by ours, and with the U-Net
# as published; regression of all the data, of the windows that ours learns from, and asked for a return (RvS).
PUBLISHED = ValueConfig("return", trace=1.0, sees="window", blend=0.0, favour=0.0, weight_decay=1e-4)
VARIANTS: dict[str, dict[str, Any]] = {
    "kdp": {"value": ValueConfig("return")},
    "kdp-window": {"value": ValueConfig("return", sees="window")},
    "kdp-alike": {"value": ValueConfig("return", favour=0.0)},
    "kdp-critic": {"value": ValueConfig("critic", blend=4.0)},
    "kdp-ascent": {"value": ValueConfig("critic", apart=0, steps=1000, ascent=0.2)},
    "kdp-wish": {"value": ValueConfig("return", wish=0.8, favour=0.0)},
    "kdp-published": {
        "value": PUBLISHED,
        "drift": DriftConfig(field="keyed"),
        "temperature": 1.0,
        "bounded": False,
        "loop": LoopConfig(weight_decay=WEIGHT_DECAY),
    },
    "diffuser": {
        "method": "diffuser",
        "value": ValueConfig("return", sees="window"),
        "network": NetworkConfig("mlp"),
        "temperature": 0.85,  # its twenty steps draw plans a tenth narrower than that, about as wide as ours at 0.75
    },
    "diffuser-published": {
        "method": "diffuser",
        "value": PUBLISHED,
        "temperature": 1.0,
        "bounded": False,
        "loop": LoopConfig(weight_decay=WEIGHT_DECAY),
    },
    "bc": {"method": "bc", "value": ValueConfig("none", favour=0.0)},
    "bc-favour": {"method": "bc", "value": ValueConfig("none")},
    "bc-wish": {"method": "bc", "value": ValueConfig("none", wish=0.8, favour=0.0)},
}
LENDERS = {"diffuser": "kdp"}  # whose scorer ranks candidates beside their own: that of the run of the same seed
RANKED, MEAN, BEST, UNRANKED = (
    Protocol("action", CANDIDATES),
    Protocol("action", CANDIDATES, blend=1.0, scored=False),
    Protocol("action", CANDIDATES, blend=0.0),
    Protocol("action", 1),
)
FOLLOWED = {"own": RANKED, "mean": MEAN, "best": BEST, "one": UNRANKED}  # as the run says (a blend), or otherwise


def ways_of(text: str) -> list[Protocol]:
    """Ways to follow plans, separated by commas: names, and numbers, which are blends."""
    ways = []
    for name in text.split(","):
        try:
            blend = float(name)
        except ValueError:
            blend = 0.0
        if not (name in FOLLOWED or 0 < blend < math.inf):
            known = did_you_mean(name, FOLLOWED)
            raise UserError(f"{name!r} is not a way to follow plans, nor a blend (a number above 0). {known}")
        ways.append(FOLLOWED[name] if name in FOLLOWED else Protocol("action", CANDIDATES, blend=blend))
    return list(dict.fromkeys(ways))


def collect_missing(tasks: list[str], policies: Path | None) -> None:
    """Data that are not there are collected from the policies in this folder; without one, it is said how to."""
    for task, domain in SETS.items():
        if domain.name in tasks:
            if policies is not None and not task.there:
                task.collect(policies)
            domain.episodes()


def locomotion_runs(
    tasks: list[str],
    variants: list[str],
    seeds: int,
    steps: int | None,
    quick: bool,
    device: str,
    runs: Path,
    fuse: bool = False,
) -> list[tuple[str, Training]]:
    """Variants and their runs, in the order given; peers are not among them."""
    studied = []
    for task, variant, seed in product(tasks, [name for name in variants if name in VARIANTS], range(seeds)):
        config = replace(RunConfig(task, seed=seed, steps=steps), **VARIANTS[variant])
        if device == "cuda" and config.method != "kdp":
            config = replace(config, batch=BATCH)
        unet = config.method == "diffuser" and config.network.kind is None
        config = replace(config, loop=replace(config.loop, fuse=fuse and not unet))
        if quick:
            config = replace(config, steps=5, batch=16, diffusion=DiffusionConfig(steps=2))
        name = f"{task}-{variant}-{seed}{'-quick' if quick else ''}"
        studied.append((variant, Training(config, runs / name, device)))
    return studied


def protocols(method: str, followed: list[Protocol], quick: bool) -> list[Protocol]:
    """How a method is judged. Regression has nothing to rank."""
    asked = [UNRANKED] if method == "bc" else followed
    return [protocol.quick() for protocol in asked] if quick else asked


def judgings_of(studied: list[tuple[str, Training]], followed: list[Protocol], quick: bool) -> list[Judging]:
    """What there is to measure. What is ranked is so by a lender's scorer too, where the lender is in the study."""
    folders = {(variant, run.config.dataset, run.config.seed): run.folder for variant, run in studied}
    judgings = []
    for variant, training in studied:
        labels, episodes = {"variant": variant, "ranked_by": None}, 2 if quick else EPISODES
        name = LENDERS.get(variant, "")
        lender = folders.get((name, training.config.dataset, training.config.seed))
        for asked in protocols(training.config.method, followed, quick):
            judgings.append(Judging("locomotion", training, asked, quick, episodes, labels))
            if lender is not None and asked.candidates > 1 and asked.scored:
                lent = labels | {"ranked_by": name}
                judgings.append(Judging("locomotion", training, asked, quick, episodes, lent, scorer=lender))
    return judgings


def bench_locomotion(
    tasks: list[str],
    variants: list[str],
    followed: list[Protocol],
    seeds: int,
    jobs: int,
    steps: int | None,
    peer_steps: list[int],
    quick: bool,
    timed: bool,
    stack: bool,
    device: str,
    runs: Path,
    results: Path,
    console: Console,
) -> None:
    """Runs are kept in `runs`: a study that was stopped goes on where it stopped, and does nothing twice."""
    fuse = stack and not quick and device == "cuda"  # what a stack of small networks waits for is the launching
    studied = locomotion_runs(tasks, variants, seeds, steps, quick, device, runs, fuse)
    trainings = [training for _, training in studied]
    judgings = judgings_of(studied, followed, quick)
    train_all(trainings, jobs, console, stack)
    judge_all(judgings, jobs, results, console, timed)
    episodes = 2 if quick else EPISODES
    opponents = opponents_of(tasks, variants, seeds, [5] if quick else peer_steps, episodes, quick, device, runs)
    groups = groups_of(opponents, read(results), stack)
    measure = partial(measure_opponents, fuse=fuse, jobs=jobs, results=results)
    for found in side_by_side(measure, groups, jobs, "peers", console):
        for measured in found:
            console.print(said(measured), soft_wrap=True)
