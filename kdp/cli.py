"""The command `kdp`: each subcommand calls one function. Bad input is one sentence and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from kdp.domains import DOMAINS, FOLDER_DATA, find_domain
from kdp.domains.maze2d import custom_maze, read_map
from kdp.drift import DriftConfig
from kdp.errors import UserError, did_you_mean
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.plan import Executor
from kdp.runs import RunConfig, read_config, resume_run, start_run
from kdp.train import LoopConfig, Outcome

app = tyro.extras.SubcommandApp()
data = tyro.extras.SubcommandApp()
bench = tyro.extras.SubcommandApp()
app.command(data, name="data", help="List, look at and make datasets.")
app.command(bench, name="bench", help="Studies, each written to results/.")

Device = Annotated[str, tyro.conf.arg(help="cpu, or cuda where there is one.")]


@app.command
def demo(run: Path = Path("runs/demo"), minutes: float = 2.0, seed: int = 0, episodes: int = 50) -> None:
    """Everything once, in a few minutes: data, training, closed-loop planning, a table and a picture.

    Example: kdp demo

    Args:
        run: Folder for the run, the picture and eval.json; an earlier demo there is replaced.
        minutes: Training time.
        seed: Seed of data, training and evaluation.
        episodes: Episodes to be judged by.
    """
    from kdp.demo import run_demo

    run_demo(run, minutes, seed, episodes, Console())


@data.command(name="list")
def data_list() -> None:
    """The built-in domains.

    Example: kdp data list
    """
    table = Table("name", "horizon / stride", "can be made", "what it is")
    for name, domain in DOMAINS.items():
        table.add_row(name, f"{domain.horizon} / {domain.stride}", "yes" if domain.make else "built in", domain.about)
    Console().print(table)
    Console().print("Also: any .hdf5 (D4RL layout) or .npz file by its path, and any Minari id.")


@data.command(name="info")
def data_info(x: tyro.conf.Positional[str]) -> None:
    """Counts, shapes, episode lengths and returns of a dataset.

    Example: kdp data info data/maze2d-umaze.hdf5

    Args:
        x: A domain's name, a path to an .hdf5 or .npz file, or a Minari id.
    """
    from kdp.datasets.info import print_info

    print_info(find_domain(x).episodes(), Console())


@data.command(name="make")
def data_make(
    x: tyro.conf.Positional[str],
    steps: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    map: Path | None = None,  # noqa: A002
) -> None:
    """Make a domain's dataset, in place of the one that is there.

    Examples: kdp data make maze2d-umaze --steps 200000
    / kdp data make maze2d --map my-maze.json --steps 200000 --out data/my-maze

    Args:
        x: A domain's name (see `kdp data list`), or maze2d for a map of your own.
        steps: How many steps; the domain's usual number unless given.
        seed: The same seed makes the same data.
        out: The file to write, instead of the usual one in $KDP_DATA (or data/); with --map, a folder.
        map: A maze in JSON: a list of rows, 1 a wall, 0 free.
    """
    if (x == "maze2d") != (map is not None):
        raise UserError(
            "a map of your own is made with `kdp data make maze2d --map FILE.json --out DIR`: both or neither."
        )
    if map is not None:
        if out is None:
            raise UserError("a map of your own needs a folder to go to; give --out DIR.")
        made = custom_maze(read_map(map)).make
        assert made is not None
        path = made(steps, seed, out / FOLDER_DATA)
        Console().print(f"wrote {path}; train on it with `kdp train {out}`")
        return
    makers = {name: domain.make for name, domain in DOMAINS.items() if domain.make}
    if x not in makers:
        built_in = " It is built in, and needs no file." if x in DOMAINS else ""
        raise UserError(f"{x!r} is not a dataset that can be made.{built_in} {did_you_mean(x, makers)}")
    path = makers[x](steps, seed, out)
    Console().print(f"wrote {path}; look at it with `kdp data info {path}`")


@app.command(name="train")
def train_command(
    x: tyro.conf.Positional[str | None] = None,
    method: str = "kdp",
    horizon: int | None = None,
    stride: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch: int = 512,
    seed: int = 0,
    run: Path | None = None,
    resume: Path | None = None,
    stop_after: int | None = None,
    device: Device = "cpu",
    drift: DriftConfig = DriftConfig(),  # noqa: B008
    diffusion: DiffusionConfig = DiffusionConfig(),  # noqa: B008
    network: NetworkConfig = NetworkConfig(),  # noqa: B008
    loop: LoopConfig = LoopConfig(),  # noqa: B008
) -> int:
    """Train a planner on a dataset. No environment is needed.

    Examples: kdp train maze2d-umaze --minutes 5
    / kdp train my-robot.hdf5 --horizon 32 --stride 4 --steps 20000 --run runs/my-robot
    / kdp train --resume runs/my-robot

    Args:
        x: A domain's name, a path to an .hdf5 or .npz file, or a Minari id.
        method: What to train: kdp, diffuser or bc.
        horizon: Steps in a plan; the domain's own unless given.
        stride: Steps in a token; must divide the horizon.
        steps: Training steps.
        minutes: Training time, instead of steps.
        batch: Windows generated in a training step.
        seed: Seed of everything random.
        run: Folder of the run; runs/NAME unless given.
        resume: Go on with the run in this folder, with its own settings.
        stop_after: End the run after this many steps in all, as an interrupt would.
        device: cpu, or cuda where there is one.
        drift: The drift field.
        diffusion: Noise levels and sampler of diffuser.
        network: The generator, or the denoiser.
        loop: Optimisation.
    """
    console = Console(stderr=True)
    _check_device(device)
    given = RunConfig(x or "", method, horizon, stride, steps, minutes, batch, seed, drift, diffusion, network, loop)
    if resume is not None:
        if given != RunConfig("") or run is not None:
            raise UserError(
                "a resumed run keeps its own settings; give --resume DIR with --stop-after or --device alone."
            )
        return _report(resume_run(resume, device=device, stop_after=stop_after, console=console), resume)
    if x is None:
        raise UserError(f"name what to train on. {did_you_mean('', DOMAINS)} Or give a file's path or a Minari id.")
    given.check()
    domain = find_domain(x)
    folder = run or Path("runs") / domain.name
    outcome = start_run(given, folder, device=device, stop_after=stop_after, console=console)
    return _report(outcome, folder)


@app.command(name="eval")
def eval_command(
    run: tyro.conf.Positional[Path],
    episodes: int = 100,
    candidates: int = 16,
    executor: Executor | None = None,
    chunk: int = 1,
    seed: int = 0,
    domain: str | None = None,
    device: Device = "cpu",
) -> None:
    """Plan in closed loop and report the score: a table, eval.json and a picture in the run folder.

    Example: kdp eval runs/maze2d-umaze --episodes 100 --candidates 16 --executor track

    Args:
        run: A run folder.
        episodes: How many episodes.
        candidates: Plans drawn per decision; the best is executed.
        executor: action executes the plan's own actions; track steers along its states by the domain's law, inverse by
            a learned model. The domain's own unless given.
        chunk: Steps executed before planning again.
        seed: Seed of starts and plans.
        domain: Where to judge a run that was trained on a file.
        device: cpu, or cuda where there is one.
    """
    from kdp.judge import judge

    _check_device(device)
    judge(run, episodes, candidates, executor, chunk, seed, domain, device, Console())


@app.command(name="plan")
def plan_command(
    run: tyro.conf.Positional[Path],
    observation: str,
    goal: str | None = None,
    candidates: int = 64,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Draw one plan from an observation.

    Example: kdp plan runs/maze2d-umaze --observation=-1,-1,0,0 --goal=-1,1 --out plan.png

    Args:
        run: A run folder.
        observation: Numbers separated by commas (write --observation=-1,0 where the first is negative).
        goal: Likewise, for runs that plan toward a goal.
        candidates: Plans drawn; the best is shown.
        seed: Seed of the noise.
        out: plan.json or plan.png.
    """
    from kdp.judge import show_plan

    state = _numbers("observation", observation)
    target = None if goal is None else _numbers("goal", goal)
    show_plan(run, state, target, candidates, seed, out, Console())


