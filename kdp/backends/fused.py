"""A whole plan in few Triton kernels, within one CUDA graph: what a plan of small networks costs on a GPU is the number
of its kernels, not its arithmetic. With a trunk of two residual blocks, one block after it and a critic there are
fourteen; Diffuser has four for each of its steps. Of other networks, and of many candidates, the libraries draw the
windows, and what begins and ends a plan is fused all the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kdp.backends.cuda import Captured
from kdp.backends.generators import WIDEST, by_libraries, generator, is_plain, noise_shape
from kdp.backends.layers import STEP, TILE, Tile, grid, how, layer, padded, shape, tiles
from kdp.backends.mapped import Mapped
from kdp.backends.whole import NoScore, WholePlan, WorthScore
from kdp.networks import Critic, StackedLinear, StackedNorm

MANY = 256  # rows; with more the libraries' own products are taken
NEAR = 64  # inputs of a critic whose first layer is made anew in every program of the second
BEGIN_ROWS, BEGIN_WARPS = 16, 4
DRAW = Tile(16, 64)
VOTE_ROWS, VOTE_WARPS = 4, 4
ANSWER_COLUMNS, ANSWER_WARPS = 64, 4
ANSWER_SOME = 64  # candidates that are blended at once

Function = Callable[..., tuple[Tensor, ...]]
Weights = dict[str, Tensor]
Judge = Callable[[Tensor], Tensor | None]


def fused(whole: WholePlan) -> Captured:
    """A whole plan as a CUDA graph of these kernels, or as the cuda backend has it where they do not cover it."""
    if not covers(whole):
        return Captured(whole)
    return Mapped(whole, answering(whole), deciding(whole), "fused")


def covers(whole: WholePlan) -> bool:
    """Whether there are kernels for this plan: of KDP or Diffuser, told the state alone, and with no scorer or a
    learned one."""
    method, score = whole.method, whole.score
    if not is_plain(method) or not isinstance(score, NoScore | WorthScore):
        return False
    widths = [method.noise] if isinstance(method.noise, int) else []
    if isinstance(score, WorthScore):
        widths.append(_critic(score.network)[0]["bias"].shape[-1])
    return max(widths, default=0) <= WIDEST and whole.state_mean.dtype == torch.float32


def answering(whole: WholePlan) -> Function:
    """cuda.answering, by kernels: observation (N,d_s), noise -> candidates, scores, chosen, Plans.brief."""
    plan, size = _plan(whole), whole.tokens * whole.width

    def answer(here: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        count, candidates = noise.shape[:2] if noise.dim() == 3 else noise.shape[1:3]
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

    rows, here = len(told) * candidates, torch.empty_like(told, device=whole.state_mean.device)
    noise = here.new_empty(noise_shape(whole, len(told), candidates))
    kept, stepwise = here.new_empty(2, dtype=torch.int64), noise.dim() == 5
    drawn = noise[0, 0, 0].numel() if stepwise else noise.shape[2]
    sizes = {"NUMBERS": told.numel(), "SOME": 128, "NOISE": drawn, "DRAWN": padded(drawn), "ROWS": BEGIN_ROWS}
    ends.begin[1 if stepwise else tiles(rows, BEGIN_ROWS),](
        *(words, told, here, kept, noise, rows, candidates),
        **(how(BEGIN_WARPS) | sizes | {"DRAW": not stepwise}),
    )
    if stepwise:
        sizes = {"NOISE": drawn, "ROWS": DRAW.rows, "COLUMNS": DRAW.columns}
        ends.draw[grid(DRAW, rows, drawn, len(noise))](kept, noise, rows, candidates, **(how(DRAW.warps) | sizes))
    return here, noise, kept[1:]


def _plan(whole: WholePlan) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """observation, noise, windows to be written (or their address) and the brief -> scores (N,K), chosen (N,)."""
    few, many = (generator(whole), _judge(whole)), (by_libraries(whole), _judge_by_libraries(whole))

    def plan(here: Tensor, noise: Tensor, windows: Tensor, brief: Tensor) -> tuple[Tensor, Tensor]:
        candidates = brief.shape[1] - whole.tokens * whole.width - 1
        generate, judge = few if len(here) * candidates <= MANY else many
        return _answer(whole, windows, judge(generate(here, noise, windows)), brief, len(here), candidates)

    return plan


def _judge(whole: WholePlan) -> Judge:
    """What a scorer sees of all candidates (rows,n) -> its votes (heads,rows), or None without a scorer."""
    if not isinstance(whole.score, WorthScore):
        return lambda seen: None
    layers = _critic(whole.score.network)
    chained = len(layers) > 2 and layers[0]["weight"].shape[2] <= NEAR

    def judge(seen: Tensor) -> Tensor:
        first, second, *_ = layers
        if chained:
            h, done = _look(seen, first, second), 2
        else:
            h, done = layer(seen, first["weight"], first["bias"]), 1
        for before, after in zip(layers[done - 1 :], layers[done:-1], strict=False):
            h = layer(h, after["weight"], after["bias"], (before["scale"], before["shift"]), silu=True)
        return _vote(h, layers[-2], layers[-1])

    return judge


def _judge_by_libraries(whole: WholePlan) -> Judge:
    """The same with PyTorch's products."""

    def judge(seen: Tensor) -> Tensor | None:
        if not isinstance(whole.score, WorthScore):
            return None
        return whole.score.network.stack(seen.expand(whole.score.heads, -1, -1))[..., 0].contiguous()

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
    kernels.look[grid(TILE, rows, width, heads)](
        *(seen, first["near"], first["bias"], first["scale"], first["shift"], second["weight"], second["bias"]),
        *(out, rows),
        **(how(TILE.warps) | shape(width) | {"INPUTS": inputs, "WIDTH": width, "STEP": STEP}),
    )
    return out


def _vote(x: Tensor, before: Weights, last: Weights) -> Tensor:
    """(heads,rows,width) -> (heads,rows): a critic's last layer."""
    from kdp.backends import ends

    heads, rows, width = x.shape
    votes = x.new_empty(heads, rows)
    ends.vote[(tiles(rows, VOTE_ROWS), heads)](
        *(x, before["scale"], before["shift"], last["weight"], last["bias"], votes, rows),
        **(how(VOTE_WARPS) | {"WIDTH": width, "PADDED": padded(width), "ROWS": VOTE_ROWS}),
    )
    return votes


def _answer(
    whole: WholePlan, windows: Tensor, votes: Tensor | None, brief: Tensor, count: int, candidates: int
) -> tuple[Tensor, Tensor]:
    """windows (N*K,L*D) or their address, and the votes on them -> scores (N,K), chosen (N,); the brief, written."""
    from kdp.backends import ends

    device, size = whole.state_mean.device, whole.tokens * whole.width
    scores = torch.empty(count, candidates, device=device)
    chosen = torch.empty(count, device=device, dtype=torch.long)
    heads = 0 if votes is None else len(votes)
    sizes = {"SIZE": size, "HEADS": heads, "PADDED": padded(heads, 1)}
    tastes = {"CAUTION": float(whole.caution), "BLEND": float(whole.blend), "PLACED": windows.dtype == torch.int64}
    some = {"COLUMNS": ANSWER_COLUMNS, "ALL": padded(candidates), "SOME": ANSWER_SOME}
    ends.answer[(count, tiles(size, ANSWER_COLUMNS))](
        *(windows, scores if votes is None else votes, scores, chosen, brief, count * candidates, candidates),
        **(how(ANSWER_WARPS) | sizes | tastes | some),
    )
    return scores, chosen
