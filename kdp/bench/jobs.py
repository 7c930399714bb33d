"""What the studies share: runs trained and then judged, several processes side by side, and nothing done twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress, track

from kdp.bench.evaluate import Episode, evaluate, plan_ms_p50
from kdp.bench.results import append, holds, read, row
from kdp.bench.samples import held_out_measures, on_the_way, wall_share
from kdp.config import RunConfig
from kdp.domains import DOMAINS, Domain
from kdp.drift import DriftConfig
from kdp.errors import UserError
from kdp.judge import draw_episodes
from kdp.parts import assemble
from kdp.provenance import commit
from kdp.runs import CONFIG, load, read_config, resume_run, spent, start_run
from kdp.stacked import train_stack
from kdp.train import Outcome
from kdp.windows import Episodes

GRACE = 20.0  # seconds that an interrupted process has to leave its checkpoint
EPISODES, PLANS = 100, 1000  # a run is judged by so many episodes, and so many plans are held against the walls

Timing = tuple[RunConfig, str, int, int]
In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class Protocol:
    """How a run is judged."""

    executor: str
    candidates: int = 16
    chunk: int = 1
    """Steps between plans; 0: one plan, executed to the end (open loop)."""
    warm: int = 0
    """Network calls that refine the last plan, where the next one is not drawn from noise (diffuser); 0: it is."""
    blend: float | None = None
    """What is followed, as value.blend; None: the run's own."""
    scored: bool = True
    """Not: all candidates count the same, and a blend of them is their mean."""

    def quick(self) -> Protocol:
        """The same, cheaply."""
        chunk = 100 if self.chunk else 0
        return replace(self, candidates=min(self.candidates, 2), chunk=chunk, warm=min(self.warm, 1))


@dataclass(frozen=True)
class Training:
    """A run to be trained, or gone on with."""

    config: RunConfig
    folder: Path
    device: str
    split: bool = False
    """Train on nine tenths of the episodes."""


@dataclass(frozen=True)
class Judging:
    """A row to be measured."""

    suite: str
    training: Training
    protocol: Protocol
    quick: bool = False
    episodes: int = EPISODES
    labels: dict[str, Any] = field(default_factory=dict)
    """Columns of the study's own, which tell its rows apart."""
    picture: Path | None = None
    scorer: Path | None = None
    """The run whose scorer ranks the candidates, and whose blend is followed; None: its own."""


def train_all(trainings: list[Training], jobs: int, console: Console, stack: bool = False) -> None:
    """Trains what is not finished, in the order given. Stack: runs that differ in their seed alone, as one."""
    for task in dict.fromkeys(training.config.dataset for training in trainings):
        DOMAINS[task].episodes()  # made here, once, before the processes look for it
    groups: dict[Any, list[Training]] = {}
    for training in [training for training in trainings if not is_finished(training)]:
        alone = not stack or (training.folder / CONFIG).exists()
        same = training.folder if alone else replace(training, config=replace(training.config, seed=0), folder=Path())
        groups.setdefault(same, []).append(training)
    for outcome in side_by_side(train_group, groups.values(), jobs, "training", console):
        if not outcome.finished:
            raise KeyboardInterrupt


def judge_all(judgings: list[Judging], jobs: int, path: Path, console: Console, timed: bool = True) -> None:
    """Measures the rows that `path` does not hold yet; each is written as it comes.

    Times are taken beforehand, with nothing beside them and once for all seeds: jobs that share the machine would
    measure each other. Not `timed`: they are left out.
    """
    rows, now = read(path), commit()
    named = {json.dumps(identity(judging, now)): judging for judging in reversed(judgings)}  # once each, the first
    todo = [judging for name, judging in reversed(named.items()) if not holds(rows, json.loads(name))]
    alone: dict[Timing, float] = {}
    if todo and timed:
        wanted = list({timing(judging): judging for judging in reversed(todo)}.values())
        one_by_one = map(latency, wanted) if jobs == 1 else _processes(latency, wanted, 1)
        alone = dict(track(one_by_one, "latency", total=len(wanted), console=console))
    for measured, key in side_by_side(_judge, todo, jobs, "judging", console):
        append(path, measured | {"plan_ms_p50": alone.get(key), "jobs": jobs})
        console.print(said(measured), soft_wrap=True)


