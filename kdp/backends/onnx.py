"""A whole plan as an ONNX graph, and by onnxruntime."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from kdp.backends.runtimes import INPUTS, OUTPUTS, VOTES, OnnxRuntime, Runtime
from kdp.backends.whole import WholePlan

OPSET = 17


def write_onnx(whole: WholePlan, path: Path) -> None:
    """The graph of one plan at a time (N = 1); the number of candidates K is left open.

    By PyTorch's tracing exporter: it needs no further package, and names every node after its module.
    """
    told = whole.example(candidates=3)
    graph = _Voted(whole).eval()
    names = INPUTS[: len(told)]
    axis = 2 if told[1].dim() == 5 else 1  # in noise of many steps, the steps come first
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            told,
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(names),
            output_names=[*OUTPUTS, VOTES],
            dynamic_axes={"noise": {axis: "K"}, "candidates": {1: "K"}, "scores": {1: "K"}, "votes": {2: "K"}},
        )


class _Voted(nn.Module):
    """A whole plan and its votes."""

    def __init__(self, whole: WholePlan):
        super().__init__()
        self.whole = whole

    def forward(self, *told: Tensor) -> tuple[Tensor, ...]:
        return self.whole.voted(*told)


class Through:
    """A function of arrays as one of tensors; none are copied. A planner that has arrays may call `runtime` itself."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime

    def __call__(self, *told: Tensor) -> tuple[Tensor, ...]:
        made = self.runtime(*(tensor.contiguous().numpy() for tensor in told))
        return tuple(torch.from_numpy(array) for array in made)


def by_onnxruntime(whole: WholePlan) -> Through:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.onnx"
        write_onnx(whole, path)
        return Through(OnnxRuntime(path, torch.get_num_threads(), whole.caution))
