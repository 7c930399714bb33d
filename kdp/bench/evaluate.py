"""The only scorer of episodes: every planner and policy is judged here."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import track

from kdp.domains.domain import Domain
from kdp.errors import UserError
from kdp.plan import Controller, Planner

SIDE_BY_SIDE = 100  # environments in one round
LONGEST = 3.0  # seconds for timing a planner


class Actor(Protocol):
    """What is judged: observations (N,d_s), goals (N,d_g) -> actions (N,d_a)."""

    def act(self, observations: np.ndarray, goals: np.ndarray | None) -> np.ndarray: ...


@dataclass(frozen=True)
class Episode:
    """One episode, from the outside."""

    total: float  # return
    success: bool
    steps_to_success: int | None
    states: np.ndarray  # (T+1,d_s)
    goal: np.ndarray | None


def roll(actor: Actor, domain: Domain, seeds: list[int], console: Console | None = None) -> list[Episode]:
    """One episode per seed, side by side. An environment that is done stands still until the last one is."""
    if domain.environments is None:
        raise UserError(f"{domain.name} has data but no environment to be judged in.")
    environments = domain.environments(len(seeds))
    observation, goals = environments.reset(seeds)
    total, alive = np.zeros(len(seeds)), np.ones(len(seeds), bool)
    first = np.full(len(seeds), -1)
    # One array for all states: small ones, kept from every step, would lie between the planner's large ones, whose
    # memory could then not be used again.
    paths = np.empty((len(seeds), domain.episode_steps + 1, observation.shape[1]), observation.dtype)
    paths[:, 0] = observation
    steps = range(1, domain.episode_steps + 1)
    for t in track(steps, "episodes", console=console, transient=True) if console else steps:
        answer = environments.step(actor.act(observation, goals))
        total += np.where(alive, answer.reward, 0.0)
        first = np.where(alive & answer.success & (first < 0), t, first)
        observation = np.where(alive[:, None], answer.observation, observation)
        paths[:, t] = observation
        alive = alive & ~answer.done
        if not alive.any():
            break
    environments.close()
    paths = paths[:, : t + 1]
    return [
        Episode(float(total[i]), bool(first[i] > 0), int(first[i]) if first[i] > 0 else None, paths[i], _at(goals, i))
        for i in range(len(seeds))
    ]


def evaluate(
    planner: Planner,
    domain: Domain,
    *,
    episodes: int,
    candidates: int,
    executor: str,
    chunk: int = 1,
    seed: int = 0,
    warm: int = 0,
    blend: float | None = None,
    scored: bool = True,
    timed: bool = True,
    console: Console | None = None,
) -> tuple[dict[str, Any], list[Episode]]:
    """Scores and the episodes they come from, in closed loop (chunk 0: open loop); `warm` as of a Controller, `blend`
    the planner's own unless given. Not `scored`: candidates are not told apart. Not `timed`: the time of a decision is
    left out."""
    if blend is not None:
        planner = planner.blended(blend)
    if not scored:
        planner = replace(planner, scorer=None)
    if episodes < 1:
        raise UserError(f"episodes must be 1 or more; got {episodes}.")
    if seed < 0:
        raise UserError(f"seed must be 0 or more; got {seed}.")
    played: list[Episode] = []
    seeds = seeds_of(seed, episodes)
    for some in (seeds[at : at + SIDE_BY_SIDE] for at in range(0, episodes, SIDE_BY_SIDE)):
        controller = Controller(planner, candidates, executor, chunk, some[0], warm)  # type: ignore[arg-type]
        played += roll(controller, domain, some, console)
    nfe = warm or planner.nfe
    result = measures(played, domain) | {
        "episodes": episodes,
        "candidates": candidates,
        "executor": executor,
        "chunk": chunk,
        "warm": warm,
        "blend": planner.blend,
        "scored": scored,
        "seed": seed,
        "nfe": nfe,
        "nfe_first": planner.nfe,
        "bef": nfe * candidates,
        "plan_ms_p50": plan_ms_p50(planner, played[0], candidates, warm) if timed else None,
    }
    return result, played


def seeds_of(seed: int, episodes: int) -> list[int]:
    """The episodes that a run with this seed is judged in: the same for every method."""
    return [seed * 100_000 + number for number in range(episodes)]


def measures(played: list[Episode], domain: Domain) -> dict[str, Any]:
    """What the episodes say, whoever acted."""
    totals = np.array([episode.total for episode in played])
    scores = normalized(totals, domain)
    arrivals = [episode.steps_to_success for episode in played if episode.steps_to_success is not None]
    return {
        "score": None if scores is None else float(scores.mean()),
        "score_sem": None if scores is None or len(scores) < 2 else float(scores.std(ddof=1) / len(scores) ** 0.5),
        "return_mean": float(totals.mean()),
        "success": float(np.mean([episode.success for episode in played])),
        "time_to_goal": float(np.mean(arrivals)) if arrivals else None,
    }


def normalized(totals: np.ndarray, domain: Domain) -> np.ndarray | None:
    """Returns on the domain's scale: 0 and 100 are its reference returns."""
    if domain.reference is None:
        return None
    low, high = domain.reference
    return 100 * (totals - low) / (high - low)


def plan_ms_p50(planner: Planner, episode: Episode, candidates: int, warm: int = 0, repeats: int = 50) -> float:
    """Median time of one decision for one robot, in milliseconds, after a warm-up; `warm`: of one after the first. Slow
    planners are timed less often: LONGEST seconds must do."""
    controller = Controller(planner, candidates, warm=warm)
    state, goal = episode.states[:1], None if episode.goal is None else episode.goal[None]
    times = []
    for number in range(repeats + 5):
        begin = time.perf_counter()
        if warm:
            controller.act(state, goal)
        else:
            planner.plan(state[0], episode.goal, candidates, seed=number)
        times.append(time.perf_counter() - begin)
        if sum(times) > LONGEST and number > 10:
            break
    return 1e3 * float(np.median(times[5:]))


def _at(goals: np.ndarray | None, index: int) -> np.ndarray | None:
    return None if goals is None else goals[index]
