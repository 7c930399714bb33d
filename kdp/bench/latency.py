"""`kdp latency`: how long a decision takes. Planners take turns in one process, in a new order every round: what
disturbs the machine disturbs all of them alike, so that their ratios hold even where the times do not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from kdp.bench.results import Row, Rows, append, row
from kdp.bench.subjects import Subject, World
from kdp.errors import UserError
from kdp.pictures import draw_latency
from kdp.plan import Controller, Planner

QUICK = 0.02  # seconds: a decision that takes less is taken CALLS times in a round, after one that is not timed
CALLS = 5
FEWEST = 3  # rounds that every planner takes part in, whatever they cost
ENOUGH = {95: 20, 99: 100}  # samples that a percentile takes
DRAWS = 1000  # of the bootstrap
RATIO = 17  # columns that one takes on a terminal
TIMES = ("plan_ms_p50", "plan_ms_p95", "plan_ms_p99", "end_to_end_ms_p50")

Clock = Callable[[], float]


class Pair:
    """A subject with so many candidates, and what was measured of it."""

    def __init__(
        self,
        subject: Subject,
        planner: Planner,
        candidates: int,
        world: World | None = None,
        clock: Clock = time.perf_counter,
    ):
        self.subject, self.candidates, self.world, self.clock = subject, candidates, world, clock
        self.planner = replace(planner, scorer=None) if candidates == 1 and subject.unranked else planner
        self.controller: Controller | None = None
        if subject.domain is not None:
            self.controller = Controller(self.planner, candidates, subject.domain.executor)  # type: ignore[arg-type]
        self.rounds: dict[int, list[float]] = {}  # seconds of each decision, by the round it was taken in
        self.loops: list[float] = []  # seconds from an observation to the next
        self.spent, self.calls, self.peak = 0.0, 0, 0
        self.fastest = float("inf")  # seconds of a decision
        self.note: str | None = None
        """Why it is not measured, where it is not."""

    @property
    def samples(self) -> int:
        return sum(map(len, self.rounds.values()))

    @property
    def times(self) -> np.ndarray:
        """(samples,) seconds."""
        return np.array([seconds for some in self.rounds.values() for seconds in some])

    def decide(self) -> float:
        """Seconds of one decision, all candidates and the scorer included."""
        self.calls += 1
        given = (self.subject.observation, self.subject.goal, self.candidates, self.calls)
        seconds = self._timed(lambda: self.planner.plan(*given))
        self.fastest = min(self.fastest, seconds)
        return seconds

    def act(self) -> float:
        """Seconds from an observation to the next: a decision, its first action, one step of the environment."""
        world, controller = self.world, self.controller
        assert world is not None and controller is not None
        if world.over:
            world.begin()
        return self._timed(lambda: world.step(controller.act(world.states, world.goals)))

    def warm_up(self, limit: float) -> None:
        """The calls that do not count. Where one takes more than `limit` seconds, the pair is left out."""
        seconds = self.decide()
        if self.subject.compiled:
            seconds = self.decide()
        if seconds > limit:
            self.note = f"left out: a call took {seconds:.1f} s, more than {limit:g}"
            return
        self.decide()
        if self.fastest < QUICK:
            self.decide()
        if self.world is not None:
            self.act()

    def visit(self, number: int) -> None:
        """Its turn in a round. What the planner before it left in the caches is not its fault: a quick one is called
        once before it is timed."""
        begin, cuda = self.clock(), self.planner.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.planner.device)
        quick = self.fastest < QUICK
        times = CALLS if quick else 1
        if quick:
            self.decide()
        self.rounds[number] = [self.decide() for _ in range(times)]
        if self.world is not None:
            self.loops += [self.act() for _ in range(times)]
        if cuda:
            self.peak = max(self.peak, torch.cuda.max_memory_allocated(self.planner.device))
        self.spent += self.clock() - begin

    def _timed(self, function: Callable[[], object]) -> float:
        self._synchronise()
        begin = self.clock()
        function()
        self._synchronise()
        return self.clock() - begin

    def _synchronise(self) -> None:
        if self.planner.device.type == "cuda":
            torch.cuda.synchronize(self.planner.device)


def latency(
    subjects: list[Subject],
    candidates: list[int],
    seconds: float,
    samples: int,
    limit: float,
    seed: int,
    device: str,
    out: Path | None,
    plot: Path | None,
) -> bool:
    """Measures, prints, and writes what was asked for. After Ctrl-C, what there is until then: False."""
    if out is not None:
        check_writable(out)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    pairs, finished, aside = pairs_of(subjects, candidates), False, Console(stderr=True)
    try:
        with Progress(console=aside, transient=True) as progress:
            task = progress.add_task("warm-up", total=1.0)
            for number, pair in enumerate(warm_up(pairs, limit)):
                about = f"warm-up: {pair.subject.name}, K = {pair.candidates}"
                progress.update(task, description=about, completed=number / len(pairs))
            for done in measure(pairs, seconds, samples, seed):
                progress.update(task, description="latency", completed=done)
        finished = True
    except KeyboardInterrupt:
        some = any(pair.rounds for pair in pairs)
        aside.print("interrupted: these are the decisions until then" if some else "interrupted before any was timed")
    for world in {pair.world for pair in pairs if pair.world is not None}:
        world.environment.close()
    rows, console = latency_rows(pairs, device, load), Console()
    show(rows, console)
    if out is not None:
        for one in rows:
            append(out, one)
    if plot is not None and any(one["samples"] for one in rows):
        console.print(f"wrote {draw_latency(plot, {'': latency_lines(rows)})}", soft_wrap=True)
    return finished


def latency_lines(rows: Rows) -> dict[str, list[tuple[float, float]]]:
    """Subject -> (K, median milliseconds) in order of K."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in sorted(rows, key=lambda one: one["candidates"]):
        if one["plan_ms_p50"] is not None:
            lines.setdefault(one["subject"], []).append((one["candidates"], one["plan_ms_p50"]))
    return {name: lines[name] for name in dict.fromkeys(one["subject"] for one in rows) if name in lines}


