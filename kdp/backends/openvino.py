"""A whole plan by OpenVINO, from the same ONNX graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kdp.backends.onnx import through, write_onnx
from kdp.backends.runtimes import OpenVino
from kdp.backends.whole import WholePlan


def by_openvino(whole: WholePlan) -> Callable[..., tuple[Tensor, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.onnx"
        write_onnx(whole, path)
        return through(OpenVino(path, torch.get_num_threads()))
