"""`kdp bench ablations`: the paper's table of ablations, for our field and for the published one.

Trained on nine tenths of the episodes: samples are measured on the rest, plans in closed loop.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from kdp.bench.jobs import EPISODES, Judging, Protocol, Training, judge_all, train_all
from kdp.bench.locomotion import RANKED, UNRANKED
from kdp.bench.locomotion import VARIANTS as VALUE_VARIANTS
from kdp.bench.maze2d import quick_config
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.drift import DriftConfig
from kdp.networks import NetworkConfig

BASES = ("joint", "keyed")
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "no keying": {"keying": False},
    "self-negatives": {"self_negatives": True},
    "attraction only": {"repulsion": False},
    "no normalisation": {"normalize": False},
    "single temperature": {"temperatures": (0.2,)},
}
OURS: dict[str, dict[str, Any]] = {  # what we add to the paper in mazes, left out one by one (joint field only)
    "no tilt": {"drift": DriftConfig(tilt=0.0)},
    "no sight": {"drift": DriftConfig(sight=False)},
    "the data's actions": {"relabel": False},
    "no bands": {"network": NetworkConfig(bands=0)},
}
VALUED, APART = VALUE_VARIANTS["kdp"]["value"], VALUE_VARIANTS["kdp-critic"]["value"]
CRITIC = replace(VALUE_VARIANTS["kdp-ascent"]["value"], ascent=0.0)
VALUE: dict[str, dict[str, Any]] = {  # and in locomotion: less of it, other scorers, and value in the field
    "no blend": {"value": replace(VALUED, blend=0.0)},
    "no caution": {"value": replace(VALUED, caution=0.0)},
    "one head": {"value": replace(VALUED, heads=1)},
    "two wide heads": {"value": replace(VALUED, heads=2, width=2 * VALUED.width)},
    "little weight decay": {"value": replace(VALUED, weight_decay=1e-4)},
    "all episodes alike": {"value": replace(VALUED, favour=0.0)},
    "no trunk": {"network": NetworkConfig(trunk=0, blocks=3)},
    "temperature 1": {"temperature": 1.0},
    "no bounds": {"bounded": False},
    "returns as they are": {"value": replace(VALUED, trace=1.0)},
    "scores of whole windows": {"value": replace(VALUED, sees="window")},
    "smooth": {"value": replace(VALUED, smooth=0.3)},
    "wish": {"value": VALUE_VARIANTS["kdp-wish"]["value"]},
    "critic apart": {"value": APART},
    "targets from the generator": {"value": replace(APART, targets="generator")},
    "critic beside": {"value": CRITIC},
    "tilt": {"value": replace(CRITIC, tilt=1.0)},
    "ascent": {"value": replace(CRITIC, ascent=VALUE_VARIANTS["kdp-ascent"]["value"].ascent)},
}
MAZE_PROTOCOLS, LOCOMOTION_PROTOCOLS = [Protocol("track"), Protocol("action")], [RANKED, UNRANKED]


def is_maze(task: str) -> bool:
    return DOMAINS[task].walls is not None


def varied(plain: RunConfig, base: str, variant: str) -> RunConfig:
    """The published field without its keys is the window field; ours draws its positives at random."""
    if variant in OURS or variant in VALUE:
        return replace(plain, **(OURS | VALUE)[variant])
    if (base, variant) == ("keyed", "no keying"):
        return replace(plain, drift=DriftConfig(field="window"))
    return replace(plain, drift=DriftConfig(field=base, **VARIANTS[variant]))  # type: ignore[arg-type]


def bench_ablations(
    tasks: list[str],
    bases: list[str],
    variants: list[str],
    seeds: int,
    jobs: int,
    steps: int | None,
    quick: bool,
    timed: bool,
    stack: bool,
    device: str,
    runs: Path,
    results: Path,
    console: Console,
) -> None:
    """Runs are kept in `runs`: a study that was stopped goes on where it stopped, and does nothing twice."""
    trainings, judgings = [], []
    longest_first = sorted(tasks, key=lambda task: -DOMAINS[task].episode_steps)
    for task, base, variant, seed in product(longest_first, bases, variants, range(seeds)):
        if (base != "joint" and variant in OURS | VALUE) or variant in (VALUE if is_maze(task) else OURS):
            continue
        plain = quick_config(task, "kdp", seed) if quick else RunConfig(task, seed=seed, steps=steps)
        if not is_maze(task):
            plain = replace(plain, value=VALUED)
        name = f"{task}-{base}-{variant}-{seed}{'-quick' if quick else ''}".replace(" ", "-").replace("'", "")
        training = Training(varied(plain, base, variant), runs / name, device, split=True)
        labels, episodes = {"base": base, "variant": variant}, 2 if quick else EPISODES if is_maze(task) else 20
        protocols = MAZE_PROTOCOLS if is_maze(task) else LOCOMOTION_PROTOCOLS
        protocols = [protocol.quick() if quick else protocol for protocol in protocols]
        trainings.append(training)
        judgings += [Judging("ablations", training, protocol, quick, episodes, labels) for protocol in protocols]
    train_all(trainings, jobs, console, stack)
    judge_all(judgings, jobs, results, console, timed)
