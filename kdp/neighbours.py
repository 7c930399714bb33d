"""Nearest windows in key space: faiss on a CPU, exact and blockwise on a GPU (or where faiss is absent)."""

from __future__ import annotations

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
        d = torch.cdist(queries, keys[lo : lo + block])
        d, i = d.topk(min(count, d.shape[1]), largest=False)
        best_d, best_i = torch.cat([best_d, d], 1), torch.cat([best_i, i + lo], 1)
        best_d, order = best_d.topk(min(count, best_d.shape[1]), largest=False)
        best_i = best_i.gather(1, order)
    distance = (queries[:, None] - keys[best_i]).norm(dim=2)  # anew: by products, small ones are lost
    distance, order = distance.sort(1)
    return distance, best_i.gather(1, order)


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