def pairs_of(subjects: list[Subject], candidates: list[int], clock: Clock = time.perf_counter) -> list[Pair]:
    """Every subject with every number of candidates, an environment for each subject that has one. On a GPU each pair
    has a planner of its own: only so many CUDA graphs are kept in one."""
    pairs = []
    for subject in subjects:
        world, planner = None if subject.domain is None else World(subject.domain), subject.load()
        for k in subject.counts(candidates):
            pairs.append(Pair(subject, planner, k, world, clock))
            planner = subject.load() if planner.device.type == "cuda" else planner
    return pairs


def warm_up(pairs: list[Pair], limit: float) -> Iterator[Pair]:
    """Each pair before its first call. More candidates than were too slow already are not tried."""
    slow: dict[str, str] = {}
    for pair in pairs:
        yield pair
        pair.note = slow.get(pair.subject.name)
        if pair.note is None:
            pair.warm_up(limit)
        if pair.note is not None:
            slow.setdefault(pair.subject.name, f"left out, as K = {pair.candidates} was")


def measure(pairs: list[Pair], seconds: float, samples: int, seed: int = 0) -> Iterator[float]:
    """Rounds until each pair has its samples, or has spent its share of the time. Yields the share of the work done.

    Pairs that have enough leave what they did not need to the others, and go on taking part for as long as there are
    rounds: a ratio is taken over rounds that both were in.
    """
    pairs = [pair for pair in pairs if pair.note is None]
    for number in count():
        hungry = [pair for pair in pairs if pair.samples < samples]
        if not hungry:
            return
        share = (seconds - sum(pair.spent for pair in pairs if pair.samples >= samples)) / len(hungry)
        starved = [pair for pair in hungry if pair.spent >= share and len(pair.rounds) >= FEWEST]
        if len(starved) == len(hungry):
            return
        todo = [pair for pair in pairs if pair not in starved]
        for at in np.random.default_rng([seed, number]).permutation(len(todo)):
            todo[at].visit(number)
        wanted = [min(1.0, max(pair.samples / samples, pair.spent / max(share, 1e-9))) for pair in pairs]
        yield float(np.mean(wanted))


