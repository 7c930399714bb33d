"""A whole plan in about ten Triton kernels, within one CUDA graph: what a plan of small networks costs on a GPU is
the number of its kernels, not its arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kdp.backends.cuda import Captured
from kdp.backends.mapped import Mapped
from kdp.backends.whole import NoScore, WholePlan, WorthScore
from kdp.networks import Critic, ResidualMLP, StackedLinear, StackedNorm


class Tile(NamedTuple):
    """How a layer is divided among programs."""

    rows: int = 16
    columns: int = 16
    warps: int = 4
    parts: int = 4  # of a product's inner axis, one for each warp; 1: a plain product


TILE = Tile(16, 16, 4, 4)  # the best of five on an H200, by the time of a plan of 64 candidates
WIDE = Tile(32, 32, 4, 4)  # for more rows (candidates of all plans) than FEW
FEW = 256
MANY = 256  # rows; with more the libraries' own products are taken
MAPPED = True  # told and answering in the CPU's memory, see mapped.py
BLOCK: Tile | None = Tile(16, 32, 8, 8)  # of FEW rows and the numbers between a block's layers; None: two kernels
LEAVE = Tile(16, 32, 8, 8)  # of the last layer, where blocks leave pieces to be added up
FOLD = 64  # candidates of a plan, at most, whose votes are counted where they are cast; 0: a kernel of its own
FOLD_WARPS = 8
PRECISION = "tf32x3"  # of products: as good as float32's own, "ieee", on tensor cores; "tf32" has 1e-3
EARLY = False  # programmatic dependent launch, see kernels.py
DEPTH = 256  # of a product's inner axis at once, where no norm needs it whole
NEAR = 64  # inputs of a critic whose first layer is made anew in every program of the second
BEGIN_ROWS, BEGIN_WARPS = 16, 4
VOTE_ROWS, VOTE_WARPS = 4, 4
ANSWER_COLUMNS, ANSWER_WARPS = 64, 4
ANSWER_SOME = 64  # candidates that are blended at once
FINISH = Tile(8, 128)

WIDEST = 512  # a row that a norm is taken of: it must fit into the memory of one processor
STEP = 32  # of the inner axis of first layers at once
LEAST = 16  # in each axis of a product

Function = Callable[..., tuple[Tensor, ...]]
Weights = dict[str, Tensor]
Generate = Callable[[Tensor, Tensor, Tensor], Tensor]
Judge = Callable[[Tensor], "Heard | None"]


class Heard(NamedTuple):
    """Votes (heads,rows) or, with layers, what the last of them is to make votes of (heads,rows,width)."""

    x: Tensor
    layers: tuple[Weights, Weights] | None = None


def fused(whole: WholePlan) -> Captured:
    """A whole plan as a CUDA graph of these kernels, or as the cuda backend has it where they do not cover it."""
    if not covers(whole):
        return Captured(whole)
    if not MAPPED:
        return Captured(whole, answering(whole), "fused")
    return Mapped(whole, answering(whole), deciding(whole), "fused")


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
    plan, size = _plan(whole), whole.tokens * whole.width

    def answer(here: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        count, candidates = noise.shape[:2]
        windows = here.new_empty(count, candidates, whole.tokens, whole.width)
        brief = here.new_empty(count, size + candidates + 1)
        scores, chosen = plan(here.contiguous(), noise.contiguous(), windows, brief)
        return windows, scores, chosen, brief

    return answer


def deciding(whole: WholePlan) -> Callable[[Tensor, Tensor, Tensor, int], None]:
    """A plan that is told, and answers, in the CPU's memory: see mapped.py."""
    plan = _plan(whole)

    def decide(words: Tensor, told: Tensor, answer: Tensor, candidates: int) -> None:
        here, noise, place = begun(whole, words, told, candidates)
        plan(here, noise, place, answer)

    return decide


