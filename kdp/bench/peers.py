"""Peers: IQL, TD3+BC and ReBRAC by d3rlpy (the extra `peers`), trained on our episodes with their published settings.

Networks, losses and optimisers are d3rlpy's. The loop and the batches are ours: d3rlpy picks transitions one by one in
Python, which takes longer than the step itself, and waits for the GPU after every loss. Peers that differ in their seed
alone are trained as one stack: each step is one call for all of them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from kdp.bench.peer_data import EPSILON, table, transitions, units
from kdp.bench.peer_learner import Update, algorithm_of
from kdp.bench.peer_settings import PEERS, Peer
from kdp.checkpoint import load_tensors, save_tensors
from kdp.errors import UserError, did_you_mean
from kdp.graphs import Pace
from kdp.provenance import commit, device_name, versions
from kdp.runs import fingerprint
from kdp.sampler import generator, seed_of
from kdp.windows import Episodes

PEER, TRAINING = "peer.safetensors", "training.safetensors"
STEPS = 1_000_000  # of training, in all three papers
CHUNK = 1000  # steps whose batches are drawn at once
SAVE_EVERY = 60.0  # seconds


def train_peer(
    name: str,
    episodes: Episodes,
    task: str,
    *,
    steps: int = STEPS,
    seed: int = 0,
    device: str = "cpu",
    folder: Path,
    console: Console | None = None,
) -> None:
    """Trains one peer: see `train_peers`."""
    train_peers(name, episodes, task, steps=steps, seeds=[seed], device=device, folders=[folder], console=console)


def train_peers(
    name: str,
    episodes: Episodes,
    task: str,
    *,
    steps: int = STEPS,
    seeds: Sequence[int],
    device: str = "cpu",
    folders: Sequence[Path],
    fuse: bool = False,
    console: Console | None = None,
    looks: Sequence[int] = (),
    seen: Callable[[int], None] = lambda step: None,
) -> None:
    """Trains a peer for each seed as one stack, or goes on where that was stopped; leaves their policies in `folders`
    when all are done, not before (see `is_trained`), and leaves out those that are. The same seeds on a CPU give the
    same policies, stopped or not. Until the end a stack has one folder for all. Fuse: torch.compile makes few
    operations of the losses' many, in a minute before the first step.

    Looks: steps on the way at which the policies are left beside (`on_the_way`) too, and `seen` is called: they are
    those that a training of so many steps would leave, for peers that have them (`looks_of`)."""
    data = {"data": fingerprint(episodes.to("cpu"))}
    asked = [(_about(name, task, steps, seed) | data, folder) for seed, folder in zip(seeds, folders, strict=True)]
    asked = [(about, folder) for about, folder in asked if not _holds(folder / PEER, about)]
    if not asked:
        return
    seeds, (whole, aside) = [about["seed"] for about, _ in asked], asked[0]
    if len(asked) > 1:
        whole, aside = whole | {"seed": seeds}, aside.with_name(f"{aside.name}-and-{len(asked) - 1}-more")
    settings, found = PEERS[name], transitions(episodes)
    if float(found.actions.abs().max()) > 1 + EPSILON:
        raise UserError(f"{name} acts within -1..1, and {episodes.name} has actions beyond.")
    mean, scale = units(settings, found)
    sizes = (episodes.state_dim, episodes.action_dim)
    with _own_random(device), _no_validation(), _products("high"):
        impls = []
        for seed in seeds:
            _seed(device, seed, 0)
            impls.append(algorithm_of(settings, task, sizes, device).impl)
        update = Update(impls, settings, table(settings, found, mean, scale, name), sizes, steps, device, fuse)
        done, before = update.restore(aside / TRAINING) if _holds(aside / TRAINING, whole) else (0, 0.0)

        def leave(step: int, seconds: float) -> None:
            took = {"sizes": sizes, "seconds": seconds, "device": device_name(device), "commit": commit()}
            took |= {"versions": versions() | {"d3rlpy": metadata.version("d3rlpy")}}
            took |= {"stacked": len(asked)} if len(asked) > 1 else {}
            for number, (about, folder) in enumerate(asked):
                policy = {name: t for name, t in update.networks(number).items() if name.startswith("policy.")}
                place = folder if step == steps else on_the_way(folder, step)
                save_tensors(place / PEER, policy | {"mean": mean, "scale": scale}, about | {"steps": step} | took)

        begin = saved = time.monotonic()
        starts, pace = range(done, steps, CHUNK), Pace(device)
        for start in track(starts, name, console=console) if console else starts:
            end = min(start + CHUNK, steps)
            drawn = [
                torch.randint(len(found.rewards), (end - start, settings.batch), generator=generator(seed, 1, start))
                for seed in seeds
            ]
            _seed(device, seeds[0], 2, start)
            for step, index in enumerate(torch.stack(drawn, 1).to(device), start):
                losses = update(step, index)
                pace()
            if not bool(losses.isfinite().all()):
                raise UserError(f"the critic's loss of {name} on {task} is not finite at step {end}.")
            seconds = before + time.monotonic() - begin
            if end in looks and end < steps:
                leave(end, seconds)
                paused = time.monotonic()
                with _products("highest"):
                    seen(end)
                begin += time.monotonic() - paused
            if time.monotonic() - saved > SAVE_EVERY and end < steps:
                save_tensors(aside / TRAINING, update.state(), whole | {"step": end, "seconds": seconds})
                saved = time.monotonic()
        leave(steps, seconds)
    (aside / TRAINING).unlink(missing_ok=True)
    if len(asked) > 1:
        shutil.rmtree(aside, ignore_errors=True)  # it is not there where nothing was ever saved


def is_trained(name: str, task: str, *, steps: int = STEPS, seed: int = 0, folder: Path) -> bool:
    """Whether the folder holds this very peer, trained to its end; refuses a folder with another one."""
    return _holds(folder / PEER, _about(name, task, steps, seed))


def on_the_way(folder: Path, step: int) -> Path:
    """Where a peer's policy of an earlier step is left."""
    return folder.with_name(f"{folder.name}-at-{step}")


