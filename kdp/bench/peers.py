"""Peers: IQL, TD3+BC and ReBRAC by d3rlpy (the extra `peers`), trained on our episodes with their published settings.

Networks, losses and optimisers are d3rlpy's. The loop and the batches are ours: d3rlpy picks transitions one by one in
Python, which takes longer than the step itself, and waits for the GPU after every loss.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kdp.bench.peer_settings import PEERS, Peer
from kdp.checkpoint import load_tensors, save_tensors
from kdp.errors import UserError, did_you_mean
from kdp.graphs import Recorded
from kdp.provenance import commit, device_name, versions
from kdp.runs import fingerprint
from kdp.sampler import generator, seed_of
from kdp.windows import Episodes

PEER, TRAINING = "peer.safetensors", "training.safetensors"
STEPS = 1_000_000  # of training, in all three papers
CHUNK = 1000  # steps whose batches are drawn at once
SAVE_EVERY = 60.0  # seconds

EPSILON = 1e-3  # added to a state's standard deviation: utils.py of TD3+BC's code


class Transitions(NamedTuple):
    """M steps and what came after them."""

    observations: Tensor  # (M,d_s)
    actions: Tensor  # (M,d_a)
    rewards: Tensor  # (M,1)
    next_observations: Tensor  # (M,d_s) zero after a terminal
    next_actions: Tensor  # (M,d_a) likewise
    terminals: Tensor  # (M,1) 1.0 where nothing came after
    episode: Tensor  # (M,)

    def returns(self) -> Tensor:
        """Sums of rewards, one for each episode that has transitions."""
        _, which = self.episode.unique(return_inverse=True)
        return torch.zeros(int(which.max()) + 1, dtype=torch.float64).index_add(0, which, self.rewards[:, 0].double())


def transitions(episodes: Episodes) -> Transitions:
    """Every step of which it is known what came after, as in d3rlpy's buffers and D4RL's `qlearning_dataset`: a value
    is not carried over a terminal. It is carried over a time limit, but what was seen after the last step before one is
    not in the data, so that step is left out."""
    episodes = episodes.to("cpu")
    count, last = len(episodes), episodes.starts[1:] - 1
    keep = torch.ones(count, dtype=torch.bool)
    keep[last] = episodes.terminals[last]
    index = keep.nonzero()[:, 0]
    if not len(index):
        raise UserError(f"{episodes.name} has no step that is followed by another, or by a real end.")
    over = episodes.terminals[index]
    after = (index + 1).clamp_max(count - 1)
    return Transitions(
        episodes.observations[index],
        episodes.actions[index],
        episodes.rewards[index, None],
        episodes.observations[after].masked_fill(over[:, None], 0.0),
        episodes.actions[after].masked_fill(over[:, None], 0.0),
        over[:, None].float(),
        torch.searchsorted(episodes.starts, index, right=True) - 1,
    )


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
    """Trains a peer, or goes on where that was stopped; leaves its policy in `folder` when it is done, not before (see
    `is_trained`), and does nothing where it is. The same seed on a CPU gives the same policy, stopped or not."""
    about = _about(name, task, steps, seed) | {"data": fingerprint(episodes.to("cpu"))}
    if _holds(folder / PEER, about):
        return
    settings, data = PEERS[name], transitions(episodes)
    if float(data.actions.abs().max()) > 1 + EPSILON:
        raise UserError(f"{name} acts within -1..1, and {episodes.name} has actions beyond.")
    mean, scale = _units(settings, data)
    sizes = (episodes.state_dim, episodes.action_dim)
    with _own_random(device), _no_validation():
        _seed(device, seed, 0)
        algorithm = _algorithm(settings, task, sizes, device)
        update = _Update(algorithm, settings, _table(settings, data, mean, scale, name), sizes, steps, device)
        done, before = update.restore(folder / TRAINING) if _holds(folder / TRAINING, about) else (0, 0.0)
        begin = saved = time.monotonic()
        starts = range(done, steps, CHUNK)
        for start in track(starts, name, console=console) if console else starts:
            end = min(start + CHUNK, steps)
            batches = torch.randint(
                len(data.rewards), (end - start, settings.batch), generator=generator(seed, 1, start)
            )
            _seed(device, seed, 2, start)
            for step, index in enumerate(batches.to(device), start):
                loss = update(step, index)
            if not math.isfinite(float(loss)):
                raise UserError(f"the critic's loss of {name} on {task} is not finite at step {end}.")
            seconds = before + time.monotonic() - begin
            if time.monotonic() - saved > SAVE_EVERY and end < steps:
                save_tensors(folder / TRAINING, update.state(), about | {"step": end, "seconds": seconds})
                saved = time.monotonic()
    weights = {f"policy.{k}": v for k, v in algorithm.impl.policy.state_dict().items()}
    about |= {"sizes": sizes, "seconds": seconds, "device": device_name(device), "commit": commit()}
    about |= {"versions": versions() | {"d3rlpy": metadata.version("d3rlpy")}}
    save_tensors(folder / PEER, weights | {"mean": mean, "scale": scale}, about)
    (folder / TRAINING).unlink(missing_ok=True)


def is_trained(name: str, task: str, *, steps: int = STEPS, seed: int = 0, folder: Path) -> bool:
    """Whether the folder holds this very peer, trained to its end; refuses a folder with another one."""
    return _holds(folder / PEER, _about(name, task, steps, seed))


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
    """What `train_peer` left in a folder."""
    if not (folder / PEER).exists():
        raise UserError(f"{folder} holds no peer that was trained to its end; train one with `train_peer`.")
    tensors, about = load_tensors(folder / PEER)
    with _own_random(device):
        algorithm = _algorithm(Peer(**about["settings"]), about["task"], about["sizes"], device)
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


def _units(settings: Peer, data: Transitions) -> tuple[Tensor, Tensor]:
    """The mean and the scale by which states are standardised: 0 and 1 where they are not."""
    states = data.observations.double()
    if not settings.standard:
        return torch.zeros(states.shape[1]), torch.ones(states.shape[1])
    return states.mean(0).float(), (states.std(0, correction=0) + EPSILON).float()


def _table(settings: Peer, data: Transitions, mean: Tensor, scale: Tensor, name: str) -> Tensor:
    """(M, 2 d_s + 2 d_a + 2) all transitions in the units of training, a row each: a batch is one look-up."""
    rewards = data.rewards
    if settings.returns is not None:
        returns = data.returns()
        span = float(returns.max() - returns.min())
        if not span > 0:
            raise UserError(f"{name} needs episodes of different returns; all of these have {float(returns[0]):g}.")
        rewards = rewards * (settings.returns / span)
    before, after = ((states - mean) / scale for states in (data.observations, data.next_observations))
    return torch.cat([before, data.actions, rewards, after, data.next_actions, data.terminals], 1)


def _d3rlpy() -> Any:
    """The library. Gym prints a notice when it is imported, which is kept quiet; d3rlpy lowers the precision of matrix
    products for the whole process where there is a GPU, which is undone."""
    precision = torch.get_float32_matmul_precision()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            library = importlib.import_module("d3rlpy")
    except ImportError as error:
        raise UserError(f'peers are trained by d3rlpy ({error}). Try `pip install "kdp[peers]"`.') from error
    torch.set_float32_matmul_precision(precision)
    return library


def _algorithm(settings: Peer, task: str, sizes: tuple[int, int], device: str) -> Any:
    """d3rlpy's learner with networks for (d_s, d_a)."""
    library = _d3rlpy()
    encoder = library.models.VectorEncoderFactory
    actor, critic = encoder([*settings.hidden]), encoder([*settings.hidden], use_layer_norm=settings.critic_norm)
    parts = {"actor_encoder_factory": actor, "critic_encoder_factory": critic}
    if settings.algorithm == "IQL":
        parts["value_encoder_factory"] = encoder([*settings.hidden])
    penalty = dict(zip(("actor_beta", "critic_beta"), settings.penalties.get(task, ()), strict=False))
    rates = {"actor_learning_rate": settings.lr, "critic_learning_rate": settings.lr, "batch_size": settings.batch}
    config = getattr(library.algos, f"{settings.algorithm}Config")
    algorithm = config(**parts, **rates, **settings.own, **penalty).create(device=device)
    algorithm.create_impl((sizes[0],), sizes[1])
    _first_weights(algorithm.impl.modules, settings.weights)
    return algorithm


