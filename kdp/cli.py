"""The command `kdp`: each subcommand calls one function. Bad input is one sentence and exit code 2."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Column, Table

from kdp.backends import Format
from kdp.bench.arguments import Device, check_device
from kdp.bench.cli import bench, table_command
from kdp.bench.latency_cli import latency_command
from kdp.config import RunConfig
from kdp.datasets.minari_sets import data_folder, dataset_id
from kdp.domains import DOMAINS, find_domain
from kdp.domains.locomotion import REMEDIES
from kdp.domains.maze2d import custom_maze, read_map
from kdp.drift import DriftConfig
from kdp.errors import UserError, did_you_mean
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.plan import Executor
from kdp.runs import read_config, resume_run, start_run
from kdp.train import LoopConfig, Outcome
from kdp.value import ValueConfig

ABOUT = "Whole plans in one network call, learned from offline data. To see it work: kdp demo"

app = tyro.extras.SubcommandApp()
data = tyro.extras.SubcommandApp()
app.command(data, name="data", help="List, look at, make, collect and download datasets.")
app.command(bench, name="bench", help="Studies, each written to results/.")


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
    built = {name: "Made with `kdp data make NAME`" if domain.make else "Built in" for name, domain in DOMAINS.items()}
    ways = built | dict.fromkeys(REMEDIES, "Collected with `kdp data collect`")
    console = Console(highlight=False)
    console.print("Name, horizon/stride of a plan in steps, and what it is.")
    for way in dict.fromkeys(ways.values()):  # a table each: short names leave more room to say what it is
        columns = Column(no_wrap=True, style="bold"), Column(no_wrap=True, justify="right"), Column()
        table = Table(*columns, box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        for name, domain in DOMAINS.items():
            if ways[name] == way:
                table.add_row(name, f"{domain.horizon}/{domain.stride}", domain.about)
        console.print(f"\n{way}:", table, sep="\n")
    console.print("\nAlso: any .hdf5 (D4RL layout), .npz or Minari folder by its path; any Minari id.")


@data.command(name="info")
def data_info(x: tyro.conf.Positional[str]) -> None:
    """Counts, shapes, episode lengths and returns of a dataset.

    Examples: kdp data info maze2d-umaze
    / kdp data info data/regenerated/maze2d-umaze-v0

    Args:
        x: A domain's name, a path to an .hdf5 or .npz file or to a Minari dataset's folder, or a Minari id.
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
    """Make a domain's dataset, as a Minari dataset, in place of the one that is there.

    Examples: kdp data make maze2d-umaze --steps 200000
    / kdp data make maze2d --map my-maze.json --steps 200000 --out my-maze

    Args:
        x: A domain's name (see `kdp data list`), or maze2d for a map of your own.
        steps: How many steps; the domain's usual number unless given.
        seed: The same seed makes the same data.
        out: The dataset's folder, instead of the usual regenerated/NAME-v0 in $KDP_DATA (or data/).
        map: A maze in JSON: a list of rows, 1 a wall, 0 free.
    """
    if (x == "maze2d") != (map is not None):
        raise UserError(
            "a map of your own is made with `kdp data make maze2d --map FILE.json --out DIR`: both or neither."
        )
    if map is not None:
        rows = read_map(map)
        if out is None:
            raise UserError("a map of your own needs a folder to go to; give --out DIR.")
        made = custom_maze(rows).make
        assert made is not None
        path = made(steps, seed, out)
        Console().print(f"wrote {path}; train on it with `kdp train {out}`")
        return
    makers = {name: domain.make for name, domain in DOMAINS.items() if domain.make}
    if x in REMEDIES:
        raise UserError(f"the data of {x} are not made but collected. {REMEDIES[x]}")
    if x not in makers:
        built_in = " It is built in, and needs no data." if x in DOMAINS else ""
        raise UserError(f"{x!r} is not a dataset that can be made.{built_in} {did_you_mean(x, makers)}")
    path = makers[x](steps, seed, out)
    Console().print(f"wrote {path}; look at it with `kdp data info {path}`")


