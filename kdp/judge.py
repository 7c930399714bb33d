"""What `kdp eval` and `kdp plan` do: judge a run in its environment, and show a single plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from kdp.bench.evaluate import Episode, evaluate
from kdp.checkpoint import save_json
from kdp.config import planning_temperature
from kdp.domains import DOMAINS, Domain
from kdp.domains.maze2d import custom_maze
from kdp.errors import UserError, did_you_mean
from kdp.files import replacing
from kdp.pictures import draw_plan, draw_rollouts
from kdp.plan import Plan, Planner
from kdp.provenance import commit, device_name, versions
from kdp.runs import load, read_config

EVAL, PICTURE = "eval.json", "rollouts.png"


def judge(
    run: Path,
    episodes: int,
    candidates: int,
    executor: str | None,
    chunk: int,
    seed: int,
    domain_name: str | None,
    device: str,
    console: Console,
    *,
    warm: int = 0,
    guidance: float = 0.0,
    blend: float | None = None,
    temperature: float | None = None,
) -> dict[str, Any]:
    """Closed-loop evaluation of a run: prints a table, writes eval.json and a picture, returns what it wrote."""
    about = read_config(run)
    domain = _domain(about, domain_name, run)
    planner = load(run, device, temperature=temperature)
    if domain_name not in (None, about["domain"]):
        _fits(planner, domain, run)
    if guidance:
        planner = planner.guided(weight=guidance)
    executor = executor or ("track" if planner.tracker else "action")
    result, played = evaluate(
        planner,
        domain,
        episodes=episodes,
        candidates=candidates,
        executor=executor,
        chunk=chunk,
        seed=seed,
        warm=warm,
        blend=blend,
        console=console,
    )
    result |= {
        "guidance": guidance,
        "temperature": planning_temperature(temperature, about["config"].get("temperature")),
        "domain": domain.name,
        "dataset": about["data"]["name"],
        "method": about["config"]["method"],
        "field": about["config"]["drift"]["field"] if about["config"]["method"] == "kdp" else None,
        "train_seed": about["config"]["seed"],
        "device": device_name(device),
        "commit": commit(),
        "versions": versions(),
    }
    save_json(run / EVAL, result)
    console.print(_table(result))
    if domain.walls:
        draw_episodes(run / PICTURE, planner, played, candidates, domain)
        console.print(f"wrote {run / EVAL} and {run / PICTURE}")
    else:
        console.print(f"wrote {run / EVAL}")
    return result


def show_plan(
    run: Path,
    observation: list[float],
    goal: list[float] | None,
    candidates: int,
    seed: int,
    out: Path | None,
    console: Console,
) -> Plan:
    """One plan: a short table, and a file if asked."""
    if out is not None and out.suffix not in (".json", ".png"):
        raise UserError(f"--out must end in .json or .png; got {str(out)!r}.")
    about = read_config(run)
    planner = load(run)
    plan = planner.plan(observation, goal, candidates, seed)
    which = "blend" if planner.blend and candidates > 1 else "best"
    title = f"{which} of {candidates}; the best scores {plan.scores[plan.chosen]:.2f}"
    table = Table("token", "state", "first action", title=title)
    for token in _few(len(plan.best)):
        row = plan.best[token]
        table.add_row(str(token), _show(plan.states[token]), _show(row[plan.state_dim :][: plan.action_dim]))
    console.print(table)
    console.print(f"{len(plan.actions)} actions planned in {1e3 * plan.latency_s:.1f} ms ({planner.backend})")
    if out is None:
        return plan
    if out.suffix == ".png":
        places = tuple(about["goal_dims"][:2]) or None
        draw_plan(
            out,
            plan.states,
            plan.candidates[:, :, : plan.state_dim],
            best=plan.chosen,
            walls=about["walls"],
            start=None if places is None else [observation[i] for i in places],
            goal=goal,
            position_dims=places,
            title=f"{candidates} plans in one call",
        )
    else:
        arrays = {name: getattr(plan, name).tolist() for name in ("actions", "states", "candidates", "scores")}
        with replacing(out) as temporary:
            temporary.write_text(json.dumps({"chosen": plan.chosen, "latency_s": plan.latency_s} | arrays) + "\n")
    console.print(f"wrote {out}")
    return plan


def _domain(about: dict[str, Any], name: str | None, run: Path) -> Domain:
    name = name or about["domain"]
    if name is None and about["walls"]:
        return custom_maze(about["walls"])
    if name is None:
        raise UserError(
            f"{run} was trained on a file, which has no environment; say where to judge it with --domain. "
            + did_you_mean("", DOMAINS)
        )
    if name not in DOMAINS:
        raise UserError(f"{name!r} is not a domain. {did_you_mean(name, DOMAINS)}")
    return DOMAINS[name]


def _fits(planner: Planner, domain: Domain, run: Path) -> None:
    """A run may be judged in another domain only if its observations and goals have the sizes it was trained on."""
    assert domain.environments is not None
    environment = domain.environments(1)
    states, goals = environment.reset([0])
    environment.close()
    there = (states.shape[1], 0 if goals is None else goals.shape[1])
    here = (planner.state_dim, len(planner.goal_dims))
    if here != there:
        raise UserError(
            f"{run} plans from {here[0]} numbers toward goals of {here[1]}, and {domain.name} has {there[0]} and "
            f"{there[1]}; choose a --domain that fits."
        )


def _table(result: dict[str, Any]) -> Table:
    field = f", {result['field']} field" if result["field"] else ""
    table = Table("measure", "value", title=f"{result['domain']}: {result['method']}{field}")
    error = "" if result["score_sem"] is None else f" ± {result['score_sem']:.1f}"
    pace = f"planning every {result['chunk']} steps" if result["chunk"] else "one plan, open loop"
    pace += ", each from the last" if result["warm"] else ""
    which = f"blended ({result['blend']:g})" if result["blend"] else "the best is followed"
    first = f" ({result['nfe_first']} the first time)" if result["warm"] else ""
    rows = {
        "score": "-" if result["score"] is None else f"{result['score']:.1f}{error}",
        "success": f"{100 * result['success']:.0f}%",
        "steps to goal": "-" if result["time_to_goal"] is None else f"{result['time_to_goal']:.0f}",
        "return": f"{result['return_mean']:.1f}",
        "episodes": str(result["episodes"]),
        "candidates": f"{result['candidates']}, {which}" if result["candidates"] > 1 else "1",
        "executor": f"{result['executor']}, {pace}",
        "network calls per plan": f"{result['nfe']}{first}",
        "guidance": f"{result['guidance']:g}" if result["guidance"] else "none",
        "temperature": f"{result['temperature']:g}",
        "time per plan (median)": f"{result['plan_ms_p50']:.2f} ms",
        "data": result["dataset"],
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def draw_episodes(path: Path, planner: Planner, played: list[Episode], candidates: int, domain: Domain) -> None:
    """Up to eight episodes: what the first decision saw, and where it led."""
    panels = []
    random = torch.Generator().manual_seed(0)
    for number, episode in enumerate(played[:8]):
        state = torch.as_tensor(episode.states[:1], dtype=torch.float32, device=planner.device)
        goal = torch.as_tensor(episode.goal[None], dtype=torch.float32, device=planner.device)  # type: ignore[index]
        plans = planner.plan_batch(state, goal, max(candidates, 16), random)
        arrived = f"there after {episode.steps_to_success}" if episode.success else "did not arrive"
        windows = plans.candidates[0, :, :, :2].cpu().numpy()
        panels.append((f"episode {number}: {arrived}", episode.states[:, :2], windows, int(plans.chosen[0])))
    draw_rollouts(path, panels, walls=domain.walls, goal=played[0].goal)


def _few(count: int) -> list[int]:
    """The first and last tokens, and some between."""
    return sorted({round(i * (count - 1) / 7) for i in range(8)})


def _show(numbers) -> str:
    shown = " ".join(f"{number:6.2f}" for number in numbers[:6])
    return shown + (" ..." if len(numbers) > 6 else "")
