"""Ways to compute a plan, by name. Each makes of a whole plan (whole.py) a function of the same tensors."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from kdp.errors import UserError, did_you_mean

Format = Literal["onnx", "openvino"]  # of exported planners

# what each needs beyond PyTorch, and the extra of this package that brings it
NEEDS: dict[str, tuple[str, str] | None] = {
    "eager": None,
    "compiled": None,
    "cuda": None,
    "fused": ("triton", "fused"),
    "onnx": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
}
BEST = {
    "cpu": ("onnx", "openvino", "eager"),
    "cuda": ("fused", "cuda"),
}  # for plans in one call, the best first: docs/deploy.md
ON_GPU = ("cuda", "fused")  # CUDA graphs, of one environment's plans


def choose(name: str | None, device: str, calls: int = 1) -> str:
    """The backend that was asked for, if it can be had, or the best of those that are installed.

    A plan of many network calls is a graph that takes longer to make than most programs plan: it is to be asked for.
    """
    if name is None:
        return next(one for one in BEST.get(device, ("eager",)) if _installed(one)) if calls == 1 else "eager"
    if name not in NEEDS:
        raise UserError(f"{name!r} is not a backend. {did_you_mean(name, NEEDS)}")
    if name in ON_GPU and device != "cuda":
        raise UserError(
            f"the {name} backend plans on a GPU; got device {device!r}. Give device='cuda', or leave it out."
        )
    if name in ("onnx", "openvino") and device != "cpu":
        raise UserError(f"the {name} backend plans on a CPU; got device {device!r}. Leave the backend out.")
    require(name)
    return name


def require(name: str) -> None:
    """A sentence unless what the backend needs is installed."""
    need = NEEDS[name]
    if need is not None and not _installed(name):
        raise UserError(
            f"the {name} backend needs the package {need[0]}, which is not installed. "
            f"`pip install 'kdp[{need[1]}]'` brings it; or ask for another backend."
        )


def make(name: str, whole: Any) -> Any:
    """A whole plan -> a function of the same tensors, computed by the backend `name`."""
    if name == "compiled":
        from kdp.backends.compiled import compiled

        return compiled(whole)
    if name == "cuda":
        from kdp.backends.cuda import Captured

        return Captured(whole)
    if name == "fused":
        from kdp.backends.fused import fused

        return fused(whole)
    if name == "onnx":
        from kdp.backends.onnx import by_onnxruntime

        return by_onnxruntime(whole)
    if name == "openvino":
        from kdp.backends.openvino import by_openvino

        return by_openvino(whole)
    return whole


def _installed(name: str) -> bool:
    need = NEEDS[name]
    return need is None or importlib.util.find_spec(need[0]) is not None
