"""A whole plan in about a dozen Triton kernels, within one CUDA graph: what a plan of small networks costs on a GPU is
the number of its kernels, not its arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kdp.backends import cuda
from kdp.backends.cuda import Captured
from kdp.backends.whole import NoScore, WholePlan, WorthScore
from kdp.networks import Critic, ResidualMLP, StackedLinear, StackedNorm


class Tile(NamedTuple):
    """How a layer is divided among programs."""

    rows: int = 16
    columns: int = 16
    warps: int = 4
    parts: int = 4  # of a product's inner axis, one for each warp; 1: a plain product


TILE = Tile(16, 16, 4, 4)  # the best of five on an H200, by the time of a plan of 64 candidates
MANY = 256  # rows (candidates of all plans); with more the libraries' own products are faster, and are taken
PRECISION = "tf32x3"  # of products: as good as float32's own, "ieee", on tensor cores; "tf32" has 1e-3
EARLY = False  # programmatic dependent launch, see kernels.py
DEPTH = 256  # of a product's inner axis at once, where no norm needs it whole
NEAR = 64  # inputs of a critic whose first layer is made anew in every program of the second
VOTE_ROWS, VOTE_WARPS = 4, 4
ANSWER_COLUMNS, ANSWER_WARPS = 64, 4
ANSWER_SOME = 64  # candidates that are blended at once

WIDEST = 512  # a row that a norm is taken of: it must fit into the memory of one processor
STEP = 32  # of the inner axis of first layers at once
LEAST = 16  # in each axis of a product

Function = Callable[..., tuple[Tensor, ...]]
Weights = dict[str, Tensor]


def fused(whole: WholePlan) -> Captured:
    """A whole plan as a CUDA graph of these kernels, or as the cuda backend has it where they do not cover it or there
    are many candidates."""
    if not covers(whole):
        return Captured(whole)
    few, many = answering(whole), cuda.answering(whole)

    def plan(here: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        return (few if noise.shape[:2].numel() <= MANY else many)(here, noise)

    return Captured(whole, plan, "fused")


def covers(whole: WholePlan) -> bool:
    """Whether there are kernels for this plan: a residual MLP of one call, told the state alone, and no scorer or a
    learned one."""
    method, score = whole.method, whole.score
    network: Any = getattr(method, "generator", None)
    if not isinstance(network, ResidualMLP) or not isinstance(getattr(method, "noise", None), int):
        return False  # another network, or a method that makes something else of its noise
    plain = not whole.goal_dims and network.from_condition[1].in_features == method.clamp.state_dim  # nor bands, wishes
    widths = [network.from_noise.out_features, network.from_noise.in_features]
    if isinstance(score, WorthScore):
        widths.append(_critic(score.network)[0]["bias"].shape[-1])
    known = isinstance(score, NoScore | WorthScore)
    return plain and known and max(widths) <= WIDEST and whole.state_mean.dtype == torch.float32


def answering(whole: WholePlan) -> Function:
    """cuda.answering, by kernels: observation (N,d_s), noise (N,K,Z) -> candidates, scores, chosen, Plans.brief."""
    generate, judge = _generator(whole), _judge(whole)

    def plan(here: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        count, candidates = noise.shape[:2]
        here, noise = here.contiguous(), noise.contiguous()
        windows, seen = generate(here, noise)
        scores, chosen, brief = _answer(whole, windows, judge(seen), count, candidates)
        return windows.view(count, candidates, whole.tokens, whole.width), scores, chosen, brief

    return plan


def _generator(whole: WholePlan) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """observation (N,d_s), noise (N,K,Z) -> windows (N*K,L*D) and the standardised coordinates that a scorer sees."""
    from kdp.backends import kernels

    network: Any = whole.method.generator
    first, last = network.from_condition[1], network.from_condition[3]
    width, drawn, state = first.out_features, network.from_noise.in_features, first.in_features
    size = whole.tokens * whole.width
    near, bias = first.weight.t().contiguous(), last.bias + network.from_noise.bias
    seen_size = _seen(whole)

    def generate(here: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        candidates = noise.shape[1]
        rows = noise.shape[0] * candidates
        how = _how(TILE.warps) | _shape(width)
        h = here.new_empty(rows, width)
        kernels.enter[_grid(rows, width)](
            *(here, whole.state_mean, whole.state_std, noise, near, first.bias, last.weight),
            *(network.from_noise.weight, bias, h, rows, candidates),
            **(how | {"STATE": state, "NOISE": drawn, "WIDTH": width, "DRAWN": _padded(drawn), "STEP": STEP}),
        )
        for norm, up, _, down in network.blocks:
            inside = _layer(h, up.weight, up.bias, (norm.weight, norm.bias))
            h = _layer(inside, down.weight, down.bias, silu=True, onto=h)
        norm, head = network.head
        windows, seen = here.new_empty(rows, size), here.new_empty(rows, seen_size)
        kernels.leave[_grid(rows, size)](
            *(h, norm.weight, norm.bias, head.weight, head.bias, here, whole.token_mean, whole.token_std),
            *(windows, seen, rows, candidates),
            **(how | {"INPUTS": width, "OUTPUTS": size, "STATE": state, "TOKEN": whole.width, "SEEN": seen_size}),
        )
        return windows, seen

    return generate


def _seen(whole: WholePlan) -> int:
    """How many of a window's coordinates, from the first on, its scorer looks at."""
    if not isinstance(whole.score, WorthScore):
        return 0
    return whole.score.told if whole.score.critic else whole.tokens * whole.width


