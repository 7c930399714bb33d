"""The layers of fused plans: how each is divided among a GPU's programs, and its launch."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Tile(NamedTuple):
    """How a layer is divided among programs."""

    rows: int = 16
    columns: int = 16
    warps: int = 4
    parts: int = 4  # of a product's inner axis, one for each warp; 1: a plain product


TILE = Tile(16, 16, 4, 4)  # the best of five on an H200, by the time of a plan of 64 candidates
PRECISION = "tf32x3"  # of products: as good as float32's own, "ieee", on tensor cores; "tf32" has 1e-3
# Programmatic dependent launch, see kernels.py. When a residual block was one kernel it saved 2 us of 116 at K = 64,
# and 9 of 87 at K = 1; with the present ones it has not been timed.
EARLY = False
DEPTH = 256  # of a product's inner axis at once, where no norm needs it whole
STEP = 32  # of the inner axis of first layers at once
LEAST = 16  # in each axis of a product


def layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: tuple[Tensor, Tensor] | None = None,
    silu: bool = False,
    onto: Tensor | None = None,
) -> Tensor:
    """x (rows,inputs) or (heads,rows,inputs), weight (outputs,inputs) or (heads,outputs,inputs) -> linear(x), of x
    normalised and activated first and added to another tensor then, where that is asked for: as many rows, or
    fewer, each for as many of x as there are times fewer."""
    from kdp.backends import kernels

    rows, (outputs, inputs) = x.shape[-2], weight.shape[-2:]
    lead = weight.shape[:-2]
    depth = inputs if norm else min(inputs, DEPTH)
    flags = {"NORM": norm is not None, "SILU": silu, "ADD": onto is not None}
    out = x.new_empty(*lead, rows, outputs)
    scale, shift = norm or (bias, bias)
    added = out if onto is None else onto
    kernels.layer[grid(TILE, rows, outputs, lead.numel())](
        *(x, scale, shift, weight, bias, added, out, rows, rows * inputs * (x.dim() == 3)),
        *(rows // added.shape[-2], added.stride(-2)),
        **(how(TILE.warps) | shape(depth) | flags | {"INPUTS": inputs, "OUTPUTS": outputs}),
    )
    return out


def through(blocks: Any, h: Tensor) -> Tensor:
    """(rows,width) -> residual blocks of it."""
    for norm, up, _, down in blocks:
        inside = layer(h, up.weight, up.bias, (norm.weight, norm.bias))
        h = layer(inside, down.weight, down.bias, silu=True, onto=h)
    return h


def shape(depth: int) -> dict[str, Any]:
    """TILE, and how the `depth` that a product has at once is divided: PARTS * PART is that, padded."""
    size = padded(depth)
    parts = min(TILE.parts, size // LEAST)
    return {"ROWS": TILE.rows, "COLUMNS": TILE.columns, "PARTS": parts, "PART": size // parts, "PRECISION": PRECISION}


def grid(tile: Tile, rows: int, columns: int, heads: int = 1) -> tuple[int, int, int]:
    return tiles(rows, tile.rows), tiles(columns, tile.columns), heads


def how(warps: int) -> dict[str, Any]:
    """How a kernel is launched."""
    return {"num_warps": warps, "EARLY": EARLY} | ({"launch_pdl": True} if EARLY else {})


def tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def padded(size: int, least: int = LEAST) -> int:
    """The next power of two."""
    return max(least, 1 << (size - 1).bit_length() if size else least)
