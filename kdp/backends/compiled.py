"""A whole plan by torch.compile: one kernel where the eager plan has many. The first plan of a shape takes a while. On
a GPU its kernels are then launched together, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kdp.backends.whole import WholePlan


def compiled(whole: WholePlan) -> Callable[..., tuple[Tensor, ...]]:
    """Compiled anew for every number of plans and candidates: static shapes are the fast ones."""
    if whole.state_mean.is_cuda:
        from kdp.backends.cuda import Captured, answering

        return Captured(whole, torch.compile(answering(whole), dynamic=False), "compiled")
    run = torch.compile(whole, dynamic=False)

    def plan(*told: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run(*(tensor.to(whole.state_mean.device) for tensor in told))

    return plan
