"""`kdp bench` and `kdp table`: each subcommand calls one function. A study is imported when it is asked for."""

from __future__ import annotations

from pathlib import Path

import tyro
from rich.console import Console

from kdp.bench.arguments import Device, check_study, counts_of, names_of
from kdp.errors import UserError

bench = tyro.extras.SubcommandApp()


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

    check_study(seeds, jobs, device)
    chosen = names_of("variant", variants, VARIANTS)
    study(quick, device, seeds, names_of("task", tasks, TASKS), chosen, jobs, runs, results, Console())


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

    check_study(seeds, jobs, device)
    bench_maze2d(
        names_of("task", tasks, TASKS),
        names_of("method", methods, PROTOCOLS),
        names_of("executor", executors, EXECUTORS),
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
    peer_steps: str = "1000000",
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
            best: the one of the highest score. one: a single plan, unranked. A number: such a blend.
        seeds: Runs of each.
        jobs: Processes side by side.
        steps: Training steps; the domain's own unless given.
        peer_steps: Training steps of iql, td3+bc and rebrac; a million as published. Of several, separated by commas,
            the last; td3+bc and rebrac are judged after each, iql, whose rate falls over the whole, at the end.
        policies: Folder of behaviour policies, from which data that are not there yet are collected.
        quick: A few steps and episodes of everything, to see that it runs.
        timed: Take the time of a decision, too: not where something else runs on the machine.
        stack: Train the seeds of a variant or peer together, each step one call for all of them; for a GPU. The rows
            say so: their minutes are those of all.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.locomotion import TASKS, VARIANTS, bench_locomotion, collect_missing, ways_of
    from kdp.bench.peer_settings import PEERS
    from kdp.domains.locomotion import LOCOMOTION

    check_study(seeds, jobs, device)
    names = names_of("task", ",".join(TASKS) if tasks == "all" else tasks, [domain.name for domain in LOCOMOTION])
    chosen = names_of("variant", variants, [*VARIANTS, *PEERS])
    ways = ways_of(followed)
    collect_missing(names, policies)
    console = Console(stderr=True)
    looks = sorted(counts_of("peer-steps", peer_steps))
    given = (seeds, jobs, steps, looks, quick, timed, stack, device, runs, results, console)
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
    stack: bool = False,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-ablations"),
    results: Path = Path("results/ablations.jsonl"),
) -> None:
    """The paper's ablations of the objective, for our field and for the published one, and of what we add; rows go to
    results/.

    Examples: kdp bench ablations --quick --variants "full,no keying"
    / kdp bench ablations --tasks maze2d-umaze,hopper-medium-replay --stack --jobs 14 --device cuda

    Args:
        tasks: Mazes and collected sets, separated by commas.
        fields: joint, keyed or both.
        variants: Names of variants, separated by commas.
        seeds: Runs of each.
        jobs: Processes side by side.
        steps: Training steps; the domain's own unless given.
        quick: A few steps and episodes of everything, to see that it runs.
        timed: Take the time of a decision, too: not where something else runs on the machine.
        stack: Train the seeds of a variant together, each step one call for all of them; for a GPU.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.ablations import BASES, OURS, VALUE, VARIANTS, bench_ablations
    from kdp.bench.maze2d import TASKS
    from kdp.domains.locomotion import LOCOMOTION

    check_study(seeds, jobs, device)
    chosen = names_of("variant", variants, [*VARIANTS, *OURS, *VALUE])
    bases = names_of("field", fields, BASES)
    console = Console(stderr=True)
    named = names_of("task", tasks, [*TASKS, *(domain.name for domain in LOCOMOTION)])
    bench_ablations(named, bases, chosen, seeds, jobs, steps, quick, timed, stack, device, runs, results, console)


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

    check_study(seeds, jobs, device)
    mazes, named = names_of("task", tasks, TASKS), names_of("method", methods, PROTOCOLS)
    trainings = given_runs(list(run), device) or maze_runs(mazes, named, seeds, minutes, quick, device, runs)
    bench_candidates(trainings, counts_of("values", values), quick, jobs, results, Console(stderr=True))


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

    check_study(seeds, jobs, device)
    mazes, named = names_of("task", tasks, TASKS), names_of("method", methods, PROTOCOLS)
    horizons = counts_of("values", values)
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

    check_study(seeds, jobs, device)
    if points < 2:
        raise UserError(f"points must be 2 or more, the last one the end of the training; got {points}.")
    asked = names_of("task", tasks, [*TASKS, *(domain.name for domain in LOCOMOTION)])
    named = names_of("method", methods, PROTOCOLS if set(asked) <= set(TASKS) else {**PROTOCOLS, **VARIANTS})
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

    check_study(1, 1, device)
    if not seconds > 0:
        raise UserError(f"seconds must be more than zero; got {seconds}.")
    chosen, named = names_of("size", axes, AXES), names_of("task", tasks, DOMAINS)
    bench_training(named, chosen, seconds, quick, device, results, Console(stderr=True))


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
