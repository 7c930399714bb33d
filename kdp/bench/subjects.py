"""What `kdp latency` measures: runs, and untrained networks of the usual sizes. Diffuser is there as published, and
with every acceleration that KDP has: the same backend, the same network (ours, and the U-Net of both papers), and
DDIM's few calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdp.backends import choose
from kdp.bench.results import Row
from kdp.checkpoint import FORMAT, save_json, save_tensors
from kdp.config import RunConfig
from kdp.domains import DOMAINS, Domain
from kdp.domains.locomotion import NETWORK
from kdp.domains.maze2d import custom_maze
from kdp.errors import UserError
from kdp.keys import Condition
from kdp.methods.diffuser import Diffuser, DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.normalize import Normalizer
from kdp.parts import build_learner
from kdp.plan import Planner
from kdp.provenance import commit, device_name, versions
from kdp.runs import CONFIG, load, read_config
from kdp.train import MODEL
from kdp.value import ValueConfig, method_of

FEW = 5  # network calls of an accelerated Diffuser
DDIM = DiffusionConfig(sampler="ddim", sampling_steps=FEW)
PLAIN = "eager"  # the backend that nothing is done to
MLP, UNET = NetworkConfig("mlp", **NETWORK._asdict()), NetworkConfig("unet")  # as in the tables of locomotion

# name -> what its run would be trained with, and whether it gets the backend that was asked for
FRESH: dict[str, tuple[dict[str, Any], bool]] = {
    "kdp": ({"method": "kdp", "network": MLP}, True),
    "kdp U-Net": ({"method": "kdp", "network": UNET}, True),
    "diffuser as published": ({"method": "diffuser", "network": UNET, "bounded": False}, False),
    "diffuser U-Net": ({"method": "diffuser", "network": UNET}, True),
    f"diffuser U-Net, DDIM {FEW}": ({"method": "diffuser", "network": UNET, "diffusion": DDIM}, True),
    "diffuser, same net": ({"method": "diffuser", "network": MLP}, True),
    f"diffuser same net, DDIM {FEW}": ({"method": "diffuser", "network": MLP, "diffusion": DDIM}, True),
    "bc": ({"method": "bc", "network": MLP}, True),
}


@dataclass(frozen=True)
class Subject:
    """A planner with a name, and what it plans from."""

    name: str
    load: Callable[[], Planner]
    observation: np.ndarray  # (d_s,)
    goal: np.ndarray | None = None
    domain: Domain | None = None
    """Where decisions are carried out; None: nowhere."""
    about: Row = field(default_factory=dict)
    """Columns of its rows."""
    unranked: bool = False
    """A single candidate is not scored."""

    @property
    def compiled(self) -> bool:
        """The first call may take long only because something is made ready in it."""
        return self.about.get("backend", PLAIN) != PLAIN

    def counts(self, candidates: list[int]) -> list[int]:
        """The numbers of candidates that make sense: regression has one plan."""
        return [1] if self.about.get("method") == "bc" else sorted(candidates)


class World:
    """One environment of a domain, begun anew when an episode is over."""

    def __init__(self, domain: Domain):
        assert domain.environments is not None
        self.domain, self.environment, self.episode = domain, domain.environments(1), 0
        self.begin()

    def begin(self) -> None:
        self.states, self.goals = self.environment.reset([self.episode])
        self.episode, self.age, self.over = self.episode + 1, 0, False

    def step(self, actions: np.ndarray) -> None:
        answer = self.environment.step(actions)
        self.states, self.age = answer.observation, self.age + 1
        self.over = bool(answer.done[0]) or self.age >= self.domain.episode_steps


def fresh_subjects(
    folder: Path,
    methods: list[str],
    horizon: int,
    observation_dim: int,
    action_dim: int,
    scorer: str,
    device: str,
    backend: str | None,
) -> list[Subject]:
    """Random weights, no goal and no environment; their run folders are written to `folder`."""
    subjects, fast = [], choose(backend, torch.device(device).type)
    about: Row = {"task": "fresh", "observation_dim": observation_dim, "action_dim": action_dim}
    state = np.zeros(observation_dim, np.float32)
    for number, (name, (settings, hastened)) in enumerate(FRESH.items()):
        if settings["method"] not in methods:
            continue
        value = ValueConfig(scorer)  # type: ignore[arg-type]
        config = RunConfig("fresh", horizon=horizon, stride=1, value=value, **{"bounded": True} | settings)
        run = write_fresh_run(folder / str(number), config, observation_dim, action_dim)
        used = fast if hastened else PLAIN
        opened = partial(open_planner, run, device, used, plain=not hastened)
        subjects.append(Subject(name, opened, state, about=about | told(config, used), unranked=True))
    return subjects


def run_subjects(folder: Path, runs: list[Path], device: str, backend: str | None) -> list[Subject]:
    """Runs, by the names of their folders. Diffuser's come as they were trained, under the backend where one was asked
    for, and with DDIM; copies of their settings are written to `folder`."""
    names, fast = [run.resolve().name for run in runs], choose(backend, torch.device(device).type)
    subjects = []
    for number, run in enumerate(runs):
        about = read_config(run)
        config, domain = RunConfig.from_json(about["config"]), domain_of(run, about)
        name = str(run) if names.count(names[number]) > 1 else names[number]
        data = about["data"]["name"]
        columns: Row = {
            "task": domain.name,
            "dataset": data if data.startswith("regenerated/") else "built in",
            "executor": domain.executor,
            "chunk": 1,
            "observation_dim": about["state_dim"],
            "action_dim": about["action_dim"],
            "train_commit": about["commit"],
        }
        ways = [(name, run, config, fast)]
        if config.method == "diffuser":
            fewer = replace(config, diffusion=few_calls(config.diffusion))
            copy = with_settings(run, folder / str(number), fewer)
            ways = [(name, run, config, PLAIN), (f"{name}, DDIM {fewer.diffusion.sampling_steps}", copy, fewer, fast)]
            if fast != PLAIN:
                ways.insert(1, (f"{name}, {fast}", run, config, fast))
        world = World(domain)
        world.environment.close()
        observation, goal = world.states[0], None if world.goals is None else world.goals[0]
        for called, there, settings, used in ways:
            opened = partial(open_planner, there, device, used, plain=called == name and used == PLAIN)
            subjects.append(Subject(called, opened, observation, goal, domain, columns | told(settings, used)))
    return subjects


def open_planner(run: Path, device: str, backend: str, plain: bool) -> Planner:
    """A run's planner. `plain`: on a GPU, Diffuser without the CUDA graph that its sampler makes of its steps."""
    planner = load(run, device, backend)
    method: Any = getattr(planner.sample, "__self__", None)
    if not plain or planner.device.type != "cuda" or not isinstance(method, Diffuser):
        return planner
    return replace(planner, sample=partial(one_by_one, method))


