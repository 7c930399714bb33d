"""The command `kdp`: each subcommand calls one function. Bad input is one sentence and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import tyro
from rich.console import Console

from kdp.backends import Format
from kdp.bench.arguments import Device, check_device, numbers_of
from kdp.bench.cli import bench, table_command
from kdp.bench.latency_cli import latency_command
from kdp.config import RunConfig
from kdp.data_cli import data
from kdp.domains import DOMAINS, find_domain
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

    state = numbers_of("observation", observation)
    target = None if goal is None else numbers_of("goal", goal)
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
