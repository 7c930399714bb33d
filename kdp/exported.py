"""An exported planner: numpy and one runtime (onnxruntime or OpenVINO), no PyTorch. `kdp export` writes the folder."""

from __future__ import annotations

import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kdp.backends import require
from kdp.backends.runtimes import RUNTIMES, Runtime
from kdp.errors import UserError
from kdp.record import Plan, asked, check_candidates, followed

FORMAT, ABOUT, EXECUTORS = "kdp-export-4", "about.json", "executors.npz"
GRAPHS = {"onnx": "plan.onnx", "openvino": "plan.xml"}
SIGHT = (1.0, 0.75, 0.5, 0.25)  # of the steps that an executor looks ahead, as in kdp/plan.py
PLACES = 16  # looked at on the way to a target, as in kdp/score.py


@dataclass(frozen=True)
class Exported:
    """Plans as kdp.load's planner does; the same noise gives the same plan to 1e-4 of the data's spread."""

    run: Runtime
    about: dict[str, Any]
    arrays: dict[str, np.ndarray]  # what the executors need

    @property
    def backend(self) -> str:
        return self.about["runtime"]

    def plan(
        self,
        observation: Any,
        goal: Any = None,
        candidates: int | None = None,
        seed: int = 0,
        noise: np.ndarray | None = None,
    ) -> Plan:
        """observation (d_s,), goal (d_g,) -> the best of `candidates` windows, their noise drawn from the seed unless
        given. More candidates leave the first ones as they are."""
        begin = time.perf_counter()
        about = self.about
        told = asked(observation, goal, about["state_dim"], len(about["goal_dims"]))
        if noise is None:
            noise = self.draw(about["candidates"] if candidates is None else candidates, seed)
        given = (told[0], noise) if told[1] is None else (told[0], noise, told[1])
        windows, scores, chosen = self.run(*given)
        passed = time.perf_counter() - begin
        windows, at = windows[0], int(chosen[0])
        best = followed(windows, scores[0], at, about["blend"])
        return Plan(best, scores[0], at, about["state_dim"], about["action_dim"], passed, lambda: windows)

    def draw(self, candidates: int, seed: int) -> np.ndarray:
        """The noise of a plan, by numpy: other numbers than PyTorch's for the same seed."""
        check_candidates(candidates)
        steps, shape = self.about["noise"]["steps"], self.about["noise"]["shape"]
        if not self.about["noise"]["drawn"]:
            return np.zeros((1, candidates, *shape), np.float32)
        lead = () if steps is None else (steps,)
        noise = np.random.default_rng(seed).standard_normal((1, candidates, *lead, *shape), np.float32)
        return noise if steps is None else np.ascontiguousarray(np.moveaxis(noise, 2, 0))

    def act(self, plan: Plan, observation: Any, age: int = 0, executor: str = "action") -> np.ndarray:
        """The action (d_a,) of a plan that is `age` steps old, by an executor: action, track or inverse."""
        about = self.about
        state = asked(observation, None, about["state_dim"], 0)[0][0]
        if executor == "action":
            return plan.actions[min(age, len(plan.actions) - 1)]
        if executor not in ("track", "inverse"):
            raise UserError(f"executor must be one of action, track, inverse; got {executor!r}.")
        law = about["tracker" if executor == "track" else "inverse"]
        if law is None:
            raise UserError(f"this run was exported without what the {executor} executor needs. Use action.")
        if executor == "inverse":
            return self._inverse(state, self._target(plan, state, age, law["ahead"]))
        error = self._target(plan, state, age, law["lookahead"], law["velocity"]) - state
        force = law["kp"] * error[law["position"]] + law["kd"] * error[law["velocity"]]
        return force.clip(law["low"], law["high"])

    def _target(
        self, plan: Plan, state: np.ndarray, age: int, ahead: float, still: list[int] | None = None
    ) -> np.ndarray:
        """The planned state that is steered at: `ahead` steps from now or, where the straight way there leaves the
        places that the data have been to, nearer. Beyond the plan's end its last state is held, at rest."""
        states, dims = plan.states, self.about["goal_dims"]
        seen = self.arrays.get("support.seen")
        target = state
        for share in (1.0,) if seen is None else SIGHT:
            token = (age + share * ahead) / self.about["stride"]
            low = min(int(token), len(states) - 1)
            high = min(low + 1, len(states) - 1)
            target = states[low] + (token - int(token)) * (states[high] - states[low])
            if still is not None and token > len(states) - 1:
                target[still] = 0
            if seen is None or self._in_sight(state[dims], target[dims], seen):
                break
        return target

    def _in_sight(self, here: np.ndarray, there: np.ndarray, seen: np.ndarray) -> bool:
        places = here + (there - here) * (np.arange(1, PLACES + 1, dtype=np.float32) / PLACES)[:, None]
        cell = np.floor((places - self.arrays["support.low"]) / self.arrays["support.size"]).astype(np.int64)
        inside = ((cell >= 0) & (cell < seen.shape)).all()
        return bool(inside and seen[tuple(cell.T)].all())

    def _inverse(self, state: np.ndarray, target: np.ndarray) -> np.ndarray:
        part = self.arrays
        here, there = ((s - part["state_mean"]) / part["state_std"] for s in (state, target))
        h = np.concatenate([here, there - here])
        for layer in (0, 2, 4):
            h = part[f"inverse.{layer}.weight"] @ h + part[f"inverse.{layer}.bias"]
            h = h if layer == 4 else h / (1 + np.exp(-h))
        return h * part["action_std"] + part["action_mean"]


def load_exported(folder: str | Path, threads: int | None = None) -> Exported:
    """The planner in a folder that `kdp export` wrote. `threads`: of the runtime; its own choice unless given."""
    folder = Path(folder)
    about = _about(folder)
    require(about["runtime"])
    graph = folder / GRAPHS[about["runtime"]]
    if not graph.is_file():
        raise UserError(f"{folder} is not complete: there is no {graph.name} in it. Export the run again.")
    try:
        with np.load(folder / EXECUTORS) as file:
            arrays = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{folder / EXECUTORS} cannot be read ({error}). Export the run again.") from error
    run = RUNTIMES[about["runtime"]](graph, threads, about["caution"], about.get("ahead", 0))
    planner = Exported(run, about, arrays)
    planner.plan(np.zeros(about["state_dim"]), np.zeros(len(about["goal_dims"])) if about["goal_dims"] else None)
    return planner


def _about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    remedy = f"`kdp export RUN --format onnx --out {folder}` makes one."
    if not path.is_file():
        raise UserError(f"{folder} holds no exported planner: there is no {ABOUT} in it. {remedy}")
    try:
        about = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}). {remedy}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("runtime") not in GRAPHS:
        raise UserError(f"{path} does not describe a planner that this version exports ({FORMAT!r}). {remedy}")
    return about
