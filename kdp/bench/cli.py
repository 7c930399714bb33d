"""`kdp bench`, `kdp latency` and `kdp table`: each subcommand calls one function. A study is imported when it is asked
for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from kdp.errors import UserError, did_you_mean

bench = tyro.extras.SubcommandApp()

Device = Annotated[str, tyro.conf.arg(help="cpu, or cuda where there is one.")]


@bench.command(name="fields")
def fields_command(
    quick: bool = False,
    tasks: str = "maze2d-umaze,toy,toy-three",
    variants: str = "all",
    seeds: int = 1,
    jobs: int = 1,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-fields"),
    results: Path = Path("results/fields.jsonl"),
) -> None:
    """The study behind the default field: one change at a time, on the toys and U-maze; rows go to results/.

    Example: kdp bench fields --quick --tasks toy --variants "default,keyed (paper)"

    Args:
        quick: A few steps of everything, to see that it runs.
        tasks: Domains, separated by commas.
        variants: Names of variants, separated by commas.
        seeds: Runs of each variant on each task.
        jobs: Processes side by side.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.fields import TASKS, VARIANTS, study

    _check_study(seeds, jobs, device)
    chosen = _names("variant", ",".join(VARIANTS) if variants == "all" else variants, VARIANTS)
    study(quick, device, seeds, _names("task", tasks, TASKS), chosen, jobs, runs, results, Console())


@bench.command(name="maze2d")
def maze2d_command(
    tasks: str = "maze2d-umaze,maze2d-medium,maze2d-large",
    methods: str = "kdp,diffuser,bc",
    executors: str = "track,inverse,action",
    seeds: int = 3,
    jobs: int = 1,
    minutes: float | None = None,
    quick: bool = False,
    timed: bool = True,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-maze2d"),
    pictures: Path | None = None,
    results: Path = Path("results/maze2d.jsonl"),
) -> None:
    """Train every method on every maze and judge it under every protocol; rows go to results/.

    Examples: kdp bench maze2d --quick --tasks maze2d-umaze
    / kdp bench maze2d --jobs 14 --device cuda --pictures docs/results

    Args:
        tasks: Mazes, separated by commas.
        methods: Methods, separated by commas.
        executors: Executors to judge with, separated by commas.
        seeds: Runs of each.
        jobs: Processes side by side.
        minutes: Training time of each; the domain's own number of steps unless given.
        quick: A few steps and episodes of everything, to see that it runs.
        timed: Take the time of a decision, too: not where something else runs on the machine.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        pictures: Folder for a picture of each method's plans in each maze.
        results: File to append to.
    """
    from kdp.bench.maze2d import EXECUTORS, PROTOCOLS, TASKS, bench_maze2d

    _check_study(seeds, jobs, device)
    bench_maze2d(
        _names("task", tasks, TASKS),
        _names("method", methods, PROTOCOLS),
        _names("executor", executors, EXECUTORS),
        seeds,
        jobs,
        minutes,
        quick,
        timed,
        device,
        runs,
        pictures,
        results,
        Console(stderr=True),
    )


