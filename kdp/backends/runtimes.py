"""onnxruntime and OpenVINO: a graph in a file -> a function of numpy arrays. PyTorch is not needed here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kdp.errors import UserError

INPUTS, OUTPUTS = ("observation", "noise", "goal"), ("candidates", "scores", "chosen")


class Runtime(Protocol):
    """observation (1,d_s), noise, goal (1,d_g) where there are goals -> candidates, scores, chosen of one plan."""

    def __call__(self, *told: np.ndarray) -> list[np.ndarray]: ...


class OnnxRuntime:
    """Any number of candidates, without being told before."""

    def __init__(self, path: Path, threads: int | None = None):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has classes of its own for every way to be wrong
            raise _unreadable(path, error) from error
        self.names = [entry.name for entry in self.session.get_inputs()]

    def __call__(self, *told: np.ndarray) -> list[np.ndarray]:
        return self.session.run(OUTPUTS, dict(zip(self.names, told, strict=True)))


class OpenVino:
    """Compiled anew for every number of candidates: static shapes are the fast ones. That takes a moment."""

    def __init__(self, path: Path, threads: int | None = None):
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


RUNTIMES: dict[str, Callable[[Path, int | None], Runtime]] = {"onnx": OnnxRuntime, "openvino": OpenVino}
