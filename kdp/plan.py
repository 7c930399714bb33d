"""ALGORITHM 2: receding-horizon planning. Draw K windows in one call, score them, take the best, act, repeat."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from kdp.errors import UserError
from kdp.inverse import InverseModel
from kdp.keys import Condition
from kdp.normalize import Normalizer
from kdp.record import FAINT, Plan, asked, check_candidates, followed
from kdp.score import Scorer

Sample = Callable[[Condition, int, torch.Generator], Tensor]
Refine = Callable[[Tensor, Condition, torch.Generator, int], Tensor]  # earlier windows, ..., network calls -> windows
Executor = Literal["action", "track", "inverse"]


SIGHT = (1.0, 0.75, 0.5, 0.25)  # of the steps that an executor looks ahead: the first that is in sight


class Plans(NamedTuple):
    """Decisions of N environments side by side."""

    candidates: Tensor  # (N,K,L,D) in the dataset's units
    scores: Tensor  # (N,K)
    chosen: Tensor  # (N,) the best candidate's number
    blend: float = 0.0

    @property
    def best(self) -> Tensor:
        """(N,L,D) what is followed: the best candidate or, with a blend, the mean of all, in which one counts
        exp(blend) times as much for every standard deviation of the scores that it is better, and less where they
        hardly differ. What is noise in the data averages out, and where they leave no choice the mean is followed."""
        if not self.blend:
            return self.candidates.take_along_dim(self.chosen[:, None, None, None], 1)[:, 0]
        apart = self.scores - self.scores.mean(1, keepdim=True)
        weight = (self.blend * apart / (apart.square().mean(1, keepdim=True).sqrt() + FAINT)).softmax(1)
        return (weight[:, None] @ self.candidates.flatten(2)).unflatten(2, self.candidates.shape[2:])[:, 0]

    @property
    def brief(self) -> Tensor:
        """(N,L*D+K+1) the best windows, all the scores and the choice in a row: all that must leave a GPU."""
        return torch.cat([self.best.flatten(1), self.scores, self.chosen[:, None].to(self.scores)], 1)


@dataclass(frozen=True)
class Tracker:
    """A PD law on planned states: the `track` executor of domains that define one."""

    position: tuple[int, ...]
    velocity: tuple[int, ...]
    kp: float
    kd: float
    lookahead: int  # steps: which planned state is steered at
    low: float = -1.0
    high: float = 1.0

    def __call__(self, target: Tensor, state: Tensor) -> Tensor:
        """target, state (N,d_s) -> actions (N,d_a)."""
        error = target - state
        force = self.kp * error[:, list(self.position)] + self.kd * error[:, list(self.velocity)]
        return force.clamp(self.low, self.high)

    def at_rest(self, target: Tensor) -> Tensor:
        """The same place without a velocity: where a plan ends, its last state is held."""
        target = target.clone()
        target[:, list(self.velocity)] = 0
        return target


Whole = Callable[..., tuple[Tensor, Tensor, Tensor]]  # observation, noise[, goal] -> candidates, scores, chosen


@dataclass(frozen=True)
class Backend:
    """A way to compute whole plans (kdp/backends), and the sampler that it stands for."""

    name: str
    sample: Sample
    draw: Callable[[int, int, torch.Generator], Tensor]  # (N, K, generator) -> the noise that `sample` would draw
    build: Callable[[Normalizer, tuple[int, ...], Scorer | None, float], Whole | None]  # None: not with this scorer
    largest: float = math.inf  # environments side by side; more of them are left to the sampler


@dataclass(frozen=True)
class Planner:
    """Everything needed to plan: a sampler of windows, the units, and what to do with the candidates."""

    sample: Sample
    normalizer: Normalizer
    stride: int
    goal_dims: tuple[int, ...] = ()
    scorer: Scorer | None = None
    tracker: Tracker | None = None
    inverse: InverseModel | None = None
    device: torch.device = torch.device("cpu")
    nfe: int = 1  # network calls one after the other in a plan
    refine: Refine | None = None  # methods that denoise: an earlier plan made new; it and `sample` then take a `guide`
    computed: Backend | None = None  # how; None: by the sampler as it is
    blend: float = 0.0  # what is followed: 0 the best candidate, else a mean of all (Plans.best)

    @cached_property
    def state_dim(self) -> int:
        return len(self.normalizer.state_mean)

    @cached_property
    def action_dim(self) -> int:
        return len(self.normalizer.action_mean)

    @property
    def backend(self) -> str:
        """The name of the one that computes plans: another than was asked for where that one does not cover them."""
        if self.whole is None or self.computed is None:
            return "eager"
        return getattr(self.whole, "backend", self.computed.name)

    @cached_property
    def whole(self) -> Whole | None:
        """A whole plan as one function, by the backend; None where the sampler is another than the backend's, or the
        scorer a function that it does not know."""
        if self.computed is None or self.computed.sample is not self.sample:
            return None
        return self.computed.build(self.normalizer, self.goal_dims, self.scorer, self.blend)

    @torch.inference_mode()
    def plan_batch(
        self,
        observations: Tensor,
        goals: Tensor | None,
        candidates: int,
        generator: torch.Generator,
        earlier: Tensor | None = None,
        warm: int = 0,
    ) -> Plans:
        """observations (N,d_s), goals (N,d_g) in the dataset's units -> N plans (Alg. 2).

        With `earlier` windows (N,K,L,D) nothing is drawn anew: they are refined, in `warm` network calls.
        """
        if earlier is None and self.computed and self.whole and len(observations) <= self.computed.largest:
            noise = self.computed.draw(len(observations), candidates, generator)
            return Plans(*self.whole(observations, noise, *(() if goals is None else (goals,))), self.blend)
        observations, goals = observations.to(self.device), None if goals is None else goals.to(self.device)
        condition = Condition(self.normalizer.state(observations))
        if goals is not None:
            condition = Condition(condition.state, self.normalizer.goal(goals, self.goal_dims))
        if earlier is None or self.refine is None:  # l. 1-2
            windows = self.sample(condition, candidates, generator)
        else:
            windows = self.refine(self.normalizer.tokens(earlier), condition, generator, warm)
        windows = self.normalizer.untokens(windows)
        if self.scorer is None:  # l. 5-6
            scores = torch.zeros(windows.shape[:2], device=windows.device)
        else:  # l. 3-4
            scores = self.scorer(windows, goals)
        return Plans(windows, scores, scores.argmax(1), self.blend)

    def plan(self, observation, goal=None, candidates: int = 64, seed: int = 0) -> Plan:
        """observation (d_s,), goal (d_g,) -> the best of `candidates` windows drawn in one call."""
        begin = time.perf_counter()
        here, there = asked(observation, goal, self.state_dim, len(self.goal_dims))
        check_candidates(candidates)
        told = [here] if there is None else [here, there]
        windows, best, scores, chosen = self._decide(told, candidates, seed)
        passed = time.perf_counter() - begin

        def fetch() -> np.ndarray:
            return windows.cpu().numpy() if isinstance(windows, Tensor) else windows

        return Plan(best, scores, chosen, self.state_dim, self.action_dim, passed, fetch)

    def _decide(
        self, rows: list[np.ndarray], candidates: int, seed: int
    ) -> tuple[Tensor | np.ndarray, np.ndarray, np.ndarray, int]:
        """One plan: the candidates (K,L,D), left where they are, and in the CPU's memory the best of them, the scores
        and the choice. The noise is drawn on the planner's device: a seed's is not the same on a GPU as on a CPU."""
        decide = getattr(self.whole, "decide", None)  # a backend that draws the noise, and answers in the CPU's memory
        runtime = getattr(self.whole, "runtime", None) if decide is None else None  # one that has no use for tensors
        if runtime is not None and self.computed is not None:
            noise = self.computed.draw(1, candidates, torch.Generator().manual_seed(seed)).numpy()
            made, ranks, choice = runtime(rows[0], noise, *rows[1:])
            at = int(choice[0])
            return made[0], followed(made[0], ranks[0], at, self.blend), ranks[0], at
        if decide is not None:
            made, answer = decide(candidates, seed, *rows)
        else:
            told = [torch.from_numpy(row) for row in rows]
            random = torch.Generator(self.device).manual_seed(seed)
            plans = self.plan_batch(told[0], told[1] if len(told) > 1 else None, candidates, random)
            if not plans.candidates.is_cuda:
                at, made, ranks = int(plans.chosen[0]), plans.candidates[0], plans.scores[0].numpy()
                return made, followed(made.numpy(), ranks, at, self.blend), ranks, at
            made, answer = plans.candidates, plans.brief.cpu().numpy()
        windows, brief = made[0], answer[0]
        size = len(brief) - candidates - 1
        return windows, brief[:size].reshape(windows.shape[1:]), brief[size:-1], int(brief[-1])

    def blended(self, blend: float) -> Planner:
        """The same, with another blend of the candidates followed; 0: the best of them alone."""
        if not (blend >= 0 and math.isfinite(blend)):
            raise UserError(f"blend must be 0 (the best candidate is followed) or more, and finite; got {blend}.")
        return replace(self, blend=blend)

    def guided(self, objective: Scorer | None = None, weight: float = 1.0) -> Planner:
        """The same, with plans drawn from p(x) exp(weight J(x)), to first order, in place of p(x).

        J is a scorer (windows and goals in the dataset's units), the run's own unless given. Weight 0: no guide.
        """
        if self.refine is None:
            raise UserError(
                "guidance needs a method that denoises step by step (diffuser); this run's plans come in one call. "
                "Leave guidance at 0 and give a scorer more candidates."
            )
        J = objective or self.scorer
        if J is None:
            raise UserError(
                "guidance moves plans up the run's scorer, and this run has none. Leave guidance at 0, or give a "
                "function of your own in Python: planner.guided(J, weight)."
            )
        if not (weight >= 0 and math.isfinite(weight)):
            raise UserError(f"the weight of guidance must be 0 (off) or more, and finite; got {weight}.")

        def guide(x: Tensor, condition: Condition) -> Tensor:
            aims = condition.goal if self.goal_dims else None  # a wish is none
            goals = None if aims is None else self.normalizer.ungoal(aims, self.goal_dims)
            value = J(self.normalizer.untokens(x), goals)
            if value.shape != x.shape[:2] or not value.requires_grad:
                raise UserError(
                    f"a guide must give one number a window, of shape {tuple(x.shape[:2])}, by torch operations that "
                    f"have a gradient; got shape {tuple(value.shape)}, {value.requires_grad=}."
                )
            return weight * value

        chosen: dict[str, Any] = {"guide": guide if weight else None}
        return replace(
            self, sample=partial(self.sample, **chosen), refine=partial(self.refine, **chosen), computed=None
        )


class Controller:
    """Closes the loop for N environments: replans every `chunk` steps and executes the plan in between.

    Chunk 0 plans once, open loop. Beyond a plan's end its last state is held (track: without its velocity) or, by the
    action executor, its last action repeated. With `warm`, every plan but the first is the last one's candidates,
    moved on in time and refined in that many network calls.
    """

    def __init__(
        self,
        planner: Planner,
        candidates: int = 16,
        executor: Executor = "action",
        chunk: int = 1,
        seed: int = 0,
        warm: int = 0,
    ):
        if executor not in get_args(Executor):
            raise UserError(f"executor must be one of {', '.join(get_args(Executor))}; got {executor!r}.")
        if executor == "track" and planner.tracker is None:
            raise UserError("the track executor needs a domain with a tracking law; this run has none. Use action.")
        if executor == "inverse" and planner.inverse is None:
            raise UserError(
                "the inverse executor needs inverse.safetensors, which this run does not have (an older one, perhaps). "
                "Resume the run with `kdp train --resume`: that fits it, even where the training is finished."
            )
        if candidates < 1 or chunk < 0:
            raise UserError(
                f"candidates must be 1 or more, and chunk too, or 0 to plan only once; got {candidates=} {chunk=}."
            )
        if warm and planner.refine is None:
            raise UserError(
                "a warm start needs a method that denoises step by step (diffuser); this run's plans come in one "
                f"call. Leave warm at 0; got {warm}."
            )
        if not 0 <= warm <= planner.nfe:
            raise UserError(f"warm must be 0 (off) to {planner.nfe}, the network calls of a whole plan; got {warm}.")
        if warm and chunk == 0:
            raise UserError(f"with chunk=0 there is no second plan to start warm; got {warm=}. Leave one of them out.")
        self.planner, self.candidates, self.executor, self.chunk = planner, candidates, executor, chunk
        self.warm = warm
        self.random = torch.Generator().manual_seed(seed)
        self.plans: Plans | None = None
        self.age = 0

    def act(self, observations: np.ndarray, goals: np.ndarray | None) -> np.ndarray:
        """observations (N,d_s), goals (N,d_g) -> actions (N,d_a)."""
        planner = self.planner
        state = torch.as_tensor(observations, dtype=torch.float32, device=planner.device)
        if self.plans is None or 0 < self.chunk <= self.age:
            goal = None if goals is None else torch.as_tensor(goals, dtype=torch.float32, device=planner.device)
            earlier = None
            if self.warm and self.plans is not None:
                earlier = moved_on(self.plans.candidates, self.age, planner.stride, planner.state_dim)
            self.plans = planner.plan_batch(state, goal, self.candidates, self.random, earlier, self.warm)
            self.age = 0
        window = self.plans.best
        states = window[..., : planner.state_dim]
        if self.executor == "track" and planner.tracker is not None:
            action = planner.tracker(self.target(state, states, planner.tracker.lookahead), state)
        elif self.executor == "inverse" and planner.inverse is not None:
            action = planner.inverse(state, self.target(state, states, planner.inverse.ahead))
        else:
            actions = window[..., planner.state_dim :].reshape(len(window), -1, planner.action_dim)
            action = actions[:, min(self.age, actions.shape[1] - 1)]
        self.age += 1
        return action.cpu().numpy()

    def target(self, state: Tensor, states: Tensor, ahead: int) -> Tensor:
        """The planned state (N,d_s) that is steered at: `ahead` steps from now or, where the straight way there leaves
        the places that the data have been to, nearer. A plan turns a corner; what looks past it must not cut it."""
        planner = self.planner
        support, dims = getattr(planner.scorer, "support", None), list(planner.goal_dims)
        options = []
        for share in (1.0,) if support is None else SIGHT:
            token = (self.age + share * ahead) / planner.stride
            option = state_at(states, token)
            if self.executor == "track" and planner.tracker is not None and token > states.shape[1] - 1:
                option = planner.tracker.at_rest(option)
            options.append(option)
        if support is None:
            return options[0]
        targets = torch.stack(options, 1)  # (N,n,d_s)
        seen = support.between(state[:, dims], targets[..., dims])
        seen[:, -1] = True  # the nearest will have to do
        return targets[torch.arange(len(state), device=state.device), seen.int().argmax(1)]


def state_at(states: Tensor, token: float) -> Tensor:
    """states (N,L,d_s) -> (N,d_s) at a token between two, by a straight line; the last one from there on."""
    low = min(int(token), states.shape[1] - 1)
    high = min(low + 1, states.shape[1] - 1)
    return torch.lerp(states[:, low], states[:, high], token - int(token))


def moved_on(windows: Tensor, steps: int, stride: int, state_dim: int) -> Tensor:
    """windows (...,L,D) -> the same as they look `steps` later, with the last state and action repeated at the end.

    Actions move by whole steps; states, one a token, along straight lines between tokens.
    """
    tokens = windows.shape[-2]
    states, actions = windows[..., :state_dim], windows[..., state_dim:]
    at = (torch.arange(tokens, device=windows.device) + steps / stride).clamp(max=tokens - 1)
    low = at.long()
    high = (low + 1).clamp(max=tokens - 1)
    states = torch.lerp(states[..., low, :], states[..., high, :], (at - low)[:, None])
    each = actions.unflatten(-1, (stride, -1)).flatten(-3, -2)  # (...,H,d_a), one a step
    step = (torch.arange(each.shape[-2], device=windows.device) + steps).clamp(max=each.shape[-2] - 1)
    return torch.cat([states, each[..., step, :].reshape(actions.shape)], -1)
