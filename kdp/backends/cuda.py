"""A whole plan as one CUDA graph: generator, clamp, units, score and choice launched together, from static buffers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kdp.backends.whole import WholePlan
from kdp.graphs import Recorded

GRAPHS = 4  # shapes whose graphs are kept


class _Graph(NamedTuple):
    recorded: Recorded
    flat: Tensor  # the graph's input on the GPU: all that a plan is told, in a row
    staged: Tensor  # the same in the CPU's memory, where the GPU can fetch it by itself
    fetched: torch.cuda.Event  # when it last did


class Captured:
    """The same function of the same tensors. What lies on the CPU is fetched by the GPU in one piece; nothing waits.

    A graph is recorded for the first plan of a shape.
    """

    def __init__(self, whole: WholePlan):
        self.whole = whole
        self.graphs: dict[tuple[torch.Size, ...], _Graph] = {}

    @torch.no_grad()
    def __call__(self, *told: Tensor) -> tuple[Tensor, ...]:
        shapes = tuple(tensor.shape for tensor in told)
        if shapes not in self.graphs:
            if len(self.graphs) == GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            self.graphs[shapes] = self._record(told, shapes)
        graph = self.graphs[shapes]
        _fill(graph, told)
        graph.recorded.graph.replay()
        return tuple(tensor.clone() for tensor in graph.recorded.output)  # the next plan writes them anew

    def _record(self, told: tuple[Tensor, ...], shapes: tuple[torch.Size, ...]) -> _Graph:
        sizes = [shape.numel() for shape in shapes]
        first = torch.cat([tensor.reshape(-1).to(self.whole.state_mean.device) for tensor in told])

        def plan(flat: Tensor) -> tuple[Tensor, ...]:
            parts = flat.split(sizes)
            return self.whole(*(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))

        recorded = Recorded(plan, (first,))
        flat = recorded.inputs[0]
        assert flat is not None
        with torch.inference_mode(False):  # a tensor of inference mode could not be written to outside of it
            staged = torch.empty(first.shape, pin_memory=True)
        return _Graph(recorded, flat, staged, torch.cuda.Event())


def _fill(graph: _Graph, told: tuple[Tensor, ...]) -> None:
    if any(tensor.is_cuda for tensor in told):
        at = 0
        for tensor in told:
            graph.flat[at : at + tensor.numel()].copy_(tensor.reshape(-1), non_blocking=True)
            at += tensor.numel()
        return
    graph.fetched.synchronize()  # of the plan before, long ago: it must not be overwritten earlier
    torch.cat([tensor.reshape(-1) for tensor in told], out=graph.staged)
    graph.flat.copy_(graph.staged, non_blocking=True)
    graph.fetched.record()