class Ratio(NamedTuple):
    """How many times the reference's time, over the rounds that both were in."""

    medians: float
    low: float  # 95 % of bootstrap draws of rounds
    high: float
    means: float


def ratio(pair: Pair, reference: Pair, seed: int = 0) -> Ratio | None:
    """None without a round that both were in. Where other programs hold the cores, a long call always meets them and a
    short one seldom: then means are to be compared, and medians flatter the quick."""
    both = [number for number in pair.rounds if number in reference.rounds]
    if not both:
        return None
    theirs, ours = (np.array([np.median(one.rounds[number]) for number in both]) for one in (pair, reference))
    draws = np.random.default_rng(seed).integers(len(both), size=(DRAWS, len(both)))
    low, high = np.percentile(np.median(theirs[draws], 1) / np.median(ours[draws], 1), [2.5, 97.5])
    each = [np.mean([np.mean(one.rounds[number]) for number in both]) for one in (pair, reference)]
    return Ratio(float(np.median(theirs) / np.median(ours)), float(low), float(high), float(each[0] / each[1]))


def percentile(times: np.ndarray, share: int) -> float | None:
    """In milliseconds; None from too few samples to say."""
    return 1e3 * float(np.percentile(times, share)) if len(times) >= ENOUGH.get(share, 1) else None


def latency_rows(pairs: list[Pair], device: str, load: float | None = None) -> Rows:
    """A row for each pair that was measured or left out, with its ratio to the first KDP at the same K, and to the KDP
    that has its network and backend. `load`: of the machine before."""
    first = next((pair for pair in pairs if pair.subject.about.get("method") == "kdp"), None)
    against = {pair.candidates: pair for pair in pairs if first and pair.subject is first.subject and pair.rounds}
    peak, rows = process_mib(), []
    for pair in pairs:
        if not pair.rounds and pair.note is None:
            continue  # interrupted before its first turn
        times, k, nfe = pair.times, pair.candidates, pair.planner.nfe
        compared = ratio(pair, against[k]) if k in against else None
        like = next((other for other in pairs if is_twin(other, pair)), None)
        same = None if like is None else ratio(pair, like)
        measured = {
            "subject": pair.subject.name,
            "candidates": k,
            "ranked": pair.planner.scorer is not None,
            "nfe": nfe,
            "bef": nfe * k,
            "samples": len(times),
            "rounds": len(pair.rounds),
            "plan_ms_p50": percentile(times, 50),
            "plan_ms_p95": percentile(times, 95),
            "plan_ms_p99": percentile(times, 99),
            "plan_ms_min": percentile(times, 0),
            "plan_ms_mean": 1e3 * float(times.mean()) if len(times) else None,
            "end_to_end_ms_p50": percentile(np.array(pair.loops), 50),
            "plans_per_s": 1 / float(times.mean()) if len(times) else None,
            "peak_mib": pair.peak / 2**20 if pair.peak else peak,
            "ratio_to_kdp": compared and compared.medians,
            "ratio_low": compared and compared.low,
            "ratio_high": compared and compared.high,
            "ratio_of_means": compared and compared.means,
            "ratio_same_net": same and same.medians,
            "ratio_same_net_low": same and same.low,
            "ratio_same_net_high": same and same.high,
            "kdp_backend": first and first.planner.backend,
            "backend": pair.planner.backend,  # not always the one that was asked for
            "threads": torch.get_num_threads(),
            "load": load,
            "note": pair.note,
        }
        rows.append(row("latency", device, **(pair.subject.about | measured)))
    return rows


