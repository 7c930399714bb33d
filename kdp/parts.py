"""The parts of a run, from its settings and its data: the method, the scorer, the batches that they learn from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kdp.config import RunConfig
from kdp.domains import Domain
from kdp.errors import UserError
from kdp.inverse import STEPS as INVERSE_STEPS
from kdp.inverse import InverseModel, fit_inverse, relabelled
from kdp.keys import Clamp, ReturnKey
from kdp.methods import METHODS
from kdp.normalize import Normalizer
from kdp.sampler import Sampler
from kdp.score import Support
from kdp.traces import lambda_returns
from kdp.train import has_bf16
from kdp.value import EPS, Scored, Value, method_of
from kdp.windows import Episodes, Outcomes, Windows, favoured
from kdp.wish import Wishing

CPU_TABLE, GPU_TABLE, SMALL_TABLE = 50_000, 200_000, 2000  # windows among which neighbours are found
CELLS = 4  # of the grid over places that the data have been to, in the radius of a goal


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