@data.command(name="collect")
def data_collect(
    env: str,
    policy: str,
    steps: int = 1_000_000,
    stochastic: bool = True,
    noise: float = 0.0,
    mix: str | None = None,
    seed: int = 0,
    jobs: int | None = None,
    name: str | None = None,
    out: Path | None = None,
) -> None:
    """Let behaviour policies act in a Gymnasium environment and keep what happens, as a Minari dataset.

    Examples: kdp data collect --env Hopper-v5 --policy hopper-medium.npz --name hopper-medium
    / kdp data collect --env Hopper-v5 --policy medium.npz,expert.npz --mix 1,1 --steps 200000 --out my-hopper

    Args:
        env: Id of an environment with vectors for observations and actions, of gymnasium or gymnasium-robotics.
        policy: .npz files of policies, separated by commas; kdp/datasets/policies.py describes the format.
        steps: How many steps in all.
        stochastic: Draw actions as the policy does; --no-stochastic takes its mean actions.
        noise: Standard deviation of further noise on actions, which lie in [-1, 1].
        mix: The policies' shares of the steps, separated by commas; equal unless given.
        seed: The same seed makes the same data.
        jobs: Processes; all cores unless given. The data do not depend on it.
        name: What to call the data: regenerated/NAME-v0 in $KDP_DATA (or data/). A domain's name gives it its data.
        out: The dataset's folder, instead of --name.
    """
    from kdp.datasets.collect import collect

    if (name is None) == (out is None):
        raise UserError("collected data need a name or a folder; give --name NAME or --out DIR, one of them.")
    called = re.sub(r"[^\w-]+", "-", out.resolve().name) if out else str(name)
    if re.fullmatch(r"[\w-]+", called) is None:
        raise UserError(f"a name must be letters, digits, - and _; got {called!r}.")
    shares = None if mix is None else _numbers("mix", mix)
    folder = out or data_folder() / dataset_id(called)
    policies = policy.split(",")
    options = {"stochastic": stochastic, "noise": noise, "mix": shares, "seed": seed, "jobs": jobs}
    collect(folder, called, env, policies, steps, **options)  # type: ignore[arg-type]
    train = called if name in DOMAINS else folder
    Console().print(f"wrote {folder}; look at it with `kdp data info {folder}`, train on it with `kdp train {train}`")


@data.command(name="download")
def data_download(x: tyro.conf.Positional[str], out: Path | None = None) -> None:
    """Fetch one of D4RL's own files, such as hopper-medium-v2. Train on its path; judge with --domain.

    Examples: kdp data download hopper-medium-v2
    / kdp train data/d4rl/hopper_medium-v2.hdf5 --run runs/hopper
    / kdp eval runs/hopper --domain hopper-medium

    Args:
        x: D4RL's name of a dataset.
        out: The file to write, instead of d4rl/ in $KDP_DATA (or data/). One that is there is kept.
    """
    from kdp.datasets.d4rl import download, file_name

    path = out or data_folder() / "d4rl" / file_name(x)
    there = path.exists()
    if not there:
        download(x, path)
    Console().print(f"{path} {'is already there' if there else 'is complete'}; train on it with `kdp train {path}`")


