"""Peers of the locomotion study: trained by d3rlpy's losses, judged on the way and at their end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kdp.bench.evaluate import measures, roll, seeds_of
from kdp.bench.peer_settings import PEERS
from kdp.bench.peers import is_begun, is_trained, load_peer, looks_of, on_the_way, peer_about, train_peers
from kdp.bench.results import Row, Rows, append, holds, read, row
from kdp.domains import DOMAINS
from kdp.provenance import commit


@dataclass(frozen=True)
class Opponent:
    """A peer to be trained and judged."""

    name: str
    task: str
    seed: int
    quick: bool
    steps: int
    looks: tuple[int, ...]  # steps on the way after which it is judged too
    episodes: int
    device: str
    runs: Path

    @property
    def folder(self) -> Path:
        return self.runs / f"{self.task}-{self.name}-{self.seed}{'-quick' if self.quick else ''}"

    @property
    def stages(self) -> list[Stage]:
        return [Stage(self, on_the_way(self.folder, step), step) for step in self.looks] + [
            Stage(self, self.folder, self.steps)
        ]


class Stage(NamedTuple):
    """A peer after so many steps."""

    opponent: Opponent
    folder: Path
    steps: int


def opponents_of(
    tasks: list[str],
    names: list[str],
    seeds: int,
    steps: list[int],
    episodes: int,
    quick: bool,
    device: str,
    runs: Path,
) -> list[Opponent]:
    """Every peer that is named, trained for the last of `steps` and judged after those before it too."""
    return [
        Opponent(name, task, seed, quick, steps[-1], tuple(looks_of(name, steps)), episodes, device, runs)
        for name in names
        if name in PEERS
        for task in tasks
        for seed in range(seeds)
    ]


def groups_of(opponents: list[Opponent], rows: Rows, stack: bool) -> list[list[Opponent]]:
    """Those of which a row is missing, as they are to be trained: in a stack, the seeds of a peer together."""
    groups: dict[Any, list[Opponent]] = {}
    for one in opponents:
        if not all(holds(rows, identity(stage)) for stage in one.stages):
            alone = not stack or is_begun(one.folder)
            groups.setdefault(one if alone else (one.name, one.task), []).append(one)
    return list(groups.values())


def measure_opponents(opponents: list[Opponent], fuse: bool, jobs: int, results: Path) -> list[Row]:
    """Trains a peer with seeds of which there may be several -> their rows. Each is written when it is measured: a
    study that is cut off keeps them."""
    first, rows = opponents[0], read(results)
    measured: list[Row] = []

    def judge(steps: int) -> None:
        for stage in [stage for one in opponents for stage in one.stages if stage.steps == steps]:
            if stage_is_trained(stage) and not holds([*rows, *measured], identity(stage)):
                measured.append(judge_stage(stage) | {"jobs": jobs})
                append(results, measured[-1])

    for look in first.looks:
        judge(look)  # what an earlier, stopped study left
    if not all(stage_is_trained(one.stages[-1]) for one in opponents):
        train_peers(
            first.name,
            DOMAINS[first.task].episodes(),
            first.task,
            steps=first.steps,
            seeds=[one.seed for one in opponents],
            device=first.device,
            folders=[one.folder for one in opponents],
            fuse=fuse,
            looks=first.looks,
            seen=judge,
        )
    judge(first.steps)
    return measured


def stage_is_trained(stage: Stage) -> bool:
    one = stage.opponent
    return is_trained(one.name, one.task, steps=stage.steps, seed=one.seed, folder=stage.folder)


def judge_stage(stage: Stage) -> Row:
    """One row: the peer's own action at every step. It is asked on the CPU, where so small a network answers sooner."""
    one = stage.opponent
    domain, about = DOMAINS[one.task], peer_about(stage.folder)
    played = roll(load_peer(stage.folder), domain, seeds_of(one.seed, one.episodes))
    told = {
        "dataset": about["data"]["name"],
        "data": about["data"]["sha256"],
        "field": None,
        "executor": "action",
        "nfe": 1,
        "bef": 1,
        "train_minutes": about["seconds"] / 60,
        "train_commit": about["commit"],
        "stacked": about.get("stacked"),
        "config": about["settings"],
        "quick": one.quick,
    }
    return row("locomotion", one.device, **measures(played, domain), **told, **identity(stage))


def identity(stage: Stage) -> dict[str, Any]:
    """What a row must say to be the one that this would measure again."""
    return {
        "task": stage.opponent.task,
        "method": stage.opponent.name,
        "variant": stage.opponent.name,
        "candidates": 1,
        "chunk": 1,
        "seed": stage.opponent.seed,
        "episodes": stage.opponent.episodes,
        "train_steps": stage.steps,
        "commit": commit(),
    }
