"""A fused plan that is told, and answers, in the CPU's memory, which the GPU reads and writes by itself: one launch and
no copies, so that the CPU has little to do for a plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from kdp.backends.cuda import GRAPHS, Captured
from kdp.backends.whole import WholePlan
from kdp.graphs import Recorded

POLL = True  # look for the answer until it is there, in place of waiting for an event: some microseconds sooner
PATIENCE = 1e-3  # seconds that it is looked for; then it is waited for
WORDS = 2  # of 64 bits before what is told: the seed, and where the windows are to be written

Deciding = Callable[[Tensor, Tensor, Tensor, int], None]  # words, told (N,n), where the answer goes, K


class _Launch:
    """A recorded plan, and the CPU's memory that it reads and writes."""

    def __init__(self, deciding: Deciding, whole: WholePlan, here: np.ndarray, candidates: int):
        count, size = here.shape
        with torch.inference_mode(False):  # a tensor of inference mode could not be written to outside of it
            memory = pinned(WORDS + -(-here.size // 2), dtype=torch.int64)
            answer = pinned(count, whole.tokens * whole.width + candidates + 1)
            self.windows = whole.state_mean.new_empty(count, candidates, whole.tokens, whole.width)  # of the next plan
        words, told = memory[:WORDS], memory[WORDS:].view(torch.float32)[: here.size].view(count, size)
        words[1] = self.windows.data_ptr()
        told.copy_(torch.from_numpy(here))
        self.recorded = Recorded(lambda device: deciding(words, told, answer, candidates), (whole.state_mean,))
        self.recorded.synchronize()  # what was told first has been read
        self.replay = self.recorded.graph.replay
        self.words, self.told, self.answer = words.numpy().view(np.uint64), told.numpy(), answer.numpy()
        self.numbers = self.answer.reshape(-1)
        self.zeros = np.zeros_like(self.numbers)

    def __call__(self, seed: int, here: np.ndarray) -> tuple[Sequence[Tensor], np.ndarray]:
        """The windows, each plan's own, and the answer. The last plan was waited for: what it was told may be written
        over."""
        windows, words, numbers = self.windows, self.words, self.numbers
        words[0], words[1] = seed & 0xFFFFFFFFFFFFFFFF, windows.data_ptr()
        self.told[:] = here
        numbers.fill(math.nan)
        self.replay()
        self.windows, made = torch.empty_like(windows), windows.unbind()  # while the GPU is busy
        if POLL:
            end = perf_counter() + PATIENCE
            while numbers.dot(self.zeros) != 0:  # nan until all of it is there
                if perf_counter() > end:
                    break
            else:
                return made, self.answer.copy()
        self.recorded.synchronize()
        return made, self.answer.copy()


class Mapped(Captured):
    """cuda.Captured where the noise is given. Where it is drawn, `deciding` is all of a plan."""

    def __init__(self, whole: WholePlan, function: Callable[..., tuple[Tensor, ...]], deciding: Deciding, backend: str):
        super().__init__(whole, function, backend)
        self.deciding: Deciding | None = deciding
        self.launches: dict[tuple[int, int], _Launch] = {}

    def decide(self, candidates: int, seed: int, *told: np.ndarray) -> tuple[Sequence[Tensor], np.ndarray]:
        here = told[0]
        launch = self.launches.get((candidates, len(here))) or self._launch(here, candidates)
        return super().decide(candidates, seed, *told) if launch is None else launch(seed, here)

    @torch.no_grad()
    def _launch(self, here: np.ndarray, candidates: int) -> _Launch | None:
        """Recorded for the first plan of a shape; None where it cannot be, and Captured plans."""
        if self.deciding is None:
            return None
        try:
            launch = _Launch(self.deciding, self.whole, here, candidates)
        except Exception as error:  # whatever a compiler or a driver may say: there is another way
            warnings.warn(f"no plan that is told and answers in the CPU's memory: {error}", stacklevel=3)
            self.deciding = None
            return None
        if len(self.launches) == GRAPHS:
            del self.launches[next(iter(self.launches))]
        self.launches[candidates, len(here)] = launch
        return launch


def pinned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros in memory of the CPU that a GPU can read and write."""
    return torch.zeros(shape, dtype=dtype, pin_memory=True)