def looks_of(name: str, steps: Sequence[int]) -> list[int]:
    """Those of ascending numbers of steps at which a training for the last of them has what one of so many steps would
    end with: none but the last where the rate falls over the whole of it."""
    return [step for step in steps[:-1] if step % CHUNK == 0 and not PEERS[name].cosine]


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a peer that was begun alone and is not finished."""
    return (folder / TRAINING).exists()


@dataclass(frozen=True)
class PeerActor:
    """A trained peer: the action that its policy thinks best."""

    name: str
    policy: nn.Module
    mean: Tensor  # (d_s,) of the units that it sees states in
    scale: Tensor

    @torch.inference_mode()
    def act(self, observations: np.ndarray, goals: np.ndarray | None) -> np.ndarray:
        """Observations (N,d_s) -> actions (N,d_a)."""
        if goals is not None:
            raise UserError(f"{self.name} knows no goals; judge it where there are none.")
        states = torch.as_tensor(observations, dtype=torch.float32, device=self.mean.device)
        return self.policy((states - self.mean) / self.scale).squashed_mu.cpu().numpy()


def load_peer(folder: Path, device: str = "cpu") -> PeerActor:
    """What `train_peers` left in a folder."""
    if not (folder / PEER).exists():
        raise UserError(f"{folder} holds no peer that was trained to its end; train one with `train_peer`.")
    tensors, about = load_tensors(folder / PEER)
    with _own_random(device):
        algorithm = algorithm_of(Peer(**about["settings"]), about["task"], about["sizes"], device)
    policy = algorithm.impl.policy.eval()
    policy.load_state_dict({k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")})
    return PeerActor(about["peer"], policy, tensors["mean"].to(device), tensors["scale"].to(device))


def peer_about(folder: Path) -> dict[str, Any]:
    """What is written down about a trained peer: its settings, data, seconds of training, commit."""
    return load_tensors(folder / PEER)[1]


def _about(name: str, task: str, steps: int, seed: int) -> dict[str, Any]:
    """What tells trained peers apart."""
    if name not in PEERS:
        raise UserError(f"there is no peer {name!r}. {did_you_mean(name, PEERS)}")
    settings = PEERS[name]
    if settings.penalties and task not in settings.penalties:
        raise UserError(
            f"{name} has settings of its own for every task, and none are published for {task!r}. "
            + did_you_mean(task, settings.penalties)
        )
    if steps < 1 or seed < 0:
        raise UserError(f"steps must be 1 or more and seed 0 or more; got {steps=} {seed=}.")
    return {"peer": name, "task": task, "steps": steps, "seed": seed, "settings": asdict(settings)}


def _holds(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether there is a file, and refuses one of another peer."""
    if not path.exists():
        return False
    _, there = load_tensors(path)
    other = [key for key, value in json.loads(json.dumps(wanted)).items() if there.get(key) != value]
    if other:
        rule = f"{path.parent} holds a peer with another {' and '.join(other)}"
        raise UserError(f"{rule}; remove it, or give another folder.")
    return True


def _seed(device: str, *seed: int) -> None:
    """d3rlpy draws weights and noise from PyTorch's own generators."""
    torch.default_generator.manual_seed(seed_of(*seed))
    if torch.device(device).type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed_of(*seed))


@contextlib.contextmanager
def _own_random(device: str) -> Iterator[None]:
    """Afterwards those generators are as they were."""
    with torch.random.fork_rng([torch.device(device)] if torch.device(device).type == "cuda" else []):
        yield


@contextlib.contextmanager
def _products(precision: str) -> Iterator[None]:
    """With "high", matrix products on a GPU are rounded to TF32, as d3rlpy has it there, and as JAX, which IQL's and
    ReBRAC's own code is written in, has it by default."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _no_validation() -> Iterator[None]:
    """Distributions do not look at their numbers, which would wait for the GPU."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)
