"""A whole plan as one CUDA graph: noise, generator, clamp, units, score and choice launched together, from static
buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kdp.backends.whole import WholePlan
from kdp.graphs import Recorded
from kdp.plan import Plans

GRAPHS = 4  # shapes whose graphs are kept


class _Graph(NamedTuple):
    recorded: Recorded
    flat: Tensor  # the graph's input on the GPU: all that a plan is told, in a row
    staged: Tensor  # the same in the CPU's memory, where the GPU can fetch it by itself
    told: np.ndarray  # that memory, for numpy: a few numbers are written sooner so
    fetched: torch.cuda.Event  # when it last did
    answer: np.ndarray | None  # what must leave the GPU, in such memory
    random: torch.Generator | None  # of the noise, where the graph draws it


class Captured:
    """The same function of the same tensors. What lies on the CPU is fetched by the GPU in one piece; nothing waits.

    A graph is recorded for the first plan of a shape. What it records is `answering` the whole plan, and may come
    compiled or fused, by the backend of that name.
    """

    def __init__(
        self, whole: WholePlan, function: Callable[..., tuple[Tensor, ...]] | None = None, backend: str = "cuda"
    ):
        self.whole, self.function, self.backend = whole, answering(whole) if function is None else function, backend
        self.graphs: dict[tuple[object, ...], _Graph] = {}

    @torch.no_grad()
    def __call__(self, *told: Tensor) -> tuple[Tensor, ...]:
        graph = self._graph(told)
        _fill(graph, told)
        graph.recorded.graph.replay()
        return tuple(tensor.clone() for tensor in graph.recorded.output[:3])  # the next plan writes them anew

    def decide(self, candidates: int, seed: int, *told: np.ndarray) -> tuple[Sequence[Tensor], np.ndarray]:
        """The noise drawn on the GPU from the seed, the rest told -> the candidates (K,L,D) of each plan, there, and
        Plans.brief on the CPU: the one thing that is waited for. Numpy, as a GPU is done sooner than a dozen calls of
        PyTorch."""
        key = (candidates, *(row.shape for row in told))
        graph = self.graphs.get(key) or self._graph(tuple(map(torch.from_numpy, told)), candidates)
        assert graph.random is not None and graph.answer is not None
        graph.random.manual_seed(seed)
        np.concatenate([row.ravel() for row in told], out=graph.told)  # the last plan was waited for
        graph.recorded.graph.replay()  # fetches what is staged, and brings the answer
        graph.fetched.record(torch.cuda.current_stream(graph.flat.device))
        windows = graph.recorded.output[0].clone().unbind()
        graph.fetched.synchronize()
        return windows, graph.answer.copy()

    @torch.no_grad()
    def _graph(self, told: tuple[Tensor, ...], candidates: int | None = None) -> _Graph:
        key = (candidates, *(tensor.shape for tensor in told))
        if key not in self.graphs:
            if len(self.graphs) == GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            self.graphs[key] = self._record(told, candidates)
        return self.graphs[key]

    def _record(self, told: tuple[Tensor, ...], candidates: int | None) -> _Graph:
        """With a number of candidates the graph draws their noise, fetches the rest from the CPU's memory and writes
        the answer there; else it is told the noise, and all is left on the GPU."""
        whole, shapes = self.whole, [tensor.shape for tensor in told]
        first = torch.cat([tensor.reshape(-1).to(whole.state_mean.device) for tensor in told])
        random = answer = None
        with torch.inference_mode(False):  # a tensor of inference mode could not be written to outside of it
            staged = torch.empty(first.shape, pin_memory=True).copy_(first)
            if candidates is not None:
                random = torch.Generator(first.device)
                size = whole.tokens * whole.width + candidates + 1
                answer = torch.empty(len(told[0]), size, pin_memory=True)

        def plan(flat: Tensor) -> tuple[Tensor, ...]:
            if random is not None:
                flat.copy_(staged, non_blocking=True)
            parts = flat.split([shape.numel() for shape in shapes])
            here, *rest = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
            if random is not None and candidates is not None:
                rest.insert(0, whole.method.draw(len(here), candidates, random))
            made = self.function(here, *rest)
            if answer is not None:
                answer.copy_(made[3], non_blocking=True)
            return made

        recorded = Recorded(plan, (first,), random)
        flat = recorded.inputs[0]
        assert flat is not None
        brought = None if answer is None else answer.numpy()
        return _Graph(recorded, flat, staged, staged.numpy(), torch.cuda.Event(), brought, random)


def answering(whole: WholePlan) -> Callable[..., tuple[Tensor, ...]]:
    """A whole plan that returns Plans.brief too."""

    def plan(*told: Tensor) -> tuple[Tensor, ...]:
        candidates, scores, chosen = whole(*told)
        return candidates, scores, chosen, Plans(candidates, scores, chosen, whole.blend).brief

    return plan


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