def side_by_side(
    function: Callable[[In], Out], items: Iterable[In], jobs: int, about: str, console: Console
) -> Iterator[Out]:
    """function(item) for every item, as they come: in `jobs` processes of one thread each, or here if one is enough."""
    items = list(items)
    if jobs == 1 or len(items) == 1:
        with Progress(console=console) as bar:  # so that after Ctrl-C it ends at once, not when it is collected
            for item in bar.track(items, description=about):
                yield function(item)
    elif items:
        yield from track(_processes(function, items, jobs), about, total=len(items), console=console)


def train_run(training: Training) -> Outcome:
    """Trains a run, or goes on where it stopped."""
    return train_until(training, None)


def train_group(trainings: list[Training]) -> Outcome:
    """Trains runs that differ in nothing but their seeds."""
    first = trainings[0]
    if len(trainings) == 1:
        return train_run(first)
    configs, folders = [training.config for training in trainings], [training.folder for training in trainings]
    return train_stack(configs, folders, device=first.device, domain=_domain(first)[0])


def train_until(training: Training, step: int | None) -> Outcome:
    """The same up to a step; None: to its end."""
    domain = _domain(training)[0]
    if (training.folder / CONFIG).exists():
        return resume_run(training.folder, device=training.device, stop_after=step, domain=domain)
    return start_run(training.config, training.folder, device=training.device, stop_after=step, domain=domain)


def is_finished(training: Training) -> bool:
    """Whether the folder holds this very run, trained to its end; refuses a folder with another run."""
    folder = training.folder
    if not (folder / CONFIG).exists():
        return False
    there = RunConfig.from_json(read_config(folder)["config"])
    wanted = training.config.for_domain(DOMAINS[training.config.dataset], training.device)
    other = [name for name, value in vars(wanted).items() if getattr(there, name) != value]
    if other:
        raise UserError(
            f"{folder} holds a run with other settings than this study's ({', '.join(other)}); "
            "remove it, or give another folder with --runs."
        )
    return spent(folder, there)[2]


def judge_run(judging: Judging) -> dict[str, Any]:
    """One row: a run under one protocol, with the walls that its plans touch and, where some data were held out, how
    its samples fit them."""
    training, protocol = judging.training, judging.protocol
    about, planner = read_config(training.folder), load(training.folder, training.device)
    if judging.scorer is not None:
        lender = load(judging.scorer, training.device)
        planner = replace(planner, scorer=lender.scorer, blend=lender.blend)
    domain, held_out = _domain(training)
    seed = about["config"]["seed"]
    result, played = evaluate(planner, domain, episodes=judging.episodes, seed=seed, timed=False, **asdict(protocol))
    measured = result | judging.labels | told(about, training) | {"walls": None}
    if domain.walls is not None and not protocol.warm:  # a warm plan is not one from here alone
        states, goals = on_the_way(played, 20 if judging.quick else PLANS)
        measured["walls"] = wall_share(planner, domain.walls, states, goals, protocol.candidates)
    if held_out is not None:
        config = RunConfig.from_json(about["config"])
        windows = assemble(config, domain, held_out, training.device, planner.inverse).sampler.windows
        drawn = load(training.folder, training.device, temperature=1.0)  # as the data are
        measured |= held_out_measures(drawn, domain, windows, conditions=16 if judging.quick else 512)
    if judging.picture is not None:
        draw_episodes(judging.picture, planner, played, protocol.candidates, domain)
    return row(judging.suite, training.device, **measured, quick=judging.quick)