@bench.command(name="locomotion")
def locomotion_command(
    tasks: str = "all",
    variants: str = "all",
    followed: str = "own,mean,best,one",
    seeds: int = 5,
    jobs: int = 1,
    steps: int | None = None,
    peer_steps: int = 1_000_000,
    policies: Path | None = None,
    quick: bool = False,
    timed: bool = True,
    stack: bool = False,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-locomotion"),
    results: Path = Path("results/locomotion.jsonl"),
) -> None:
    """KDP with and without value, Diffuser, regression and offline RL (the extra `peers`) on collected data; rows go
    to results/.

    Examples: kdp bench locomotion --quick --tasks hopper-medium --variants kdp,bc --policies DIR
    / kdp bench locomotion --stack --jobs 6 --device cuda --policies DIR

    Args:
        tasks: Collected sets, separated by commas; "all" are the six of the paper.
        variants: Methods and peers, separated by commas.
        followed: What is executed of 64 plans, separated by commas. own: as the run says, a blend. mean: their mean.
            best: the one of the highest score. one: a single plan, unranked.
        seeds: Runs of each.
        jobs: Processes side by side.
        steps: Training steps; the domain's own unless given.
        peer_steps: Training steps of iql, td3+bc and rebrac; a million as published.
        policies: Folder of behaviour policies, from which data that are not there yet are collected.
        quick: A few steps and episodes of everything, to see that it runs.
        timed: Take the time of a decision, too: not where something else runs on the machine.
        stack: Train the seeds of a variant or peer together, each step one call for all of them; for a GPU. The rows
            say so: their minutes are those of all.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.locomotion import FOLLOWED, TASKS, VARIANTS, bench_locomotion, collect_missing
    from kdp.bench.peer_settings import PEERS
    from kdp.domains.locomotion import LOCOMOTION

    _check_study(seeds, jobs, device)
    names = _names("task", ",".join(TASKS) if tasks == "all" else tasks, [domain.name for domain in LOCOMOTION])
    known = [*VARIANTS, *PEERS]
    chosen = known if variants == "all" else _names("variant", variants, known)
    ways = _names("way to follow plans", followed, FOLLOWED)
    collect_missing(names, policies)
    console = Console(stderr=True)
    given = (seeds, jobs, steps, peer_steps, quick, timed, stack, device, runs, results, console)
    bench_locomotion(names, chosen, ways, *given)


@bench.command(name="ablations")
def ablations_command(
    tasks: str = "maze2d-umaze",
    fields: str = "joint,keyed",
    variants: str = "all",
    seeds: int = 3,
    jobs: int = 1,
    steps: int | None = None,
    quick: bool = False,
    timed: bool = True,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-ablations"),
    results: Path = Path("results/ablations.jsonl"),
) -> None:
    """The paper's ablations of the objective, for our field and for the published one, and of what we add; rows go to
    results/.

    Examples: kdp bench ablations --quick --variants "full,no keying"
    / kdp bench ablations --tasks maze2d-umaze,hopper-medium-replay --jobs 14 --device cuda

    Args:
        tasks: Mazes and collected sets, separated by commas.
        fields: joint, keyed or both.
        variants: Names of variants, separated by commas.
        seeds: Runs of each.
        jobs: Processes side by side.
        steps: Training steps; the domain's own unless given.
        quick: A few steps and episodes of everything, to see that it runs.
        timed: Take the time of a decision, too: not where something else runs on the machine.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.ablations import BASES, OURS, VALUE, VARIANTS, bench_ablations
    from kdp.bench.maze2d import TASKS
    from kdp.domains.locomotion import LOCOMOTION

    _check_study(seeds, jobs, device)
    known = [*VARIANTS, *OURS, *VALUE]
    chosen = _names("variant", ",".join(known) if variants == "all" else variants, known)
    bases = _names("field", fields, BASES)
    console = Console(stderr=True)
    named = _names("task", tasks, [*TASKS, *(domain.name for domain in LOCOMOTION)])
    bench_ablations(named, bases, chosen, seeds, jobs, steps, quick, timed, device, runs, results, console)


@bench.command(name="candidates")
def candidates_command(
    run: tyro.conf.Positional[tuple[Path, ...]] = (),
    tasks: str = "maze2d-umaze",
    methods: str = "kdp,diffuser",
    values: str = "1,4,16,64,256",
    seeds: int = 3,
    minutes: float | None = None,
    jobs: int = 1,
    quick: bool = False,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-maze2d"),
    results: Path = Path("results/scaling.jsonl"),
) -> None:
    """Score and latency by K, the number of candidates; rows go to results/.

    Examples: kdp bench candidates runs/maze2d-umaze
    / kdp bench candidates --tasks maze2d-large --methods kdp,diffuser --jobs 14 --device cuda

    Args:
        run: Run folders. Without any: the runs of `kdp bench maze2d`, trained first where they are not.
        tasks: Mazes, separated by commas, where no run is given.
        methods: Methods, separated by commas, where no run is given.
        values: The numbers of candidates, separated by commas.
        seeds: Runs of each, where no run is given.
        minutes: Training time of each, as given to `kdp bench maze2d`; the domain's own number of steps unless given.
        jobs: Processes side by side.
        quick: A few steps and episodes of everything, to see that it runs.
        device: cpu, or cuda where there is one.
        runs: Folder of the runs of `kdp bench maze2d`.
        results: File to append to.
    """
    from kdp.bench.maze2d import PROTOCOLS, TASKS, maze_runs
    from kdp.bench.scaling import bench_candidates, given_runs

    _check_study(seeds, jobs, device)
    mazes, named = _names("task", tasks, TASKS), _names("method", methods, PROTOCOLS)
    trainings = given_runs(list(run), device) or maze_runs(mazes, named, seeds, minutes, quick, device, runs)
    bench_candidates(trainings, _counts("values", values), quick, jobs, results, Console(stderr=True))


