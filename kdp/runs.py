"""A run: what was trained, on what, how. Starts it, resumes it, and loads it as a planner."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from kdp.inverse import STEPS as INVERSE_STEPS
from kdp.inverse import InverseModel, fit_inverse, relabelled
from kdp.keys import Clamp, ReturnKey
from kdp.methods import METHODS
from kdp.normalize import Normalizer
from kdp.plan import Backend, Planner, Tracker
from kdp.provenance import commit, device_name, versions
from kdp.sampler import Sampler
from kdp.score import Arrival, Scorer, Support
from kdp.traces import lambda_returns
from kdp.train import MODEL, TRAINING, Outcome, has_bf16, train
from kdp.value import EPS, Scored, Value, Worth, method_of
from kdp.windows import Episodes, Outcomes, Windows, favoured
from kdp.wish import Wishing

CONFIG, INVERSE = "config.json", "inverse.safetensors"
SCORER = "scorer"  # a folder in the run's: its scorer's training, where that was apart
CPU_TABLE, GPU_TABLE, SMALL_TABLE = 50_000, 200_000, 2000  # windows among which neighbours are found
CELLS = 4  # of the grid over places that the data have been to, in the radius of a goal


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


class Parts(NamedTuple):
    """What a run is made of."""

    learner: Any  # the method, or the method and the scorer that learns beside it
    sampler: Sampler
    normalizer: Normalizer
    inverse: InverseModel
    support: Support | None
    scorer: Any = None  # the method and the scorer that learns apart
    outcomes: Sampler | None = None  # what it learns from


def assemble(
    config: RunConfig, domain: Domain, episodes: Episodes, device: str, inverse: InverseModel | None = None
) -> Parts:
    """The parts of a run, from a resolved config; the inverse model is fitted unless given."""
    assert config.horizon and config.stride and config.batch
    if config.loop.bf16 and not has_bf16(device):
        raise UserError(
            f"loop.bf16 needs a GPU, or a CPU with instructions for it (AVX512-BF16 or AMX), and slows any other; got "
            f"{device=}. Leave it out."
        )
    fast_products(device)
    Windows(episodes, config.horizon, config.stride)  # refused before anything is fitted, if it is
    goal_dims = domain.goals.dims if domain.goals else ()
    learner = build_learner(config, episodes.state_dim, episodes.action_dim, goal_dims).to(device)
    method = method_of(learner)
    normalizer = Normalizer.fit(episodes.observations, episodes.actions).to(device)
    original, episodes = episodes, episodes.to(device)
    if inverse is None:
        steps = min(config.steps or INVERSE_STEPS, INVERSE_STEPS)
        ahead = round(domain.hurry * config.stride)
        inverse = fit_inverse(episodes, normalizer, config.stride, config.seed, steps, ahead)
    outcomes = None
    if config.value.scorer != "none" or config.value.wish:
        outcomes = Outcomes.of(original, config.value.discount, config.value.steps).to(device)
    returns, key = None, domain.key
    if outcomes is not None and config.value.wish:
        spread = outcomes.returns.std().clamp_min(EPS)
        returns, key = (outcomes.returns - outcomes.returns.mean()) / spread, ReturnKey(domain.key)
    if outcomes is not None and config.value.scorer == "return" and config.value.trace not in (None, 1.0):
        about = (config.value.discount, config.value.trace, config.seed, config.steps)
        outcomes = outcomes._replace(returns=lambda_returns(original, normalizer, outcomes.returns, *about))
    if outcomes is not None and isinstance(learner, Scored):
        learner.value.fit_scale(outcomes.returns)
    if config.relabel:
        episodes = relabelled(episodes, inverse)
    if config.bounded:
        keep_within(method, episodes, normalizer)
    reach = inverse.within if config.relabel else None
    windows = Windows(episodes, config.horizon, config.stride, domain.goals, reach)
    conditions = max(1, config.batch // method.samples)
    push = None
    if config.relabel and domain.goals and domain.push:
        push = domain.push * (episodes.observations[config.stride :] - episodes.observations[: -config.stride]).std(0)
    table = GPU_TABLE if torch.device(device).type == "cuda" else CPU_TABLE
    if config.steps is not None:
        used = config.steps * conditions
        table = min(table, max(SMALL_TABLE, used))  # a short run would not use all of it
        if domain.goals is None and len(windows) ** 2 <= used * table:  # less work than table after table
            table = max(table, len(windows))
    support = None
    if domain.scorer is not None:
        places = episodes.observations[:, list(domain.scorer.dims)]
        support = Support.fit(places, domain.scorer.radius / CELLS)
    sight = support.between if support is not None and config.drift.sight else None
    given = (conditions, method.positives, config.seed, table, config.drift.keying, push, outcomes, sight)
    share = favoured(original, config.value.favour).to(device) if config.value.favour else None
    sampler = Sampler(windows, normalizer, key, *given, returns, share)
    parts = Parts(learner, sampler, normalizer, inverse, support)
    if not config.value.apart:
        return parts
    seen = Sampler(windows, normalizer, key, config.value.batch, seed=config.seed, outcomes=outcomes, returns=returns)
    return parts._replace(learner=method, scorer=learner, outcomes=seen)


def keep_within(method: Any, episodes: Episodes, normalizer: Normalizer) -> None:
    """The method's actions are to stay in the range of the data's."""
    ends = (episodes.actions.amin(0), episodes.actions.amax(0))
    method.clamped.bound(*((end - normalizer.action_mean) / normalizer.action_std for end in ends))


def fast_products(device: str) -> None:
    """On a GPU matrix products are rounded to TF32, as its convolutions are."""
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")


def build_method(config: RunConfig, state_dim: int, action_dim: int, goal_dims: tuple[int, ...]) -> Any:
    """The method with fresh weights, from the seed."""
    assert config.horizon and config.stride
    tokens, width = config.horizon // config.stride, state_dim + config.stride * action_dim
    if goal_dims and tokens < 2:
        raise UserError(
            f"a goal problem needs two tokens or more, the first for the state and the last for the goal; got "
            f"horizon={config.horizon} stride={config.stride}. Try a longer horizon."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        told = {"returns": bool(config.value.wish), "bounded": bool(config.bounded)}
        clamp = Clamp(tokens, width, state_dim, tuple(goal_dims), **told)
        method = METHODS[config.method](clamp, config)
        return Wishing(method, config.value.wish) if config.value.wish else method


def build_learner(config: RunConfig, state_dim: int, action_dim: int, goal_dims: tuple[int, ...]) -> Any:
    """The same and, where there is to be a learned scorer, that beside it."""
    method = build_method(config, state_dim, action_dim, goal_dims)
    if config.value.scorer in (None, "none"):
        return method
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Scored(method, Value(method.clamp, action_dim, config.value))


def check_value(config: RunConfig, domain: Domain) -> None:
    """A learned scorer learns from rewards, and goal problems are scored by arrival."""
    asked, value = config.value.scorer, config.value
    if asked != "none" and domain.goals is not None:
        raise UserError(
            f"value.scorer must be none where plans have goals: they are scored by when they arrive; got {asked!r}."
        )
    if value.wish and domain.goals is not None:
        raise UserError(f"value.wish must be 0 where plans have goals: they are what is asked for; got {value.wish}.")
    if value.apart and (value.tilt or value.ascent):
        raise UserError(
            f"value in the field needs a scorer that learns beside the generator; got value.apart {value.apart}. Give "
            "--value.apart 0, or leave tilt and ascent at 0."
        )
    if asked == "none" and (value.tilt or value.ascent):
        raise UserError("value in the field needs a scorer; give --value.scorer critic, or leave tilt and ascent at 0.")
    if value.targets == "generator" and config.method != "kdp":
        raise UserError(f"value.targets must be data for {config.method}: only kdp draws its actions in one call.")


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