def told(about: dict[str, Any], training: Training) -> dict[str, Any]:
    """What a row says of its run: what was trained, on what, how, and what it took."""
    config, domain = about["config"], DOMAINS[about["domain"]]
    steps, minutes, _ = spent(training.folder, RunConfig.from_json(config))
    data = about["data"]["name"]
    return {
        "task": domain.name,
        "dataset": data if data.startswith("regenerated/") else "built in",
        "data": about["data"]["sha256"],
        "method": config["method"],
        "field": config["drift"]["field"] if config["method"] == "kdp" else None,
        "train_minutes": minutes,
        "train_steps": steps,
        "train_commit": about["commit"],
        "stacked": about.get("stacked"),
        "config": config,
    }


def identity(judging: Judging, now: str | None) -> dict[str, Any]:
    """What a row must say to be the one that this would measure again."""
    config = read_config(judging.training.folder)["config"]
    blend = config["value"]["blend"] if judging.protocol.blend is None else judging.protocol.blend
    asked = asdict(judging.protocol) | {"blend": blend, "episodes": judging.episodes, "config": config, "commit": now}
    return json.loads(json.dumps(asked | judging.labels))


def timing(judging: Judging) -> Timing:
    """What the time of a decision depends on: settings other than seed and field, device, K, warm."""
    training, protocol = judging.training, judging.protocol
    config = replace(training.config, seed=0, drift=DriftConfig())
    return config, training.device, protocol.candidates, protocol.warm


def latency(judging: Judging) -> tuple[Timing, float]:
    """The median time of a decision, from the first start of the domain's environment."""
    folder, protocol = judging.training.folder, judging.protocol
    domain = DOMAINS[read_config(folder)["domain"]]
    assert domain.environments is not None
    environment = domain.environments(1)
    states, goals = environment.reset([0])
    environment.close()
    episode = Episode(0.0, False, None, states, None if goals is None else goals[0])
    planner = load(folder, judging.training.device)
    return timing(judging), plan_ms_p50(planner, episode, protocol.candidates, protocol.warm)


def said(measured: dict[str, Any]) -> str:
    """A row in a line."""
    labels = [measured.get(name) for name in ("task", "method", "base", "variant", "axis", "value", "executor")]
    loop = f"K {measured['candidates']}, chunk {measured['chunk']}, {measured['train_steps']} steps"
    score = "-" if measured["score"] is None else f"{measured['score']:.1f}"
    named = ", ".join(str(label) for label in labels if label is not None)
    return f"{named}, {loop}, seed {measured['seed']}: score {score}, success {measured['success']:.0%}"


def _judge(judging: Judging) -> tuple[dict[str, Any], Timing]:
    return judge_run(judging), timing(judging)


def _domain(training: Training) -> tuple[Domain, Episodes | None]:
    """The domain, with nine tenths of its episodes where the rest is held out, and that rest."""
    domain = DOMAINS[training.config.dataset]
    if not training.split:
        return domain, None
    kept, held_out = domain.episodes().split(0.1)
    return replace(domain, episodes=lambda: kept), held_out


def _processes(function: Callable[[In], Out], items: list[In], count: int) -> Iterator[Out]:
    """function(item) in `count` processes of one thread each, started in order. Nothing waits in a queue: after Ctrl-C
    or SIGTERM, which the processes hear too, each leaves its checkpoint and none begins another."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the libraries that the processes will load
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(count, len(items)), spawn, torch.set_num_threads, (1,))
    waiting = iter(items)
    before = signal.signal(signal.SIGTERM, _interrupt_once)
    try:
        running = {pool.submit(function, item) for item in islice(waiting, count)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(function, item) for item in islice(waiting, len(done))}
            yield from (future.result() for future in done)
    except BrokenProcessPool:
        raise UserError(
            "a process of the study was ended from outside, perhaps for memory; try fewer --jobs."
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.join(GRACE)
            process.terminate()
        signal.signal(signal.SIGTERM, before)


def _interrupt_once(number: int, frame: object) -> None:
    """As Ctrl-C does; what kills a group of processes may send it twice."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