def is_twin(kdp: Pair, other: Pair) -> bool:
    """Whether a pair is KDP with the other's network, backend and candidates, and the other another method."""
    one, two = kdp.subject.about, other.subject.about
    if one.get("method") != "kdp" or two.get("method") == "kdp" or kdp.candidates != other.candidates:
        return False
    networks = [about["config"]["network"] for about in (one, two) if "config" in about]
    return len(networks) == 2 and networks[0] == networks[1] and kdp.planner.backend == other.planner.backend


def check_writable(path: Path) -> None:
    """Refused before anything is measured, if it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}. Choose another --out.") from error


def process_mib() -> float | None:
    """The most memory that this process has held so far; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / (2**20 if sys.platform == "darwin" else 2**10)


def show(rows: Rows, console: Console) -> None:
    """Tables: the times, how many times KDP's they are, and those of KDP with the same network and backend."""
    if not rows:
        return
    heads = {"plan_ms_p50": "p50 ms", "plan_ms_p95": "p95", "plan_ms_p99": "p99", "end_to_end_ms_p50": "+ env"}
    times = [name for name in TIMES if any(one[name] is not None for one in rows)]
    table = _table("Time of a decision", ["K", "NFE", "BEF", *(heads[name] for name in times), "plans/s", "n"])
    names = list(dict.fromkeys(one["subject"] for one in rows))
    for name in names:
        for at, one in enumerate(one for one in rows if one["subject"] == name):
            cells = ["" if at else name, str(one["candidates"]), str(one["nfe"]), str(one["bef"])]
            cells += [short(one[column]) for column in times]
            table.add_row(*cells, short(one["plans_per_s"]), str(one["samples"]))
    console.print(table)
    titles = {"ratio_to_kdp": "Times KDP's, same K", "ratio_same_net": "Times KDP's of the same network and backend"}
    for ratio_name, title in titles.items():
        said = {(one["subject"], one["candidates"]): said_ratio(one, ratio_name) for one in rows}
        counts = sorted({k for (_, k), words in said.items() if words})
        fit = max(1, (console.width - max(map(len, names))) // RATIO)
        for some in (counts[at : at + fit] for at in range(0, len(counts), fit)):
            table = _table(f"\n{title} (95 % of bootstrap draws)", [f"K = {k}" for k in some])
            for name in names:
                cells = [said.get((name, k), "") for k in some]
                if any(cells):
                    table.add_row(name, *cells)
            console.print(table)
    for one in rows:
        if one["note"]:
            console.print(f"{one['subject']}, K = {one['candidates']}: {one['note']}", soft_wrap=True)
    peak = max(one["peak_mib"] or 0.0 for one in rows)
    horizons = ", ".join(dict.fromkeys(str(one["horizon"]) for one in rows))
    where = f"{rows[0]['device']}; horizon {horizons}; peak memory {short(peak)} MiB"
    load = "" if rows[0]["load"] is None else f"; load of the machine before {rows[0]['load']:.1f}"
    console.print(f"{where}{load}; n: decisions timed.", soft_wrap=True, highlight=False)


def _table(title: str, heads: list[str]) -> Table:
    columns = [Column("planner", no_wrap=True), *(Column(head, justify="right", no_wrap=True) for head in heads)]
    return Table(*columns, title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)


def said_ratio(one: Row, name: str = "ratio_to_kdp") -> str:
    """How many times KDP's time, and the range; nothing of KDP itself."""
    if one.get(name) in (None, 1):
        return ""
    stem = "ratio" if name == "ratio_to_kdp" else name
    low, high = (f"{float(f'{number:.2g}'):g}" for number in (one[f"{stem}_low"], one[f"{stem}_high"]))
    return f"{short(one[name])} ({low}–{high})"


def short(number: float | None) -> str:
    """Three digits that count; empty where it is not known."""
    if number is None:
        return ""
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:#.3g}"
