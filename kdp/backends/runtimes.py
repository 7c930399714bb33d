"""onnxruntime and OpenVINO: a graph in a file -> a function of numpy arrays. PyTorch is not needed here."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kdp.errors import UserError

INPUTS, OUTPUTS, VOTES = ("observation", "noise", "goal"), ("candidates", "scores", "chosen"), "votes"
FEWEST = 32  # candidates that are worth a thread of their own: handing work over costs 0.1 ms, on shared cores far more


class Runtime(Protocol):
    """observation (1,d_s), noise, goal (1,d_g) where there are goals -> candidates, scores, chosen of one plan."""

    def __call__(self, *told: np.ndarray) -> list[np.ndarray]: ...


class OnnxRuntime:
    """Any number of candidates, without being told before. Each thread computes some of them from beginning to end, and
    they are ranked together: threads that share every product would wait for each other at every one."""

    def __init__(self, path: Path, threads: int | None = None, caution: float = 0.0):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has classes of its own for every way to be wrong
            raise _unreadable(path, error) from error
        self.names = [entry.name for entry in self.session.get_inputs()]
        self.threads, self.caution = threads or os.cpu_count() or 1, caution
        self.pool = ThreadPoolExecutor(self.threads - 1, "plan") if self.threads > 1 else None

    def __call__(self, *told: np.ndarray) -> list[np.ndarray]:
        if self.pool is None:
            return self._run(OUTPUTS, told)
        axis = 2 if told[1].ndim == 5 else 1  # in noise of many steps, the steps come first
        parts = min(self.threads, told[1].shape[axis] // FEWEST)
        if parts < 2:
            return self._run(OUTPUTS, told)
        first, *others = ((told[0], some, *told[2:]) for some in np.array_split(told[1], parts, axis))
        waiting = [self.pool.submit(self._run, (OUTPUTS[0], VOTES), some) for some in others]
        made = [self._run((OUTPUTS[0], VOTES), first), *(one.result() for one in waiting)]
        candidates, votes = np.concatenate([one[0] for one in made], 1), np.concatenate([one[1] for one in made], 2)
        scores = ranked(votes, self.caution)
        return [candidates, scores, scores.argmax(1)]

    def _run(self, outputs: tuple[str, ...], told: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        return self.session.run(outputs, dict(zip(self.names, told, strict=True)))


def ranked(votes: np.ndarray, caution: float) -> np.ndarray:
    """value.ranked: (heads,N,K) -> (N,K)."""
    scores = votes.mean(0)
    if caution and len(votes) > 1:
        scores -= caution * (votes - votes.mean(-1, keepdims=True)).std(0, ddof=1)
    return scores


class OpenVino:
    """Compiled anew for every number of candidates: static shapes are the fast ones. That takes a moment."""

    def __init__(self, path: Path, threads: int | None = None, caution: float = 0.0):
        import openvino

        self.core = openvino.Core()
        try:
            self.model = self.core.read_model(path)
        except RuntimeError as error:
            raise _unreadable(path, error) from error
        self.settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        if threads:
            self.settings["INFERENCE_NUM_THREADS"] = threads
        self.requests: dict[tuple[tuple[int, ...], ...], Any] = {}

    def __call__(self, *told: np.ndarray) -> list[np.ndarray]:
        shapes = tuple(array.shape for array in told)
        request = self.requests.get(shapes)
        if request is None:
            model = self.model.clone()
            model.reshape({entry.any_name: list(shape) for entry, shape in zip(model.inputs, shapes, strict=True)})
            request = self.requests[shapes] = self.core.compile_model(
                model, "CPU", self.settings
            ).create_infer_request()
        made = request.infer(dict(enumerate(told)), share_inputs=True)
        return [made[number] for number in range(len(OUTPUTS))]


def _unreadable(path: Path, error: Exception) -> UserError:
    why = " ".join(str(error).split())[:200]
    return UserError(f"{path} cannot be read as a plan's graph, it may be truncated ({why}). Export the run again.")


RUNTIMES: dict[str, Callable[[Path, int | None, float], Runtime]] = {"onnx": OnnxRuntime, "openvino": OpenVino}