def one_by_one(method: Diffuser, condition: Condition, n: int, generator: torch.Generator) -> Tensor:
    """Diffuser's windows, its operations launched one by one."""
    return method.decode(method.draw(len(condition), n, generator), condition)


def told(config: RunConfig, backend: str) -> Row:
    """What a row says of a planner's settings."""
    return {
        "method": config.method,
        "field": config.drift.field if config.method == "kdp" else None,
        "seed": config.seed,
        "horizon": config.horizon,
        "backend": backend,
        "config": asdict(config),
    }


def domain_of(run: Path, about: dict[str, Any]) -> Domain:
    """Where a run's decisions are carried out."""
    if about["domain"] is None and about["walls"]:
        return custom_maze(about["walls"])
    domain = DOMAINS.get(about["domain"])
    if domain is None or domain.environments is None:
        raise UserError(
            f"{run} was trained on a file, which has no environment to step. Choose a run of a domain, or measure "
            "untrained networks of its sizes with --fresh."
        )
    return domain


def few_calls(diffusion: DiffusionConfig) -> DiffusionConfig:
    """The same noise levels, come down in few calls: no other training is needed for that."""
    return replace(diffusion, sampler="ddim", sampling_steps=min(FEW, diffusion.sampling_steps or diffusion.steps))


def with_settings(run: Path, folder: Path, config: RunConfig) -> Path:
    """A run folder with the same weights and other settings."""
    folder.mkdir(parents=True)
    for file in run.resolve().iterdir():
        if file.name != CONFIG:
            (folder / file.name).symlink_to(file)
    save_json(folder / CONFIG, read_config(run) | {"config": asdict(config)})
    return folder


def write_fresh_run(folder: Path, config: RunConfig, observation_dim: int, action_dim: int) -> Path:
    """A run folder as training leaves it, without the training."""
    learner = build_learner(config, observation_dim, action_dim, ())
    if config.bounded:
        method_of(learner).clamped.bound(-torch.ones(action_dim), torch.ones(action_dim))
    sizes = (observation_dim, observation_dim, action_dim, action_dim)
    normalizer = Normalizer(*(torch.full((size,), float(at % 2)) for at, size in enumerate(sizes)))
    about: dict[str, Any] = {
        "format": FORMAT,
        "config": asdict(config),
        "domain": None,
        "state_dim": observation_dim,
        "action_dim": action_dim,
        "goal_dims": [],
        "scorer": None,
        "tracker": None,
        "walls": None,
        "data": {"name": "none", "steps": 0, "episodes": 0, "sha256": ""},
        "commit": commit(),
        "versions": versions(),
        "device": device_name(),
    }
    tensors = {f"weights.{name}": tensor for name, tensor in learner.state_dict().items()}
    tensors |= {f"normalizer.{name}": tensor for name, tensor in normalizer.tensors().items()}
    save_tensors(folder / MODEL, tensors, {"step": 0})
    save_json(folder / CONFIG, about)
    return folder