@torch.no_grad()
def _first_weights(modules: Any, how: str) -> None:
    """Begins as the authors' code does where d3rlpy does not."""
    if how == "torch":
        return
    networks = [modules.policy, *modules.q_funcs, *([modules.value_func] if hasattr(modules, "value_func") else [])]
    for network in networks:
        layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        for layer in layers:
            if how == "orthogonal":
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
            else:
                nn.init.constant_(layer.bias, 0.1)
        if how == "small":
            width = 1e-3 if network is modules.policy else 3e-3
            nn.init.uniform_(layers[-1].weight, -width, width)
            nn.init.uniform_(layers[-1].bias, -width, width)
    if how == "orthogonal":  # d3rlpy's deviation is exp(-5 + 7 sigmoid(parameter)); it begins at 1
        nn.init.constant_(modules.policy.get_parameter("_logstd"), math.log(5 / 2))
    modules.targ_q_funcs.load_state_dict(modules.q_funcs.state_dict())
    if hasattr(modules, "targ_policy"):
        modules.targ_policy.load_state_dict(modules.policy.state_dict())


class _Update:
    """One step of training: d3rlpy's `update` in fewer and larger operations, and without the logging, which waits for
    the GPU. There the whole of a step is a CUDA graph: one for steps with the actor, one for those without."""

    def __init__(self, algorithm: Any, settings: Peer, table: Tensor, sizes: tuple[int, int], steps: int, device: str):
        self.impl, self.modules, self.batch_of = algorithm.impl, algorithm.impl.modules, _d3rlpy().TorchMiniBatch
        self.table, self.steps, self.device, self.settings = table.to(device), steps, device, settings
        self.columns = [sizes[0], sizes[1], 1, sizes[0], sizes[1], 1]
        self.ones, self.zeros = (torch.full((settings.batch, 1), value, device=device) for value in (1.0, 0.0))
        self.actor, self.critic = (wrapper.optim for wrapper in (self.modules.actor_optim, self.modules.critic_optim))
        self.targets, self.sources = list(self.modules.targ_q_funcs.parameters()), [*self.modules.q_funcs.parameters()]
        if hasattr(self.modules, "targ_policy"):
            self.targets += self.modules.targ_policy.parameters()
            self.sources += self.modules.policy.parameters()
        self.delay = settings.own.get("update_actor_interval", 1)
        self.graphed, self.graphs = torch.device(device).type == "cuda", dict[bool, Recorded]()
        for group in self.actor.param_groups + self.critic.param_groups:
            group["fused"] = True
            if self.graphed:
                group |= {"capturable": True, "lr": torch.tensor(group["lr"], device=device)}

    def __call__(self, step: int, index: Tensor) -> Tensor:
        """-> the critic's loss; on a GPU, until the next call."""
        with_actor = step % self.delay == 0
        if self.settings.cosine:
            self._set_rate(self.settings.lr * 0.5 * (1 + math.cos(math.pi * step / self.steps)))
        if with_actor in self.graphs:
            return self.graphs[with_actor](index)
        if self.graphed:
            try:
                with _NumbersInPlace():
                    graph = self.graphs[with_actor] = Recorded(partial(self._step, with_actor), [index])
                return graph.first
            except RuntimeError as error:
                warnings.warn(f"no CUDA graph of a peer's step, which is launched one by one: {error}", stacklevel=2)
                self.graphed = False
        return self._step(with_actor, index)

    def _step(self, with_actor: bool, index: Tensor) -> Tensor:
        before, action, reward, after, next_action, over = self.table[index].split(self.columns, 1)
        batch = self.batch_of(
            observations=before,
            actions=action,
            rewards=reward,
            next_observations=after,
            next_actions=next_action,
            returns_to_go=self.zeros,
            terminals=over,
            intervals=self.ones,
            device=self.device,
        )
        self.modules.q_funcs.requires_grad_(True)
        self.critic.zero_grad()
        loss = self.impl.compute_critic_grad(batch).critic_loss
        self.critic.step()
        if with_actor:
            self.modules.q_funcs.requires_grad_(False)  # they judge the actor here, and learn nothing
            self.actor.zero_grad()
            self.impl.compute_actor_grad(batch)
            self.actor.step()
            with torch.no_grad():
                torch._foreach_lerp_(self.targets, self.sources, self.settings.own["tau"])
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """All that going on needs."""
        networks = self.modules.get_torch_modules()
        tensors = {f"{name}/{k}": v for name, part in networks.items() for k, v in part.state_dict().items()}
        for name, optimizer in (("actor", self.actor), ("critic", self.critic)):
            for number, state in optimizer.state_dict()["state"].items():
                tensors |= {f"{name} optimizer/{number}/{k}": v for k, v in state.items()}
        return tensors

    def restore(self, path: Path) -> tuple[int, float]:
        """-> the steps done and the seconds that they took."""
        tensors, about = load_tensors(path)
        parts: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            part, name = key.split("/", 1)
            parts.setdefault(part, {})[name] = tensor
        for part, network in self.modules.get_torch_modules().items():
            network.load_state_dict(parts[part])
        for part, optimizer in (("actor", self.actor), ("critic", self.critic)):
            states: dict[int, dict[str, Tensor]] = {}
            for key, tensor in parts[f"{part} optimizer"].items():
                number, name = key.split("/")
                states.setdefault(int(number), {})[name] = tensor
            optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
        return about["step"], about["seconds"]

    def _set_rate(self, rate: float) -> None:
        for group in self.actor.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


class _NumbersInPlace(TorchFunctionMode):
    """A number becomes a tensor on the GPU itself: a copy from the CPU cannot be part of a CUDA graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tensor and isinstance(args[0], float):
            return torch.full((), args[0], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


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
def _no_validation() -> Iterator[None]:
    """Distributions do not look at their numbers, which would wait for the GPU."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)
