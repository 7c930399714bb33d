"""Nearest windows in key space: faiss on a CPU, exact and blockwise on a GPU (or where faiss is absent)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

EXACT_BELOW = 20_000  # fewer keys than this are searched one by one: an index would not pay
PROBES = 24  # cells of the inverted file that are looked into; recall against brute force is tested


class Neighbours:
    """An index over keys (N,d_k)."""

    def __init__(self, keys: Tensor):
        self.keys = keys
        self.index = None if keys.is_cuda else _faiss_index(keys)

    def search(self, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """queries (B,d_k) -> distances (B,count), nearest first, and indices (B,count)."""
        count = min(count, len(self.keys))
        if self.index is None:
            return _exact(queries, self.keys, count)
        squared, index = self.index.search(queries.numpy(), count)
        distance = torch.from_numpy(squared).clamp_min(0).sqrt()
        found = torch.from_numpy(index)
        # Fewer than `count` keys in the probed cells: the nearest one stands in for what was not found.
        missing = found < 0
        return torch.where(missing, distance[:, :1], distance), torch.where(missing, found[:, :1], found)


def nearest(keys: Tensor, count: int, block: int = 4096) -> tuple[Tensor, Tensor]:
    """keys (N,d_k) -> for each its distances (N,count) to the nearest of them all, itself first, and their indices."""
    index = Neighbours(keys)
    found = [index.search(queries, count) for queries in keys.split(block)]
    distance, near = zip(*found, strict=True)
    return torch.cat(distance), torch.cat(near)


def _exact(queries: Tensor, keys: Tensor, count: int, block: int = 1 << 18) -> tuple[Tensor, Tensor]:
    best_d = queries.new_empty(len(queries), 0)
    best_i = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
    for lo in range(0, len(keys), block):
        some = keys[lo : lo + block]
        with _full_precision():
            d = torch.addmm(some.square().sum(1), queries, some.T, alpha=-2)  # squared, less what a row has in common
        d, i = smallest(d, min(count, len(some)))
        best_d, best_i = torch.cat([best_d, d], 1), torch.cat([best_i, i + lo], 1)
        best_d, order = best_d.topk(min(count, best_d.shape[1]), largest=False)
        best_i = best_i.gather(1, order)
    distance = (queries[:, None] - keys[best_i]).norm(dim=2)  # anew: by products, small ones are lost
    distance, order = distance.sort(1)
    return distance, best_i.gather(1, order)


def smallest(numbers: Tensor, count: int, group: int = 64) -> tuple[Tensor, Tensor]:
    """numbers (B,N) -> the `count` smallest of each row (B,count), and where they are. They lie in the `count` groups
    whose own smallest is least, which is quicker to find than to sort the whole row."""
    groups = numbers.shape[1] // group
    if groups <= 2 * count:
        return numbers.topk(count, largest=False)
    grouped, rest = numbers[:, : groups * group].unflatten(1, (groups, group)), numbers[:, groups * group :]
    chosen = grouped.amin(2).topk(count, largest=False).indices[..., None]  # (B,count,1)
    index = (chosen * group + torch.arange(group, device=numbers.device)).flatten(1)
    last = torch.arange(groups * group, numbers.shape[1], device=numbers.device).expand(len(numbers), -1)
    found, i = torch.cat([grouped.gather(1, chosen.expand(-1, -1, group)).flatten(1), rest], 1).topk(
        count, largest=False
    )
    return found, torch.cat([index, last], 1).gather(1, i)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Products are not rounded to TF32: what is left of near keys' distances would be rounding."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _faiss_index(keys: Tensor) -> Any:  # faiss.Index, or None where faiss is absent
    try:
        import faiss
    except ImportError:
        return None
    keys_np = keys.contiguous().numpy()
    index: Any = faiss.IndexFlatL2(keys.shape[1])
    if len(keys) >= EXACT_BELOW:
        cells = int(len(keys) ** 0.5)
        index = faiss.IndexIVFFlat(index, keys.shape[1], cells)
        index.cp.max_points_per_centroid, index.cp.niter, index.cp.seed = 48, 6, 0
        index.train(keys_np)
        index.nprobe = PROBES
    index.add(keys_np)
    return index
