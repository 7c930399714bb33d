"""A whole plan by OpenVINO, from the same ONNX graph."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from kdp.backends.onnx import Through, write_onnx
from kdp.backends.runtimes import OpenVino
from kdp.backends.whole import WholePlan


def by_openvino(whole: WholePlan) -> Through:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.onnx"
        write_onnx(whole, path)
        return Through(OpenVino(path, torch.get_num_threads()))
