"""One training loop for every method: a method gives a loss, a sampler gives batches, a run folder keeps the rest.

A run stops between two steps, never within one, and everything random depends on the seed and the step alone: a run
that was interrupted and resumed ends with the same weights, bit for bit on a CPU, as one that was not.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from kdp.checkpoint import load_tensors, save_tensors
from kdp.errors import UserError
from kdp.files import replacing
from kdp.graphs import Recorded
from kdp.sampler import Batch, seed_of

GRAPH_AFTER = 2  # steps
WEIGHT_DECAY = 1e-4
MODEL, TRAINING, METRICS = "model.safetensors", "training.safetensors", "metrics.jsonl"


class Method(Protocol):
    """What the loop asks of a method (an nn.Module)."""

    def draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]: ...

    def loss(self, batch: Batch, draws: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]: ...


@dataclass(frozen=True)
class LoopConfig:
    """Optimisation: AdamW, warm-up and cosine, gradient clipping, an average of the weights."""

    lr: float = 2e-3
    """Peak learning rate."""
    warmup: int = 100
    """Steps until it is reached."""
    weight_decay: float | None = None
    """AdamW's: weights shrink by this share of the rate in every step. A scorer has one of its own, as it has a rate
    (value.weight-decay). Default: the domain's own, else 0.0001."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.999
    """Decay of the averaged weights, which are the ones that plan."""
    fuse: bool = False
    """Have torch.compile make few operations of a step's many: half a minute before the first step, then fewer to
    launch. Meant for long runs of small networks."""
    bf16: bool = False
    """Networks compute in bfloat16, on a GPU or a CPU that has instructions for it; weights, fields and losses stay in
    single precision. Faster, and not for nothing: in rare states plans may be worse (docs/trials.md)."""
    log_every: int = 50
    """Steps between rows of metrics.jsonl."""
    save_every: float = 60.0
    """Seconds between checkpoints."""

    def decay(self) -> float:
        return WEIGHT_DECAY if self.weight_decay is None else self.weight_decay


@dataclass(frozen=True)
class Budget:
    """How long to train: steps, or minutes (then the schedule follows the clock, and resuming is not bit-exact)."""

    steps: int | None = None
    minutes: float | None = None

    def progress(self, step: int, elapsed: float) -> float:
        """0 at the start, 1 when the budget is spent."""
        return step / self.steps if self.steps is not None else elapsed / (60 * (self.minutes or 1.0))


@dataclass(frozen=True)
class Outcome:
    step: int
    elapsed: float
    finished: bool
    interrupted: bool


def train(
    method: nn.Module,
    sampler: Callable[[int], Batch],
    folder: Path,
    budget: Budget,
    config: LoopConfig,
    seed: int,
    *,
    extra: Mapping[str, Tensor],
    resume: bool = False,
    stop_after: int | None = None,
    console: Console | None = None,
    about: str = "training",
) -> Outcome:
    """Trains `method`; leaves model.safetensors (averaged weights and `extra`), training.safetensors (to resume from)
    and metrics.jsonl in `folder`. A run that never came to a checkpoint resumes at its beginning. `stop_after` ends
    the run after that many steps in all, as an interrupt would. `about` stands before the bar."""
    average = copy.deepcopy(method).eval().requires_grad_(False)
    update = Update(method, config)
    optimizer = update.optimizer
    step, before = _restore(folder, method, average, optimizer) if resume and (folder / TRAINING).exists() else (0, 0.0)
    log = _Log(folder, step)
    begin = saved = time.monotonic()

    def elapsed() -> float:
        return before + time.monotonic() - begin

    def save() -> None:
        state = _training_state(method, average, optimizer)
        save_tensors(folder / TRAINING, state, {"step": step, "elapsed": elapsed()})
        weights = {f"weights.{k}": v for k, v in average.state_dict().items()}
        save_tensors(folder / MODEL, weights | dict(extra), {"step": step})

    def spent() -> bool:
        return budget.progress(step, elapsed()) >= 1

    method.train()
    with _stop_flag() as stop, _progress_bar(console, budget, about) as show:
        while not spent() and not stop.is_set() and not (stop_after is not None and step >= stop_after):
            rate = config.lr * min(1.0, (step + 1) / config.warmup)
            rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, budget.progress(step, elapsed()))))
            row = update(sampler(step), rate, seed_of(seed, step, 2))
            step += 1
            move_average(average, method, min(config.ema, step / (10 + step)))
            if step % config.log_every == 0 or step == 1:
                log.write(step, elapsed(), {k: float(v) for k, v in row.items()} | {"lr": rate})
                if not math.isfinite(float(row["loss"])):
                    raise UserError(f"the loss is not finite at step {step}; try a smaller --loop.lr than {config.lr}.")
            show(step, elapsed())
            if time.monotonic() - saved > config.save_every:
                save()
                saved = time.monotonic()
        interrupted = stop.is_set()
    save()
    log.close()
    return Outcome(step, elapsed(), spent(), interrupted)


def parts(method: nn.Module, config: LoopConfig) -> list[dict[str, Any]]:
    """Groups of parameters that learn, as an optimizer takes them, with their share of the loop's rate: the loop's rate
    and decay, but for parts of a method that have a peak rate and a decay of their own (`pace`, by name)."""
    pace: dict[str, tuple[float, float]] = {"": (config.lr, config.decay())} | getattr(method, "pace", {})
    own: dict[str, list[nn.Parameter]] = {name: [] for name in pace}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            own[name.split(".")[0] if name.split(".")[0] in pace else ""].append(parameter)
    return [
        {"params": some, "share": pace[name][0] / config.lr, "weight_decay": pace[name][1]}
        for name, some in own.items()
        if some
    ]


