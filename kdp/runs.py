"""A run: what was trained, on what, how. Starts it, resumes it, and loads it as a planner."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from kdp.backends import ON_GPU, choose, make
from kdp.backends.runtimes import RUNTIMES
from kdp.backends.whole import WholePlan, known
from kdp.checkpoint import FORMAT, load_json, load_tensors, save_json, save_tensors
from kdp.config import RunConfig, planning_temperature
from kdp.domains import DOMAINS, Domain, find_domain
from kdp.errors import UserError
from kdp.exported import ABOUT
from kdp.inverse import InverseModel
from kdp.normalize import Normalizer
from kdp.parts import Parts, assemble, build_learner, check_value, fast_products
from kdp.plan import Backend, Planner, Tracker
from kdp.provenance import commit, device_name, versions
from kdp.score import Arrival, Scorer, Support
from kdp.train import MODEL, TRAINING, Outcome, train
from kdp.value import Scored, Worth, method_of
from kdp.windows import Episodes

CONFIG, INVERSE = "config.json", "inverse.safetensors"
SCORER = "scorer"  # a folder in the run's: its scorer's training, where that was apart


def start_run(
    config: RunConfig,
    folder: Path,
    *,
    device: str = "cpu",
    stop_after: int | None = None,
    console: Console | None = None,
    domain: Domain | None = None,
) -> Outcome:
    """Trains from the beginning. `domain` replaces the one that config.dataset names (other data, say)."""
    config.check()
    domain = domain or find_domain(config.dataset)
    if (folder / CONFIG).exists():
        raise UserError(
            f"{folder} already holds a run; go on with `kdp train --resume {folder}` or choose another --run folder."
        )
    config = config.for_domain(domain, device)
    check_value(config, domain)
    episodes = domain.episodes()
    parts = assemble(config, domain, episodes, device)
    about = describe(config, domain, episodes, device)
    _writable(folder)
    save_json(folder / CONFIG, about)
    save_inverse(folder, parts.inverse)
    return train_parts(config, parts, folder, resume=False, stop_after=stop_after, console=console)


def describe(config: RunConfig, domain: Domain, episodes: Episodes, device: str) -> dict[str, Any]:
    """config.json of a run."""
    scorer = None if domain.scorer is None else asdict(replace(domain.scorer, stride=config.stride or 1))
    return {
        "format": FORMAT,
        "config": asdict(config),
        "domain": domain.name if domain.source is None and domain.name in DOMAINS else None,
        "state_dim": episodes.state_dim,
        "action_dim": episodes.action_dim,
        "goal_dims": domain.goals.dims if domain.goals else [],
        "scorer": scorer,
        "tracker": None if domain.tracker is None else asdict(domain.tracker),
        "walls": domain.walls,
        "data": fingerprint(episodes),
        "commit": commit(),
        "versions": versions(),
        "device": device_name(device),
    }


def resume_run(
    folder: Path,
    *,
    device: str = "cpu",
    stop_after: int | None = None,
    console: Console | None = None,
    domain: Domain | None = None,
) -> Outcome:
    """Goes on where the run stopped."""
    about = read_config(folder)
    config = RunConfig.from_json(about["config"])
    domain = domain or find_domain(config.dataset)
    episodes = domain.episodes()
    if fingerprint(episodes) != about["data"]:
        raise UserError(
            f"the data of {config.dataset} are not those that {folder} was trained on "
            f"({about['data']['steps']} steps then, {len(episodes)} now); remake them, or start another run."
        )
    normalizer = Normalizer.fit(episodes.observations, episodes.actions).to(device)
    parts = assemble(config, domain, episodes, device, _load_inverse(folder, normalizer, device))
    if not (folder / INVERSE).exists():
        save_inverse(folder, parts.inverse)
    return train_parts(config, parts, folder, resume=True, stop_after=stop_after, console=console)


def load(
    folder: str | Path, device: str = "cpu", backend: str | None = None, temperature: float | None = None
) -> Planner:
    """A planner from a run folder; needs neither the dataset nor the environment. Where a run was stopped before its
    scorer was trained, its plans are not scored.

    `backend`: how plans are computed, one of kdp/backends; the best of those that are installed unless given.
    `temperature`: how much of the noise of training plans are drawn from; the run's own unless given.
    """
    fast_products(device)
    folder = Path(folder)
    if (folder / ABOUT).exists() and not (folder / CONFIG).exists():
        raise UserError(f"{folder} is an exported planner: load it with kdp.exported.load_exported, or load its run.")
    about = read_config(folder)
    config = RunConfig.from_json(about["config"])
    goal_dims = tuple(about["goal_dims"])
    learner = build_learner(config, about["state_dim"], about["action_dim"], goal_dims)
    tensors, _ = load_tensors(folder / MODEL)
    if config.value.apart and (folder / SCORER / MODEL).exists():
        own, _ = load_tensors(folder / SCORER / MODEL)
        tensors = {k: v for k, v in tensors.items() if not k.startswith("weights.")} | own
    elif config.value.apart:
        learner = learner.method

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    try:
        learner.load_state_dict(part("weights."))
        normalizer = Normalizer(**part("normalizer."))
        support = Support(**part("support.")) if part("support.") else None
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{folder / MODEL} does not fit the run's {CONFIG} ({error}).") from error
    normalizer, support = normalizer.to(device), None if support is None else support.to(device)
    learner = learner.eval().requires_grad_(False).to(device)
    method = method_of(learner)
    method.cool(planning_temperature(temperature, config.temperature))
    name = choose(backend, torch.device(device).type, method.nfe)
    assert config.stride
    arrival = _record(Arrival, about["scorer"])
    scorer: Scorer | None = None if arrival is None else replace(arrival, support=support)
    if isinstance(learner, Scored):
        scorer = Worth(learner.value, normalizer)
    sample = method.sample
    planner = Planner(
        sample,
        normalizer,
        config.stride,
        goal_dims,
        scorer=scorer,
        blend=config.value.blend or 0.0,
        tracker=_record(Tracker, about["tracker"]),
        inverse=_load_inverse(folder, normalizer, device),
        device=torch.device(device),
        nfe=method.nfe,
        refine=getattr(method, "refine", None),
        computed=_computed(name, method, sample, torch.device(device)),
    )
    _ = planner.whole  # made now: the first plan is to be as fast as the others
    return planner


def _computed(name: str, method: Any, sample: Any, device: torch.device) -> Backend | None:
    """The backend, for the planner of a method."""
    if name == "eager" and device.type == "cuda":  # the sampler has CUDA graphs of its own
        return None

    def build(normalizer: Normalizer, goal_dims: tuple[int, ...], scorer: Scorer | None, blend: float) -> Any:
        if name not in ("eager", "compiled") and not known(scorer):
            return None
        return make(
            name, WholePlan(method, normalizer, goal_dims, scorer, blend).eval().requires_grad_(False).to(device)
        )

    return Backend(name, sample, method.draw, build, 1 if name in (*RUNTIMES, *ON_GPU) else math.inf)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a run, checked."""
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder} holds no run: there is no {CONFIG} in it. `kdp train X --run {folder}` makes one.")
    about = load_json(folder / CONFIG)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UserError(
            f"{folder / CONFIG} is not the config of a run of this version of kdp (format {FORMAT!r}). Train it again."
        )
    try:
        RunConfig.from_json(about["config"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder / CONFIG} is not the config of this version of kdp ({error}). Train it again."
        ) from error
    return about