def _judge(whole: WholePlan) -> Callable[[Tensor], Tensor | None]:
    """What a scorer sees of all candidates (rows,n) -> votes (heads,rows), or None without a scorer."""
    if not isinstance(whole.score, WorthScore):
        return lambda seen: None
    layers = _critic(whole.score.network)
    chained = len(layers) > 2 and layers[0]["weight"].shape[2] <= NEAR

    def judge(seen: Tensor) -> Tensor:
        first, second, *_ = layers
        if chained:
            h, done = _look(seen, first, second), 2
        else:
            h, done = _layer(seen, first["weight"], first["bias"]), 1
        for before, after in zip(layers[done - 1 :], layers[done:-1], strict=False):
            h = _layer(h, after["weight"], after["bias"], (before["scale"], before["shift"]), silu=True)
        return _vote(h, layers[-2], layers[-1])

    return judge


def _critic(network: Critic) -> list[Weights]:
    """Its layers, the weights with outputs first and, where it is small, the first one's as they are too."""
    layers: list[Weights] = []
    for module in network.stack:
        if isinstance(module, StackedLinear):
            weight = module.weight.transpose(1, 2).contiguous()
            layers.append({"near": module.weight, "weight": weight, "bias": module.bias})
        elif isinstance(module, StackedNorm):
            layers[-1] |= {"scale": module.scale, "shift": module.shift}
    return layers


def _look(seen: Tensor, first: Weights, second: Weights) -> Tensor:
    """(rows,n) -> (heads,rows,width): a critic's first two layers."""
    from kdp.backends import kernels

    rows, (heads, inputs, width) = len(seen), first["near"].shape
    out = seen.new_empty(heads, rows, width)
    kernels.look[_grid(rows, width, heads)](
        *(seen, first["near"], first["bias"], first["scale"], first["shift"], second["weight"], second["bias"]),
        *(out, rows),
        **(_how(TILE.warps) | _shape(width) | {"INPUTS": inputs, "WIDTH": width, "STEP": STEP}),
    )
    return out


def _layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: tuple[Tensor, Tensor] | None = None,
    silu: bool = False,
    onto: Tensor | None = None,
) -> Tensor:
    """x (rows,inputs) or (heads,rows,inputs), weight (outputs,inputs) or (heads,outputs,inputs) -> linear(x), of x
    normalised and activated first and added to another tensor then, where that is asked for."""
    from kdp.backends import kernels

    rows, (outputs, inputs) = x.shape[-2], weight.shape[-2:]
    lead = weight.shape[:-2]
    shape = _shape(inputs if norm else min(inputs, DEPTH))
    flags = {"NORM": norm is not None, "SILU": silu, "ADD": onto is not None}
    out = x.new_empty(*lead, rows, outputs)
    scale, shift = norm or (bias, bias)
    kernels.layer[_grid(rows, outputs, lead.numel())](
        *(x, scale, shift, weight, bias, out if onto is None else onto, out, rows, rows * inputs * (x.dim() == 3)),
        **(_how(TILE.warps) | shape | flags | {"INPUTS": inputs, "OUTPUTS": outputs}),
    )
    return out


def _vote(h: Tensor, before: Weights, last: Weights) -> Tensor:
    """(heads,rows,width) -> votes (heads,rows)."""
    from kdp.backends import kernels

    heads, rows, width = h.shape
    votes = h.new_empty(heads, rows)
    kernels.vote[(_tiles(rows, VOTE_ROWS), heads)](
        *(h, before["scale"], before["shift"], last["weight"], last["bias"], votes, rows),
        **(_how(VOTE_WARPS) | {"WIDTH": width, "PADDED": _padded(width), "ROWS": VOTE_ROWS}),
    )
    return votes


def _answer(
    whole: WholePlan, windows: Tensor, votes: Tensor | None, count: int, candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """windows (N*K,L*D), votes (heads,N*K) -> scores (N,K), chosen (N,), Plans.brief."""
    from kdp.backends import kernels

    rows, size = windows.shape
    heads = 0 if votes is None else len(votes)
    scores = windows.new_empty(count, candidates)
    chosen = windows.new_empty(count, dtype=torch.long)
    brief = windows.new_empty(count, size + candidates + 1)
    sizes = {"SIZE": size, "HEADS": heads, "PADDED": _padded(heads, 1), "ALL": _padded(candidates)}
    tastes = {"CAUTION": float(whole.caution), "BLEND": float(whole.blend)}
    tiles = {"COLUMNS": ANSWER_COLUMNS, "SOME": ANSWER_SOME}
    kernels.answer[(count, _tiles(size, ANSWER_COLUMNS))](
        *(windows, windows if votes is None else votes, scores, chosen, brief, rows, candidates),
        **(_how(ANSWER_WARPS) | sizes | tastes | tiles),
    )
    return scores, chosen, brief


def _shape(depth: int) -> dict[str, Any]:
    """A tile, and how the `depth` that a product has at once is divided: PARTS * PART is that, padded."""
    size = _padded(depth)
    parts = min(TILE.parts, size // LEAST)
    return {"ROWS": TILE.rows, "COLUMNS": TILE.columns, "PARTS": parts, "PART": size // parts, "PRECISION": PRECISION}


def _grid(rows: int, columns: int, heads: int = 1) -> tuple[int, int, int]:
    return _tiles(rows, TILE.rows), _tiles(columns, TILE.columns), heads


def _how(warps: int) -> dict[str, Any]:
    """How a kernel is launched."""
    return {"num_warps": warps, "EARLY": EARLY} | ({"launch_pdl": True} if EARLY else {})


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def _padded(size: int, least: int = LEAST) -> int:
    """The next power of two."""
    return max(least, 1 << (size - 1).bit_length() if size else least)