@bench.command(name="horizon")
def horizon_command(
    tasks: str = "maze2d-umaze",
    methods: str = "kdp",
    values: str = "96,128,192,256,384",
    seeds: int = 3,
    minutes: float | None = None,
    jobs: int = 1,
    quick: bool = False,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-horizon"),
    results: Path = Path("results/scaling.jsonl"),
) -> None:
    """Score and latency by the length of the plan, a run for each; rows go to results/.

    Example: kdp bench horizon --methods kdp,diffuser --jobs 14 --device cuda

    Args:
        tasks: Mazes, separated by commas.
        methods: Methods, separated by commas.
        values: Horizons in steps, separated by commas; multiples of the domain's stride.
        seeds: Runs of each.
        minutes: Training time of each; the domain's own number of steps unless given.
        jobs: Processes side by side.
        quick: A few steps and episodes of everything, to see that it runs.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.maze2d import PROTOCOLS, TASKS
    from kdp.bench.scaling import bench_horizon

    _check_study(seeds, jobs, device)
    mazes, named = _names("task", tasks, TASKS), _names("method", methods, PROTOCOLS)
    horizons = _counts("values", values)
    bench_horizon(mazes, named, horizons, seeds, minutes, quick, jobs, device, runs, results, Console(stderr=True))


@bench.command(name="curves")
def curves_command(
    tasks: str = "maze2d-umaze,maze2d-medium,maze2d-large",
    methods: str = "kdp,diffuser",
    seeds: int = 1,
    steps: int | None = None,
    points: int = 8,
    jobs: int = 1,
    quick: bool = False,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-curves"),
    results: Path = Path("results/curves.jsonl"),
) -> None:
    """The score over training time: each run is stopped, judged and resumed; rows go to results/.

    Examples: kdp bench curves --tasks maze2d-umaze --device cuda
    / kdp bench curves --tasks hopper-medium --methods kdp,kdp-ascent,bc --device cuda

    Args:
        tasks: Mazes and collected locomotion sets, separated by commas.
        methods: Methods, separated by commas; in locomotion also the study's variants of kdp.
        seeds: Runs of each.
        steps: Training steps; the domain's own unless given.
        points: Stops, each a constant factor after the last; the first at 1/64 of the training.
        jobs: Processes side by side; runs that share a device slow each other down, and the rows say so.
        quick: A few steps and episodes of everything, to see that it runs.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.curves import bench_curves
    from kdp.bench.locomotion import VARIANTS
    from kdp.bench.maze2d import PROTOCOLS, TASKS
    from kdp.domains.locomotion import LOCOMOTION

    _check_study(seeds, jobs, device)
    if points < 2:
        raise UserError(f"points must be 2 or more, the last one the end of the training; got {points}.")
    asked = _names("task", tasks, [*TASKS, *(domain.name for domain in LOCOMOTION)])
    named = _names("method", methods, PROTOCOLS if set(asked) <= set(TASKS) else {**PROTOCOLS, **VARIANTS})
    bench_curves(asked, named, seeds, steps, points, quick, jobs, device, runs, results, Console(stderr=True))


@bench.command(name="training")
def training_command(
    tasks: str = "maze2d-umaze",
    axes: str = "conditions,samples,positives,loop",
    seconds: float = 5.0,
    quick: bool = False,
    device: Device = "cpu",
    results: Path = Path("results/training.jsonl"),
) -> None:
    """Training steps in a second by conditions, samples, positives and loop, and where the time of a step goes.

    Example: kdp bench training --tasks maze2d-umaze,maze2d-large --device cuda

    Args:
        tasks: Domains with data, separated by commas.
        axes: What is varied: conditions, samples, positives, loop (bf16 where the machine has it, torch.compile).
        seconds: For how long to measure each.
        quick: A few steps of everything, to see that it runs.
        device: cpu, or cuda where there is one.
        results: File to append to.
    """
    from kdp.bench.training import AXES, bench_training
    from kdp.domains import DOMAINS

    _check_study(1, 1, device)
    if not seconds > 0:
        raise UserError(f"seconds must be more than zero; got {seconds}.")
    chosen, named = _names("size", axes, AXES), _names("task", tasks, DOMAINS)
    bench_training(named, chosen, seconds, quick, device, results, Console(stderr=True))


