"""`kdp bench fields`: the study that settles the default field, its temperatures, G, P and the key bandwidth.

One change at a time from the default, on the toys (are the modes there, in their shares?) and on U-maze (do the plans
work?), by the conditional energy score of held-out windows everywhere.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kdp.bench.evaluate import evaluate
from kdp.bench.results import append, row
from kdp.bench.samples import energy_score, wall_share
from kdp.domains import DOMAINS
from kdp.domains.toy import THREE, TWO
from kdp.drift import DriftConfig
from kdp.plan import Planner
from kdp.runs import RunConfig, assemble
from kdp.sampler import Sampler
from kdp.train import Budget, train

TASKS = {"toy": 3000, "toy-three": 3000, "maze2d-umaze": 4000}
CONTEXTS = (-0.8, 0.0, 0.8)  # where the toys' modes are counted

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "apart": {"field": "apart"},
    "energy": {"field": "energy"},
    "sinkhorn": {"field": "sinkhorn"},
    "keyed (paper)": {"field": "keyed"},
    "window (no key)": {"field": "window"},
    "tau .05": {"temperatures": (0.05,)},
    "tau .02 .05 .2": {"temperatures": (0.02, 0.05, 0.2)},
    "tau .05 .2 1": {"temperatures": (0.05, 0.2, 1.0)},
    "tau .2 1": {"temperatures": (0.2, 1.0)},
    "G 4": {"samples": 4},
    "G 16": {"samples": 16},
    "P 8": {"positives": 8},
    "P 16": {"positives": 16},
    "P 64": {"positives": 64},
    "key .02": {"key_temperature": 0.02},
    "key .1": {"key_temperature": 0.1},
    "key .2": {"key_temperature": 0.2},
}


def study(quick: bool, device: str, seeds: int, only: str | None, results: Path, console: Console) -> None:
    """Every variant on every task, a row each."""
    table = Table("variant", "task", "energy score", "near", "shares", "score", "walls", title="fields")
    for name, change in VARIANTS.items():
        if only is not None and name not in only.split(","):
            continue
        for task, steps in TASKS.items():
            for seed in range(seeds):
                config = RunConfig(task, steps=20 if quick else steps, seed=seed, drift=DriftConfig(**change))
                measured = measure(config, device, episodes=4 if quick else 100)
                append(results, row("fields", device, variant=name, **measured))
                table.add_row(name, task, *_cells(measured))
                console.print(name, task, *_cells(measured))
    console.print(table)


def measure(config: RunConfig, device: str, episodes: int) -> dict[str, Any]:
    """Trains on nine tenths of the episodes; measures samples on the rest, and the plans in closed loop."""
    domain = DOMAINS[config.dataset]
    tilt = domain.tilt if config.drift.tilt is None else config.drift.tilt
    config = replace(
        config,
        horizon=config.horizon or domain.horizon,
        stride=config.stride or domain.stride,
        drift=replace(config.drift, tilt=tilt),
    )
    training, held_out = domain.episodes().split(0.1)
    method, sampler, normalizer = assemble(config, domain, training, device)
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(method, sampler, Path(folder), Budget(config.steps), config.loop, config.seed, extra={})
        from kdp.checkpoint import load_tensors

        tensors, _ = load_tensors(Path(folder) / "model.safetensors")
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
        torch.device(device),
    )
    result, _ = evaluate(planner, domain, episodes=episodes, candidates=16, executor=domain.executor, seed=config.seed)
    measured = {
        "task": config.dataset,
        "dataset": "built in" if domain.make is None else f"regenerated/{domain.name}",
        "method": config.method,
        "field": config.drift.field,
        "temperatures": config.drift.scale(),
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


def _cells(measured: dict[str, Any]) -> list[str]:
    shares = " ".join(f"{s:.2f}" for s in measured["shares"] or [])
    near = "" if measured["near"] is None else f"{measured['near']:.2f}"
    walls = "" if measured["walls"] is None else f"{100 * measured['walls']:.1f}%"
    return [f"{measured['energy_score']:.4f}", near, shares, f"{measured['score']:.1f}", walls]