def begun(whole: WholePlan, words: Tensor, told: Tensor, candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a plan is told, the noise of its seed, and the address of its windows, on the GPU."""
    from kdp.backends import ends

    count, drawn = len(told), whole.method.noise
    here, rows = torch.empty_like(told, device=whole.state_mean.device), count * candidates
    noise, place = here.new_empty(count, candidates, drawn), here.new_empty(1, dtype=torch.int64)
    ends.begin[(_tiles(rows, BEGIN_ROWS),)](
        *(words, told, here, place, noise, rows, candidates),
        **(_how(BEGIN_WARPS) | {"NUMBERS": told.numel(), "NOISE": drawn, "DRAWN": _padded(drawn), "ROWS": BEGIN_ROWS}),
        SOME=128,
    )
    return here, noise, place


def _plan(whole: WholePlan) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """observation, noise, windows to be written (or their address) and the brief -> scores (N,K), chosen (N,)."""
    few, many = (_generator(whole), _judge(whole)), _by_libraries(whole)

    def plan(here: Tensor, noise: Tensor, windows: Tensor, brief: Tensor) -> tuple[Tensor, Tensor]:
        generate, judge = few if noise.shape[:2].numel() <= MANY else many
        return _answer(whole, windows, judge(generate(here, noise, windows)), brief, *noise.shape[:2])

    return plan


def _generator(whole: WholePlan) -> Generate:
    """observation (N,d_s), noise (N,K,Z) -> windows (N*K,L*D), written, and the standardised coordinates that a scorer
    sees."""
    from kdp.backends import kernels

    network: Any = whole.method.generator
    first, last = network.from_condition[1], network.from_condition[3]
    width, drawn, state = first.out_features, network.from_noise.in_features, first.in_features
    near, bias = first.weight.t().contiguous(), last.bias + network.from_noise.bias
    sizes = {"STATE": state, "NOISE": drawn, "WIDTH": width, "DRAWN": _padded(drawn), "STEP": STEP}

    def generate(here: Tensor, noise: Tensor, windows: Tensor) -> Tensor:
        candidates = noise.shape[1]
        rows = noise.shape[0] * candidates
        tile = _tile(rows)
        h = here.new_empty(1, rows, width)
        kernels.enter[_grid(tile, rows, width)](
            *(here, whole.state_mean, whole.state_std, noise, near, first.bias, last.weight),
            *(network.from_noise.weight, bias, h, rows, candidates),
            **(_how(tile.warps) | _shape(tile, width) | sizes),
        )
        return _leave(whole, network.head, _through(network.blocks, h), here, candidates, windows)

    return generate


def _through(blocks: Any, h: Tensor) -> Tensor:
    """(1,rows,width) -> residual blocks of it, in pieces (n,rows,width) that are to be added up."""
    from kdp.backends import kernels

    _, rows, width = h.shape
    for norm, up, _, down in blocks:
        if BLOCK is None or rows > FEW or width > DEPTH:
            inside = _layer(h[0], up.weight, up.bias, (norm.weight, norm.bias))
            h = _layer(inside, down.weight, down.bias, silu=True, onto=h[0])[None]
            continue
        padded = _padded(width)
        tile = BLOCK._replace(columns=min(BLOCK.columns, padded))
        out = h.new_empty(_tiles(width, tile.columns), rows, width)
        kernels.block[_grid(tile, rows, width)](
            *(h, norm.weight, norm.bias, up.weight, up.bias, down.weight, down.bias, out, rows),
            **(_how(tile.warps) | _shape(tile, width) | {"WIDTH": width, "PADDED": padded, "FROM": len(h)}),
        )
        h = out
    return h


def _leave(whole: WholePlan, last: Any, h: Tensor, here: Tensor, candidates: int, windows: Tensor) -> Tensor:
    """Pieces (n,rows,width) of what the last layers see -> windows, written, and what a scorer sees of them."""
    from kdp.backends import kernels

    (norm, head), (pieces, rows, width) = last, h.shape
    tile, outputs = LEAVE if pieces > 1 else _tile(rows), head.out_features
    seen = here.new_empty(rows, _seen(whole))
    kernels.leave[_grid(tile, rows, outputs)](
        *(h, norm.weight, norm.bias, head.weight, head.bias, here, whole.token_mean, whole.token_std),
        *(windows, seen, rows, candidates),
        **(_how(tile.warps) | _shape(tile, width) | _ending(whole, windows) | {"INPUTS": width, "FROM": pieces}),
    )
    return seen


def _ending(whole: WholePlan, windows: Tensor) -> dict[str, Any]:
    """Sizes of the kernels that end windows."""
    sizes = {"OUTPUTS": whole.tokens * whole.width, "STATE": len(whole.state_mean), "TOKEN": whole.width}
    return sizes | {"SEEN": _seen(whole), "PLACED": windows.dtype == torch.int64}


def _by_libraries(whole: WholePlan) -> tuple[Generate, Judge]:
    """The same with PyTorch's products, which are faster for many rows."""
    from kdp.backends import kernels

    network: Any = whole.method.generator

    def generate(here: Tensor, noise: Tensor, windows: Tensor) -> Tensor:
        rows, candidates = noise.shape[:2].numel(), noise.shape[1]
        x = network(noise, ((here - whole.state_mean) / whole.state_std)[:, None])
        seen = here.new_empty(rows, _seen(whole))
        kernels.finish[_grid(FINISH, rows, x.shape[-1])[:2]](
            *(x, here, whole.token_mean, whole.token_std, windows, seen, rows, candidates),
            **(_how(FINISH.warps) | _ending(whole, windows) | {"ROWS": FINISH.rows, "COLUMNS": FINISH.columns}),
        )
        return seen

    def judge(seen: Tensor) -> Heard | None:
        if not isinstance(whole.score, WorthScore):
            return None
        return Heard(whole.score.network.stack(seen.expand(whole.score.heads, -1, -1))[..., 0].contiguous())

    return generate, judge


def _seen(whole: WholePlan) -> int:
    """How many of a window's coordinates, from the first on, its scorer looks at."""
    if not isinstance(whole.score, WorthScore):
        return 0
    return whole.score.told if whole.score.critic else whole.tokens * whole.width


def _judge(whole: WholePlan) -> Judge:
    """What a scorer sees of all candidates (rows,n) -> what it votes by, or None without a scorer."""
    if not isinstance(whole.score, WorthScore):
        return lambda seen: None
    layers = _critic(whole.score.network)
    chained = len(layers) > 2 and layers[0]["weight"].shape[2] <= NEAR

    def judge(seen: Tensor) -> Heard:
        first, second, *_ = layers
        if chained:
            h, done = _look(seen, first, second), 2
        else:
            h, done = _layer(seen, first["weight"], first["bias"]), 1
        for before, after in zip(layers[done - 1 :], layers[done:-1], strict=False):
            h = _layer(h, after["weight"], after["bias"], (before["scale"], before["shift"]), silu=True)
        return Heard(h, (layers[-2], layers[-1]))

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
    out, tile = seen.new_empty(heads, rows, width), _tile(rows)
    kernels.look[_grid(tile, rows, width, heads)](
        *(seen, first["near"], first["bias"], first["scale"], first["shift"], second["weight"], second["bias"]),
        *(out, rows),
        **(_how(tile.warps) | _shape(tile, width) | {"INPUTS": inputs, "WIDTH": width, "STEP": STEP}),
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
    tile = _tile(rows)
    shape = _shape(tile, inputs if norm else min(inputs, DEPTH))
    flags = {"NORM": norm is not None, "SILU": silu, "ADD": onto is not None}
    out = x.new_empty(*lead, rows, outputs)
    scale, shift = norm or (bias, bias)
    kernels.layer[_grid(tile, rows, outputs, lead.numel())](
        *(x, scale, shift, weight, bias, out if onto is None else onto, out, rows, rows * inputs * (x.dim() == 3)),
        **(_how(tile.warps) | shape | flags | {"INPUTS": inputs, "OUTPUTS": outputs}),
    )
    return out


def _vote(heard: Heard) -> Heard:
    """The votes, by a kernel of their own."""
    from kdp.backends import ends

    if heard.layers is None:
        return heard
    (heads, rows, width), (before, last) = heard.x.shape, heard.layers
    votes = heard.x.new_empty(heads, rows)
    ends.vote[(_tiles(rows, VOTE_ROWS), heads)](
        *(heard.x, before["scale"], before["shift"], last["weight"], last["bias"], votes, rows),
        **(_how(VOTE_WARPS) | {"WIDTH": width, "PADDED": _padded(width), "ROWS": VOTE_ROWS}),
    )
    return Heard(votes)


def _answer(
    whole: WholePlan, windows: Tensor, heard: Heard | None, brief: Tensor, count: int, candidates: int
) -> tuple[Tensor, Tensor]:
    """windows (N*K,L*D) or their address, and what is said of them -> scores (N,K), chosen (N,); the brief, written."""
    from kdp.backends import ends

    if heard is not None and (candidates > FOLD or heard.x.shape[-1] > DEPTH):
        heard = _vote(heard)
    device, size = whole.state_mean.device, whole.tokens * whole.width
    scores = torch.empty(count, candidates, device=device)
    chosen = torch.empty(count, device=device, dtype=torch.long)
    votes, heads, width, weights = scores, 0, 0, (scores,) * 4
    if heard is not None:
        votes, heads = heard.x, len(heard.x)
    if heard is not None and heard.layers is not None:
        (before, last), width = heard.layers, votes.shape[2]
        weights = (before["scale"], before["shift"], last["weight"], last["bias"])
    every = _padded(candidates)
    sizes = {"SIZE": size, "HEADS": heads, "PADDED": _padded(heads, 1), "WIDTH": width, "DEEP": _padded(width)}
    tastes = {"CAUTION": float(whole.caution), "BLEND": float(whole.blend), "PLACED": windows.dtype == torch.int64}
    tiles = {"COLUMNS": ANSWER_COLUMNS, "ALL": every, "SOME": every if width else ANSWER_SOME}
    ends.answer[(count, _tiles(size, ANSWER_COLUMNS))](
        *(windows, votes, *weights, scores, chosen, brief, count * candidates, candidates),
        **(_how(FOLD_WARPS if width else ANSWER_WARPS) | sizes | tastes | tiles),
    )
    return scores, chosen


def _tile(rows: int) -> Tile:
    return TILE if rows <= FEW else WIDE


def _shape(tile: Tile, depth: int) -> dict[str, Any]:
    """A tile, and how the `depth` that a product has at once is divided: PARTS * PART is that, padded."""
    size = _padded(depth)
    parts = min(tile.parts, size // LEAST)
    return {"ROWS": tile.rows, "COLUMNS": tile.columns, "PARTS": parts, "PART": size // parts, "PRECISION": PRECISION}


def _grid(tile: Tile, rows: int, columns: int, heads: int = 1) -> tuple[int, int, int]:
    return _tiles(rows, tile.rows), _tiles(columns, tile.columns), heads


def _how(warps: int) -> dict[str, Any]:
    """How a kernel is launched."""
    return {"num_warps": warps, "EARLY": EARLY} | ({"launch_pdl": True} if EARLY else {})


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def _padded(size: int, least: int = LEAST) -> int:
    """The next power of two."""
    return max(least, 1 << (size - 1).bit_length() if size else least)