def latency_command(
    run: tyro.conf.Positional[tuple[Path, ...]] = (),
    fresh: bool = False,
    horizon: int = 32,
    observation_dim: int = 17,
    action_dim: int = 6,
    scorer: Literal["critic", "return", "none"] = "critic",
    methods: str = "kdp,diffuser,bc",
    candidates: str = "1,16,64,256,1024",
    backend: str | None = None,
    device: Device = "cpu",
    threads: int | None = None,
    seconds: float = 60.0,
    samples: int = 300,
    limit: float = 5.0,
    seed: int = 0,
    out: Path | None = None,
    plot: Path | None = None,
) -> int:
    """Measure how long a decision takes, by planner and by K, the number of candidates.

    Planners take turns in one process, so that their ratios hold on a noisy machine. Diffuser is measured as published
    and with every acceleration that KDP has.

    Examples: kdp latency runs/maze2d-umaze --candidates 1,16,64
    / kdp latency --fresh --horizon 32 --threads 2 --out results/latency.jsonl --plot latency.png

    Args:
        run: Run folders of domains that have an environment.
        fresh: Measure untrained networks of the usual sizes instead: KDP, Diffuser and regression.
        horizon: Steps in a plan, with --fresh.
        observation_dim: Numbers in an observation, with --fresh.
        action_dim: Numbers in an action, with --fresh.
        scorer: What ranks the plans of --fresh: critic and return are kdp/value.py's, untrained.
        methods: Those of --fresh, separated by commas.
        candidates: The numbers of candidates, separated by commas. With 1, --fresh ranks nothing.
        backend: How networks are run, as of `kdp.load`; the planner's own choice unless given.
        device: cpu, or cuda where there is one.
        threads: Threads of the CPU; as many as there are cores unless given.
        seconds: For how long to measure, warm-up apart; slow planners are measured less often.
        samples: Decisions that are enough, where there is time for them.
        limit: A planner whose call takes more seconds than this is left out.
        seed: Seed of the order in which planners take turns.
        out: File to append rows to, as in results/.
        plot: Picture of latency against K, a .png file.
    """
    import tempfile

    import torch

    from kdp.bench.latency import latency
    from kdp.bench.subjects import fresh_subjects, run_subjects
    from kdp.methods import METHODS

    if bool(run) == fresh:
        raise UserError(
            f"name the runs to measure, or give --fresh for untrained networks: one of the two; got {len(run)} runs"
            f"{' and --fresh' if fresh else ''}."
        )
    counts, named = _counts("candidates", candidates), _names("method", methods, METHODS)
    sizes = {"horizon": horizon, "observation-dim": observation_dim, "action-dim": action_dim, "samples": samples}
    for name, value in (sizes | {"threads": 1 if threads is None else threads}).items():
        if value < 1:
            raise UserError(f"{name} must be 1 or more; got {value}.")
    if not (seconds > 0 and limit > 0):
        raise UserError(f"seconds and limit must be more than zero; got {seconds=} {limit=}.")
    if seed < 0:
        raise UserError(f"seed must be 0 or more; got {seed}.")
    if plot is not None and plot.suffix != ".png":
        raise UserError(f"plot must be a .png file; got {plot}.")
    check_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if fresh:
            subjects = fresh_subjects(folder, named, horizon, observation_dim, action_dim, scorer, device, backend)
        else:
            subjects = run_subjects(folder, list(run), device, backend)
        finished = latency(subjects, counts, seconds, samples, limit, seed, device, out, plot)
    return 0 if finished else 130


def table_command(
    results: Path = Path("results"), docs: Path = Path("docs/results"), readme: Path = Path("README.md")
) -> None:
    """Turn results into pages of tables.

    Example: kdp table

    Args:
        results: Folder of .jsonl files, as the studies write them.
        docs: Folder for the pages and pictures.
        readme: File whose Maze2D table is renewed, where it has the markers for one.
    """
    from kdp.bench.tables import write_tables

    for page in write_tables(results, docs, readme):
        Console().print(f"wrote {page}")


def check_device(device: str) -> None:
    """Refuses a device that is none of ours or is not here."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"device must be cpu or cuda; got {device!r}.") from None
    if kind not in ("cpu", "cuda"):
        raise UserError(f"device must be cpu or cuda; got {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, and there is none here. Use --device cpu.")


def _names(kind: str, text: str, known: Iterable[str]) -> list[str]:
    """Names separated by commas, each one of a study's own, each once."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"{name!r} is not a {kind} of this study. {did_you_mean(name, known)}")
    return names


def _counts(name: str, text: str) -> list[int]:
    """Whole numbers of 1 or more, separated by commas, each once."""
    try:
        counts = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise UserError(f"{name} must be whole numbers of 1 or more, separated by commas; got {text!r}.")
    return counts


def _check_study(seeds: int, jobs: int, device: str) -> None:
    if seeds < 1 or jobs < 1:
        raise UserError(f"seeds and jobs must be 1 or more; got {seeds=} {jobs=}.")
    check_device(device)
