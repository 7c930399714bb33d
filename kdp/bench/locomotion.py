"""`kdp bench locomotion`: KDP with and without value, the published field, Diffuser, regression and offline RL, on the
same data, judged in the same episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from kdp.bench.evaluate import measures, roll, seeds_of
from kdp.bench.jobs import Judging, Protocol, Training, judge_all, said, side_by_side, train_all
from kdp.bench.peer_settings import PEERS
from kdp.bench.peers import is_begun, is_trained, load_peer, peer_about, train_peers
from kdp.bench.results import append, holds, read, row
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.domains.locomotion import BODIES
from kdp.domains.locomotion import TASKS as SETS
from kdp.drift import DriftConfig
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.provenance import commit
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


@dataclass(frozen=True)
class Opponent:
    """A peer to be trained and judged."""

    name: str
    task: str
    seed: int
    quick: bool
    steps: int
    episodes: int
    device: str
    runs: Path

    @property
    def folder(self) -> Path:
        return self.runs / f"{self.task}-{self.name}-{self.seed}{'-quick' if self.quick else ''}"


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


def protocols(method: str, followed: list[str], quick: bool) -> list[Protocol]:
    """How a method is judged. Regression has nothing to rank."""
    asked = [UNRANKED] if method == "bc" else [FOLLOWED[name] for name in followed]
    return [protocol.quick() for protocol in asked] if quick else asked


def judgings_of(studied: list[tuple[str, Training]], followed: list[str], quick: bool) -> list[Judging]:
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
    followed: list[str],
    seeds: int,
    jobs: int,
    steps: int | None,
    peer_steps: int,
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
    opponents = [
        Opponent(name, task, seed, quick, 5 if quick else peer_steps, 2 if quick else EPISODES, device, runs)
        for name in variants
        if name in PEERS
        for task in tasks
        for seed in range(seeds)
    ]
    train_all(trainings, jobs, console, stack)
    judge_all(judgings, jobs, results, console, timed)
    rows = read(results)
    groups: dict[Any, list[Opponent]] = {}
    for opponent in [opponent for opponent in opponents if not holds(rows, identity(opponent))]:
        alone = not stack or is_begun(opponent.folder)
        groups.setdefault(opponent if alone else (opponent.name, opponent.task), []).append(opponent)
    for found in side_by_side(partial(measure_opponents, fuse=fuse), groups.values(), jobs, "peers", console):
        for measured in found:
            append(results, measured | {"jobs": jobs})
            console.print(said(measured), soft_wrap=True)


def measure_opponents(opponents: list[Opponent], fuse: bool) -> list[dict[str, Any]]:
    """Their rows, as soon as they are trained: a study that is cut off keeps those of the peers that were finished."""
    train_opponents(opponents, fuse)
    return [judge_opponent(opponent) for opponent in opponents]


def train_opponents(opponents: list[Opponent], fuse: bool) -> None:
    """Trains a peer with seeds of which there may be several."""
    first, seeds, folders = opponents[0], [one.seed for one in opponents], [one.folder for one in opponents]
    name, task, steps, device = first.name, first.task, first.steps, first.device
    if not all(is_trained(name, task, steps=steps, seed=one.seed, folder=one.folder) for one in opponents):
        episodes = DOMAINS[task].episodes()
        train_peers(name, episodes, task, steps=steps, seeds=seeds, device=device, folders=folders, fuse=fuse)


def judge_opponent(opponent: Opponent) -> dict[str, Any]:
    """One row: the peer's own action at every step."""
    domain, about = DOMAINS[opponent.task], peer_about(opponent.folder)
    played = roll(load_peer(opponent.folder, opponent.device), domain, seeds_of(opponent.seed, opponent.episodes))
    told = {
        "dataset": about["data"]["name"],
        "field": None,
        "executor": "action",
        "nfe": 1,
        "bef": 1,
        "train_minutes": about["seconds"] / 60,
        "train_commit": about["commit"],
        "stacked": about.get("stacked"),
        "config": about["settings"],
        "quick": opponent.quick,
    }
    return row("locomotion", opponent.device, **measures(played, domain), **told, **identity(opponent))


def identity(opponent: Opponent) -> dict[str, Any]:
    """What a row must say to be the one that this would measure again."""
    return {
        "task": opponent.task,
        "method": opponent.name,
        "variant": opponent.name,
        "candidates": 1,
        "chunk": 1,
        "seed": opponent.seed,
        "episodes": opponent.episodes,
        "train_steps": opponent.steps,
        "commit": commit(),
    }
