"""CUDA graphs: many small operations on a GPU, recorded once and then launched together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Recorded:
    """A function of tensors on a GPU as a CUDA graph: a call writes the inputs in place and launches all of it.

    Making one runs the function once, as it stands, and keeps what it returned in `first`: a function that changes
    something (a training step) is not done twice. A call returns the same tensors every time, written anew. Random
    numbers in the function are drawn from `random`, a generator on the GPU that may be seeded between calls.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Tensor | None],
        random: torch.Generator | None = None,
    ):
        device = next(tensor.device for tensor in inputs if tensor is not None)
        # tensors of inference mode could not be written to outside of it
        with torch.inference_mode(False), torch.cuda.device(device):
            self.inputs = [None if tensor is None else tensor.clone() for tensor in inputs]
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # what libraries set up on a first call must not be recorded
                self.first = function(*self.inputs)
            torch.cuda.current_stream().wait_stream(aside)
            self.device, self.graph = device, torch.cuda.CUDAGraph()
            if random is not None:
                self.graph.register_generator_state(random)
            with torch.cuda.graph(self.graph):
                self.output = function(*self.inputs)

    def __call__(self, *inputs: Tensor | None) -> Any:
        for place, tensor in zip(self.inputs, inputs, strict=True):
            if place is not None and tensor is not None:
                place.copy_(tensor)
        self.graph.replay()
        return self.output

    def synchronize(self) -> None:
        """Waits for what was launched last."""
        torch.cuda.current_stream(self.device).synchronize()


class Pace:
    """Keeps a loop from launching far ahead of a GPU: called after every step, it waits for those of a while ago, and
    sleeps meanwhile. A loop that fills the GPU's queue waits too, but awake, and takes a core from what runs beside."""

    def __init__(self, device: str | torch.device, every: int = 32):
        on_gpu = torch.device(device).type == "cuda"
        self.passed = torch.cuda.Event(blocking=True) if on_gpu else None
        self.every, self.steps = every, 0

    def __call__(self) -> None:
        self.steps += 1
        if self.passed is not None and self.steps % self.every == 0:
            self.passed.synchronize()  # at once, the first time
            self.passed.record()