@app.command(name="train")
def train_command(
    x: tyro.conf.Positional[str | None] = None,
    method: str = "kdp",
    horizon: int | None = None,
    stride: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch: int | None = None,
    seed: int = 0,
    relabel: bool | None = None,
    temperature: float | None = None,
    bounded: bool | None = None,
    run: Path | None = None,
    resume: Path | None = None,
    stop_after: int | None = None,
    device: Device = "cpu",
    drift: DriftConfig = DriftConfig(),  # noqa: B008
    diffusion: DiffusionConfig = DiffusionConfig(),  # noqa: B008
    network: NetworkConfig = NetworkConfig(),  # noqa: B008
    value: ValueConfig = ValueConfig(),  # noqa: B008
    loop: LoopConfig = LoopConfig(),  # noqa: B008
) -> int:
    """Train a planner on a dataset. No environment is needed.

    Examples: kdp train maze2d-umaze --minutes 5
    / kdp train my-robot.hdf5 --horizon 32 --stride 4 --steps 20000 --run runs/my-robot
    / kdp train --resume runs/my-robot

    Args:
        x: A domain's name, a path to an .hdf5 or .npz file or to a Minari dataset's folder, or a Minari id.
        method: What to train: kdp, diffuser or bc.
        horizon: Steps in a plan; the domain's own unless given.
        stride: Steps in a token; must divide the horizon.
        steps: Training steps.
        minutes: Training time, instead of steps.
        batch: Windows generated in a training step; 512 on a CPU unless given, 4096 (kdp) or 2048 on a GPU, and more
            for kdp where its network has a trunk (2048 and 8192).
        seed: Seed of everything random.
        relabel: Train on actions that a learned inverse-dynamics model reads off the data's states, in place of the
            data's own: without their noise, and braking at goals. True in mazes unless given.
        temperature: Plans are drawn from this many times the noise of training: the less, the nearer they are to what
            is usual. The domain's own unless given; training does not depend on it.
        bounded: Keep the actions of plans within the range of the data's, in training too. True in locomotion unless
            given.
        run: Folder of the run; runs/NAME unless given.
        resume: Go on with the run in this folder, with its own settings.
        stop_after: End the run after this many steps in all, as an interrupt would.
        device: cpu, or cuda where there is one.
        drift: The drift field.
        diffusion: Noise levels and sampler of diffuser.
        network: The generator, or the denoiser.
        value: The learned scorer, and value in the field.
        loop: Optimisation.
    """
    console = Console(stderr=True)
    check_device(device)
    sizes = (horizon, stride, steps, minutes, batch, seed)
    given = RunConfig(x or "", method, *sizes, relabel, temperature, bounded, drift, diffusion, network, value, loop)
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
    warm: int = 0,
    guidance: float = 0.0,
    blend: float | None = None,
    temperature: float | None = None,
    domain: str | None = None,
    device: Device = "cpu",
) -> None:
    """Plan in closed loop and report the score: a table, eval.json and a picture in the run folder.

    Examples: kdp eval runs/maze2d-umaze --episodes 100 --candidates 16 --executor track
    / kdp eval runs/diffuser --candidates 1 --chunk 0

    Args:
        run: A run folder.
        episodes: How many episodes.
        candidates: Plans drawn per decision; the best, or a blend of all, is executed.
        executor: action executes the plan's own actions; track steers along its states by the domain's law, inverse by
            a learned model. The domain's own unless given.
        chunk: Steps executed before planning again; 0: one plan for the whole episode, whose last state is then held
            (by action: its last action repeated).
        warm: Every plan but the first starts from the last one and takes this many network calls (diffuser). 0: off.
        guidance: How much plans are pushed up the run's scorer while they are drawn (diffuser). 0: not.
        blend: What is executed. 0: the best candidate. More: the mean of all, in which one counts exp(blend) times as
            much for every standard deviation that it is worth more. The run's own unless given.
        temperature: Plans are drawn from this many times the noise of training. The run's own unless given.
        seed: Seed of starts and plans.
        domain: Where to judge a run that was trained on a file.
        device: cpu, or cuda where there is one.
    """
    from kdp.judge import judge

    check_device(device)
    judge(
        run,
        episodes,
        candidates,
        executor,
        chunk,
        seed,
        domain,
        device,
        Console(),
        warm=warm,
        guidance=guidance,
        blend=blend,
        temperature=temperature,
    )


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


@app.command(name="export")
def export_command(
    run: tyro.conf.Positional[Path],
    out: Path,
    format: Format = "onnx",  # noqa: A002
    candidates: int = 64,
    int8: bool = False,
) -> None:
    """Write a folder that plans without PyTorch: numpy and onnxruntime, or OpenVINO, are enough.

    Examples: kdp export runs/maze2d-umaze --out robot
    / kdp export runs/hopper --format openvino --candidates 16 --out robot

    Args:
        run: A run folder.
        out: The folder to write; an exported planner that is there is replaced.
        format: onnx for onnxruntime, openvino for OpenVINO.
        candidates: Plans drawn per decision unless the robot asks for another number.
        int8: The generator's products in eight bits, calibrated on the run's dataset (onnx). It is not the same plan:
            docs/deploy.md says how far off, and how much faster.
    """
    from kdp.export import export

    export(run, format, out, candidates, int8, Console())


app.command(name="latency")(latency_command)
app.command(name="table")(table_command)


def main() -> None:
    """Entry point: exit code 0 when all went well, 2 for bad input, 130 after Ctrl-C."""
    words = sys.argv[1:]
    try:
        code = app.cli(prog="kdp", args=words, description=ABOUT)
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


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{name} must be numbers separated by commas; got {text!r}.") from None
