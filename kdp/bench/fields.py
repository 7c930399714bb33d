"""`kdp bench fields`: the study that settles the default field, its temperatures, G, P and the key bandwidth.

One change at a time from the default, on the toys (are the modes there, in their shares?) and on U-maze (do the plans
work?), by the conditional energy score of held-out windows everywhere.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kdp.bench.evaluate import evaluate
from kdp.bench.results import append, read, row
from kdp.bench.samples import energy_score, wall_share
from kdp.bench.tables import field_cells
from kdp.checkpoint import load_tensors
from kdp.domains import DOMAINS
from kdp.domains.toy import THREE, TWO
from kdp.drift import DriftConfig
from kdp.plan import Planner
from kdp.runs import RunConfig, assemble
from kdp.sampler import Sampler
from kdp.train import MODEL, Budget, train

TASKS = {"maze2d-umaze": 2500, "toy": 3000, "toy-three": 3000}  # training steps
CONTEXTS = (-0.8, 0.0, 0.8)  # where the toys' modes are counted

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "keyed (paper)": {"field": "keyed"},
    "window (no key)": {"field": "window"},
    "attraction only": {"repulsion": False},
    "self-negatives": {"self_negatives": True},
    "no normalisation": {"normalize": False},
    "tau .2": {"temperatures": (0.2,)},
    "tau .02 .1 .4 2": {"temperatures": (0.02, 0.1, 0.4, 2.0)},
    "G 4": {"samples": 4},
    "G 16": {"samples": 16},
    "P 8": {"positives": 8},
    "P 32": {"positives": 32},
    "key .05": {"key_temperature": 0.05},
    "key .8": {"key_temperature": 0.8},
}


def study(
    quick: bool, device: str, seeds: int, tasks: list[str], variants: list[str], jobs: int, path: Path, console: Console
) -> None:
    """Every variant on every task, a row each as it is done, several processes side by side."""
    todo = [
        (name, RunConfig(task, steps=20 if quick else TASKS[task], seed=seed, drift=DriftConfig(**VARIANTS[name])))
        for seed in range(seeds)
        for task in tasks
        for name in variants
    ]
    work = [(name, config, device, 4 if quick else 100) for name, config in todo]
    for task in tasks:
        DOMAINS[task].episodes()  # made here, once, before the processes look for it
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for name, measured in track(pool.imap_unordered(_job, work), "runs", total=len(work), console=console):
            append(path, row("fields", device, variant=name, **measured))
    print_table(path, console)


def print_table(path: Path, console: Console) -> None:
    """Means over seeds, from the rows of the file."""
    table = Table("variant", "task", "seeds", "energy", "near", "shares", "score", "walls", title="fields")
    rows = read(path)
    for task in TASKS:
        for variant in dict.fromkeys(r["variant"] for r in rows):
            group = [r for r in rows if r["variant"] == variant and r["task"] == task]
            if group:
                table.add_row(variant, task, *field_cells(group))
    console.print(table)


def _job(work: tuple[str, RunConfig, str, int]) -> tuple[str, dict[str, Any]]:
    name, config, device, episodes = work
    torch.set_num_threads(1)
    return name, measure(config, device, episodes)


def measure(config: RunConfig, device: str, episodes: int) -> dict[str, Any]:
    """Trains on nine tenths of the episodes; measures samples on the rest, and the plans in closed loop."""
    domain = DOMAINS[config.dataset]
    config = config.for_domain(domain)
    training, held_out = domain.episodes().split(0.1)
    method, sampler, normalizer = assemble(config, domain, training, device)
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(method, sampler, Path(folder), Budget(config.steps), config.loop, config.seed, extra={})
        if outcome.interrupted:
            raise KeyboardInterrupt
        tensors, _ = load_tensors(Path(folder) / MODEL)
    method.load_state_dict({k.removeprefix("weights."): v for k, v in tensors.items()})
    method.eval().requires_grad_(False)
    _, unseen, _ = assemble(config, domain, held_out, device)
    unseen = Sampler(unseen.windows, normalizer, domain.key, 512, 0, seed=1)
    scorer = None if domain.scorer is None else replace(domain.scorer, stride=config.stride or 1)
    planner = Planner(
        method.sample,
        normalizer,
        config.stride or 1,
        domain.goals.dims if domain.goals else (),
        scorer,
        domain.tracker,
        device=torch.device(device),
    )
    result, _ = evaluate(planner, domain, episodes=episodes, candidates=16, executor=domain.executor, seed=config.seed)
    measured = {
        "task": config.dataset,
        "dataset": "built in" if domain.make is None else f"regenerated/{domain.name}",
        "method": config.method,
        "field": config.drift.field,
        "temperatures": config.drift.scale(),
        "lambda_a": config.drift.lambda_a,
        "samples": config.drift.samples,
        "positives": config.drift.positives,
        "key_temperature": config.drift.key_temperature,
        "train_minutes": outcome.elapsed / 60,
        "train_steps": outcome.step,
        "energy_score": energy_score(method, unseen(0)),
        "near": None,
        "shares": None,
        "walls": None if domain.walls is None else wall_share(planner, unseen, domain),
    }
    if config.dataset.startswith("toy"):
        measured |= _modes(planner, TWO if config.dataset == "toy" else THREE)
    return result | measured


def _modes(planner: Planner, toy) -> dict[str, Any]:
    """Share of samples near a mode (worst context) and the modes' shares (mean over contexts)."""
    near, shares = [], []
    for context in CONTEXTS:
        plan = planner.plan(toy.start(context), candidates=1000)
        mode = toy.nearest_mode(plan.candidates, context)
        near.append(float((mode >= 0).mean()))
        shares.append([float((mode == m).mean()) for m in range(len(toy.modes))])
    return {"near": min(near), "shares": np.mean(shares, 0).round(3).tolist()}
