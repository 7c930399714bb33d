"""`kdp bench fields`: the study that settles the default field, its temperatures, G, P and the key bandwidth.

One change at a time from the default, on the toys (are the modes there, in their shares?) and on U-maze (do the plans
work?), by the conditional energy score of held-out windows everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kdp.bench.jobs import Judging, Protocol, Training, judge_all, train_all
from kdp.bench.results import read
from kdp.bench.tables import field_cells
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.drift import DriftConfig

TASKS = {"maze2d-umaze": 2500, "toy": 3000, "toy-three": 3000}  # training steps

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
    quick: bool,
    device: str,
    seeds: int,
    tasks: list[str],
    variants: list[str],
    jobs: int,
    runs: Path,
    path: Path,
    console: Console,
) -> None:
    """Every variant on every task, trained on nine tenths of the episodes; a row each as it is done."""
    judgings = []
    for seed in range(seeds):
        for task in tasks:
            for name in variants:
                steps, drift = 20 if quick else TASKS[task], DriftConfig(**VARIANTS[name])
                folder = runs / f"{task}-{name}-{seed}{'-quick' if quick else ''}".replace(" ", "-")
                training = Training(RunConfig(task, steps=steps, seed=seed, drift=drift), folder, device, split=True)
                protocol, episodes = Protocol(DOMAINS[task].executor), 4 if quick else 100
                judgings.append(Judging("fields", training, protocol, quick, episodes, {"variant": name}))
    train_all([judging.training for judging in judgings], jobs, console)
    judge_all(judgings, jobs, path, console)
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