@bench.command(name="fields")
def bench_fields(
    quick: bool = False,
    tasks: str = "maze2d-umaze,toy,toy-three",
    variants: str = "all",
    seeds: int = 1,
    jobs: int = 1,
    device: Device = "cpu",
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
        results: File to append to.
    """
    from kdp.bench.fields import TASKS, VARIANTS, study

    _check_device(device)
    chosen = list(VARIANTS) if variants == "all" else variants.split(",")
    _check_names("task", tasks.split(","), TASKS)
    _check_names("variant", chosen, VARIANTS)
    study(quick, device, seeds, tasks.split(","), chosen, jobs, results, Console())


@bench.command(name="maze2d")
def maze2d_command(
    tasks: str = "maze2d-umaze,maze2d-medium,maze2d-large",
    methods: str = "kdp,diffuser,bc",
    seeds: int = 3,
    minutes: float | None = None,
    quick: bool = False,
    device: Device = "cpu",
    runs: Path = Path("runs/bench-maze2d"),
    results: Path = Path("results/maze2d.jsonl"),
) -> None:
    """Train every method on every maze and judge it with every executor; rows go to results/.

    Example: kdp bench maze2d --quick --tasks maze2d-umaze

    Args:
        tasks: Mazes, separated by commas.
        methods: Methods, separated by commas.
        seeds: Runs of each.
        minutes: Training time of each; the domain's own number of steps unless given.
        quick: A few steps and episodes of everything, to see that it runs.
        device: cpu, or cuda where there is one.
        runs: Folder for the runs; a study that was stopped goes on from there.
        results: File to append to.
    """
    from kdp.bench.maze2d import METHODS, TASKS, bench_maze2d

    _check_device(device)
    _check_names("task", tasks.split(","), TASKS)
    _check_names("method", methods.split(","), METHODS)
    bench_maze2d(
        tasks.split(","), methods.split(","), seeds, minutes, quick, device, runs, results, Console(stderr=True)
    )


@app.command(name="table")
def table_command(results: Path = Path("results"), docs: Path = Path("docs/results")) -> None:
    """Turn results into pages of tables.

    Example: kdp table

    Args:
        results: Folder of .jsonl files, as the studies write them.
        docs: Folder for the pages.
    """
    from kdp.bench.tables import write_tables

    for page in write_tables(results, docs):
        Console().print(f"wrote {page}")


def main() -> None:
    """Entry point: exit code 0 when all went well, 2 for bad input, 130 after Ctrl-C."""
    words = sys.argv[1:]
    try:
        code = app.cli(prog="kdp", args=words, description=__doc__.splitlines()[0])
    except UserError as error:
        sys.exit(_complain(str(error)))
    except KeyboardInterrupt:
        sys.exit(_complain("interrupted", 130))
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(sentence: str, code: int = 2) -> int:
    print(f"kdp: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _report(outcome: Outcome, folder: Path) -> int:
    console = Console(stderr=True)
    if outcome.finished:
        about = read_config(folder)
        judged = about["domain"] or about["walls"]
        then = f"judge it with `kdp eval {folder}`" if judged else f"plan with `kdp plan {folder} --observation ...`"
        console.print(f"trained {outcome.step} steps in {outcome.elapsed:.0f} s; {then}")
        return 0
    console.print(f"stopped after step {outcome.step}; go on with `kdp train --resume {folder}`")
    return 130 if outcome.interrupted else 0


def _check_names(kind: str, names: list[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{name!r} is not a {kind} of this study. {did_you_mean(name, known)}")


def _check_device(device: str) -> None:
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"device must be cpu or cuda; got {device!r}.") from None
    if kind not in ("cpu", "cuda"):
        raise UserError(f"device must be cpu or cuda; got {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, and there is none here. Use --device cpu.")


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{name} must be numbers separated by commas; got {text!r}.") from None