def has_bf16(device: str) -> bool:
    """Whether products of bfloat16 are faster there than those of float32: elsewhere they are many times slower."""
    if torch.device(device).type == "cuda":
        return True
    able: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # newer PyTorch's
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


class Update:
    """One step of the optimizer. On a GPU the whole of it, from the third on, is a CUDA graph: launched one by one, its
    operations would take the CPU longer than the GPU."""

    def __init__(self, method: Any, config: LoopConfig):
        self.method, self.clip = method, config.clip
        self.loss = torch.compile(self.method.loss, dynamic=False) if config.fuse else self.method.loss
        device = next(method.parameters()).device
        self.rounded = partial(
            torch.autocast, device.type, torch.bfloat16, enabled=config.bf16, cache_enabled=False
        )  # a cache would outlive the recording of a graph
        self.random = torch.Generator(device)
        self.graphed, self.calls = device.type == "cuda", 0
        self.graph: Recorded | None = None
        rate = partial(torch.tensor, config.lr, device=device) if self.graphed else lambda: config.lr
        groups = [part | {"lr": rate()} for part in parts(method, config)]
        self.optimizer = torch.optim.AdamW(groups, capturable=self.graphed, fused=True)

    def __call__(self, batch: Batch, rate: float, seed: int) -> dict[str, Tensor]:
        """-> what there is to log; on a GPU, until the next call."""
        self.random.manual_seed(seed)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["share"] * rate)
            else:
                group["lr"] = group["share"] * rate
        self.calls += 1
        if self.graph is not None:
            return self.graph(*batch.tensors())
        if self.graphed and self.calls > GRAPH_AFTER:
            try:
                self.graph = Recorded(self._step, batch.tensors(), self.random)
                return self.graph.first
            except RuntimeError as error:
                warnings.warn(
                    f"no CUDA graph of a training step, whose operations are launched one by one: {error}", stacklevel=2
                )
                self.graphed = False
        return self._step(*batch.tensors())

    def _step(self, *tensors: Any) -> dict[str, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        with self.rounded():
            loss, metrics = self.loss(Batch.of(*tensors), self.method.draws(len(tensors[0]), self.random))
        loss.backward()
        return {"loss": loss.detach(), "grad/norm": self.advance(), **metrics}

    def advance(self) -> Tensor:
        """The weights, by the gradients that are there -> their norm."""
        runs = getattr(self.method, "stacked", None)
        norm, *_ = [clip(group["params"], self.clip, runs) for group in self.optimizer.param_groups]
        self.optimizer.step()
        if hasattr(self.method, "settle"):
            self.method.settle()
        return norm


def clip(parameters: list[nn.Parameter], largest: float, runs: int | None) -> Tensor:
    """Gradients of a larger norm are shortened to it -> the norm; in a stack of runs, each run's by its own."""
    if runs is None:
        return nn.utils.clip_grad_norm_(parameters, largest)
    slopes = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch.cat([slope.reshape(runs, -1) for slope in slopes], 1).norm(dim=1)
    share = (largest / (norms + 1e-6)).clamp_max(1)
    for slope in slopes:
        slope.mul_(share.view(runs, *[1] * (slope.dim() - 1)))
    return norms.mean()


@torch.no_grad()
def move_average(average: nn.Module, method: nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(method.parameters()), 1 - decay)


def _training_state(method: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"weights.{k}": v for k, v in method.state_dict().items()}
    tensors |= {f"average.{k}": v for k, v in average.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    return tensors


def _restore(
    folder: Path, method: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, float]:
    tensors, about = load_tensors(folder / TRAINING)

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    try:
        method.load_state_dict(part("weights."))
        average.load_state_dict(part("average."))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in part("optimizer.").items():
            number, key = name.split(".", 1)
            moments.setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{folder / TRAINING} does not fit the run's config.json ({error}).") from error
    return int(about["step"]), float(about["elapsed"])


class _Log:
    """metrics.jsonl and, where tensorboard is installed, its event files. A resumed run forgets rows it will redo."""

    def __init__(self, folder: Path, step: int):
        path = folder / METRICS
        rows = path.read_text().splitlines() if path.exists() else []
        kept = [row for row in rows if row.endswith("}") and json.loads(row)["step"] <= step]  # the last may be cut off
        with replacing(path) as temporary:
            temporary.write_text("".join(row + "\n" for row in kept))
        self.file = path.open("a", buffering=1)
        self.board: Any = None
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)

    def write(self, step: int, elapsed: float, row: dict[str, float]) -> None:
        try:
            self.file.write(json.dumps({"step": step, "seconds": round(elapsed, 3), **row}) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.file.name}: {error.strerror}.") from error
        if self.board is not None:
            for name, value in row.items():
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


@contextlib.contextmanager
def _stop_flag() -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM; the loop looks at it between steps. A second Ctrl-C interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    old = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _progress_bar(console: Console | None, budget: Budget, about: str) -> Iterator[Callable[[int, float], None]]:
    """A bar with the rate and the time left; silent without a console."""
    if console is None:
        yield lambda step, elapsed: None
        return
    columns = (
        TextColumn(about),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=False) as bar:
        task = bar.add_task(about, total=1.0, note="")
        began: list[tuple[int, float]] = []

        def show(step: int, elapsed: float) -> None:
            if not began:
                began.append((step, elapsed))
            if step % 10 and budget.progress(step, elapsed) < 1:
                return
            rate = (step - began[0][0]) / max(elapsed - began[0][1], 1e-9)
            note = f"step {step}  {rate:.0f} steps/s"
            bar.update(task, completed=min(1.0, budget.progress(step, elapsed)), note=note)

        yield show