def fingerprint(episodes: Episodes) -> dict[str, Any]:
    """Enough to notice other data."""
    digest = hashlib.sha256(episodes.steps.numpy().tobytes())
    digest.update(episodes.starts.numpy().tobytes())
    count = len(episodes.starts) - 1
    return {"name": episodes.name, "steps": len(episodes), "episodes": count, "sha256": digest.hexdigest()[:16]}


def train_parts(
    config: RunConfig, parts: Parts, folder: Path, *, resume: bool, stop_after: int | None, console: Console | None
) -> Outcome:
    """The loop, with what a planner needs beside the weights; and then, where the scorer learns apart, once more."""
    extra = {f"normalizer.{k}": v for k, v in parts.normalizer.tensors().items()}
    if parts.support is not None:
        extra |= {f"support.{k}": v for k, v in parts.support.tensors().items()}
    budget, more = config.budgets()
    told: dict[str, Any] = {"resume": resume, "stop_after": stop_after, "console": console}
    first = train(parts.learner, parts.sampler.ahead(), folder, budget, config.loop, config.seed, extra=extra, **told)
    if parts.scorer is None or parts.outcomes is None or not first.finished:
        return first
    weights, _ = load_tensors(folder / MODEL)
    average = {k.removeprefix("weights."): v for k, v in weights.items() if k.startswith("weights.")}
    parts.scorer.method.load_state_dict(average)
    parts.scorer.method.requires_grad_(False)
    (folder / SCORER).mkdir(exist_ok=True)
    told |= {"resume": True, "stop_after": None if stop_after is None else max(0, stop_after - first.step)}
    told |= {"about": "training the scorer"}
    loop = replace(config.loop, lr=config.value.rate)
    then = train(parts.scorer, parts.outcomes.ahead(), folder / SCORER, more, loop, config.seed, extra={}, **told)
    return replace(then, step=first.step + then.step, elapsed=first.elapsed + then.elapsed)


def spent(folder: Path, config: RunConfig) -> tuple[int, float, bool]:
    """-> steps of the method's training, minutes of all of it, and whether it is finished."""
    steps, minutes, finished = 0, 0.0, True
    for part, budget in zip((folder, folder / SCORER), config.budgets(), strict=True):
        if part != folder and not config.value.apart:
            break
        if not (part / TRAINING).exists():
            return steps, minutes, False
        _, about = load_tensors(part / TRAINING)
        steps, minutes = steps or about["step"], minutes + about["elapsed"] / 60
        finished = finished and budget.progress(about["step"], about["elapsed"]) >= 1
    return steps, minutes, finished


def save_inverse(folder: Path, model: InverseModel) -> None:
    save_tensors(folder / INVERSE, model.state_dict(), {"gap": model.gap, "ahead": model.ahead})


def _load_inverse(folder: Path, normalizer: Normalizer, device: str) -> InverseModel | None:
    """The inverse-dynamics model of a run; None where there is none yet."""
    if not (folder / INVERSE).exists():
        return None
    tensors, about = load_tensors(folder / INVERSE)
    model = InverseModel(normalizer, about["gap"], about["ahead"])
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{folder / INVERSE} does not fit the run's {CONFIG} ({error}).") from error
    return model.eval().requires_grad_(False).to(device)


def _record(cls, value: dict[str, Any] | None):
    """A frozen record back from JSON, lists as tuples."""
    if value is None:
        return None
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the run folder {folder}: {error.strerror}. Choose another --run.") from error
