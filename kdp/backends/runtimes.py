"""onnxruntime and OpenVINO: a graph in a file -> a function of numpy arrays. PyTorch is not needed here."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
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
    they are ranked together: threads that share every product would wait for each other at every one. The thread that
    asks is through with `ahead` of them before a woken one begins."""

    def __init__(self, path: Path, threads: int | None = None, caution: float = 0.0, ahead: int = 0):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has classes of its own for every way to be wrong
            raise _unreadable(path, error) from error
        self.names = [entry.name for entry in self.session.get_inputs()]
        self.threads, self.caution, self.ahead = threads or os.cpu_count() or 1, caution, ahead
        self.helpers = Helpers(self.threads - 1, self.session.run)

    def __call__(self, *told: np.ndarray) -> list[np.ndarray]:
        axis = 2 if told[1].ndim == 5 else 1  # in noise of many steps, the steps come first
        count = told[1].shape[axis]
        parts = min(self.threads, count // FEWEST)
        if parts < 2:
            return self._run(OUTPUTS, told)
        ends, lead = [0, *shares(count, parts, self.ahead)], (slice(None),) * axis
        noises = [told[1][(*lead, slice(*between))] for between in pairwise(ends)]
        first, *others = ((told[0], noise, *told[2:]) for noise in noises)
        waiting = [self.helpers.ask((OUTPUTS[0], VOTES), self._named(some)) for some in others]
        made = [self._run((OUTPUTS[0], VOTES), first), *(answer() for answer in waiting)]
        candidates, votes = np.concatenate([one[0] for one in made], 1), np.concatenate([one[1] for one in made], 2)
        scores = ranked(votes, self.caution)
        return [candidates, scores, scores.argmax(1)]

    def _run(self, outputs: tuple[str, ...], told: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        return self.session.run(outputs, self._named(told))

    def _named(self, told: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
        return dict(zip(self.names, told, strict=True))


def shares(count: int, parts: int, ahead: int) -> list[int]:
    """Where each part of `count` candidates ends. The first begins sooner, by the time of `ahead` of them, and has that
    many more: all are then through at once."""
    first = (count + ahead * (parts - 1)) // parts
    return [first + (count - first) * part // (parts - 1) for part in range(parts)]


class Helpers:
    """Threads that call a function, until this is collected. They are handed work by plain queues: with an executor's
    futures that takes longer, and a plan is short."""

    def __init__(self, count: int, function: Callable[..., Any]):
        self.asked: SimpleQueue[Any] = SimpleQueue()
        work = (self.asked, function)
        threads = [threading.Thread(target=_help, args=work, name="plan", daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        weakref.finalize(self, _dismiss, self.asked, threads)

    def ask(self, *told: Any) -> Callable[[], Any]:
        """-> what waits for the answer, and gives it or raises what was raised."""
        answer: SimpleQueue[Any] = SimpleQueue()
        self.asked.put((told, answer))

        def wait() -> Any:
            made, error = answer.get()
            if error is not None:
                raise error
            return made

        return wait


def _dismiss(asked: SimpleQueue[Any], threads: list[threading.Thread]) -> None:
    """Waits until they have ended: a thread that wakes while Python ends takes the whole process down."""
    for _ in threads:
        asked.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


def _help(asked: SimpleQueue[Any], function: Callable[..., Any]) -> None:
    while (task := asked.get()) is not None:
        told, answer = task
        try:
            answer.put((function(*told), None))
        except Exception as error:
            answer.put((None, error))


def ranked(votes: np.ndarray, caution: float) -> np.ndarray:
    """value.ranked: (heads,N,K) -> (N,K)."""
    scores = votes.mean(0)
    if caution and len(votes) > 1:
        apart = votes - votes.mean(-1, keepdims=True)
        apart -= apart.mean(0)
        scores -= caution / (len(votes) - 1) ** 0.5 * np.sqrt(np.einsum("hnk,hnk->nk", apart, apart))
    return scores


class OpenVino:
    """Compiled anew for every number of candidates: static shapes are the fast ones. That takes a moment."""

    def __init__(self, path: Path, threads: int | None = None, caution: float = 0.0, ahead: int = 0):
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


RUNTIMES: dict[str, Callable[[Path, int | None, float, int], Runtime]] = {"onnx": OnnxRuntime, "openvino": OpenVino}
