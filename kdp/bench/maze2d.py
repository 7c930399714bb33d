"""`kdp bench maze2d`: train every method on every maze, judge it with every executor, one row each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from kdp.bench.evaluate import evaluate
from kdp.bench.results import append, row
from kdp.domains import DOMAINS
from kdp.judge import draw_episodes
from kdp.runs import CONFIG, RunConfig, load, read_config, resume_run, start_run

TASKS = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
METHODS = ("kdp", "diffuser", "bc")
EXECUTORS = ("track", "inverse", "action")
CANDIDATES = {"kdp": 16, "diffuser": 16, "bc": 1}  # regression has only one plan to offer


def bench_maze2d(
    tasks: list[str],
    methods: list[str],
    seeds: int,
    minutes: float | None,
    quick: bool,
    device: str,
    runs: Path,
    results: Path,
    console: Console,
) -> None:
    """Runs are kept in `runs`: a study that was stopped goes on where it stopped, and trains nothing twice."""
    for seed in range(seeds):
        for task in tasks:
            for method in methods:
                folder = runs / f"{task}-{method}-{seed}"
                budget: dict[str, Any] = {"steps": 5} if quick else {"minutes": minutes} if minutes else {}
                config = RunConfig(task, method=method, seed=seed, batch=16 if quick else 512, **budget)
                console.print(f"{task}, {method}, seed {seed}: {folder}")
                goes_on = (folder / CONFIG).exists()
                outcome = (
                    resume_run(folder, device=device, console=console)
                    if goes_on
                    else start_run(config, folder, device=device, console=console)
                )
                if not outcome.finished:
                    raise KeyboardInterrupt
                for measured in judge_run(folder, device, episodes=2 if quick else 100, seed=seed):
                    trained = {"train_minutes": outcome.elapsed / 60, "train_steps": outcome.step}
                    append(results, row("maze2d", device, **measured, **trained))
                    console.print(_said(measured))


def judge_run(folder: Path, device: str, episodes: int, seed: int) -> list[dict[str, Any]]:
    """A finished run under every executor; draws its plans."""
    about, planner = read_config(folder), load(folder, device)
    domain, method = DOMAINS[about["domain"]], about["config"]["method"]
    rows = []
    for executor in EXECUTORS:
        candidates = CANDIDATES[method]
        result, played = evaluate(
            planner, domain, episodes=episodes, candidates=candidates, executor=executor, seed=seed
        )
        draw_episodes(folder / f"{executor}.png", planner, played, candidates, domain)
        field = about["config"]["drift"]["field"] if method == "kdp" else None
        rows.append(result | {"task": domain.name, "dataset": about["data"]["name"], "method": method, "field": field})
    return rows


def _said(measured: dict[str, Any]) -> str:
    return f"  {measured['executor']}: score {measured['score']:.1f}, success {measured['success']:.0%}"
