"""What draws the windows of fused plans: KDP in one call, Diffuser step by step, or the libraries for many rows and for
networks that there are no kernels for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kdp.backends.layers import LEAST, STEP, TILE, Tile, grid, how, layer, padded, shape, through
from kdp.backends.whole import WholePlan, WorthScore
from kdp.networks import ResidualMLP

FINISH = Tile(8, 128)
WIDEST = 512  # a row that a norm is taken of: it must fit into the memory of one processor

Generate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Observation (N,d_s), noise, windows (N,K,L,D) to be written or their address -> what a scorer sees of them."""


def is_plain(method: Any) -> bool:
    """Whether a method is KDP or Diffuser, and told the state alone: neither goals nor wishes."""
    one_call = isinstance(getattr(method, "noise", None), int)  # KDP's; others make something else of their noise
    drawn = hasattr(method, "generator" if one_call else "denoiser")
    return drawn and method.clamp.told == method.clamp.state_dim


def network_of(method: Any) -> ResidualMLP | None:
    """The network of such a method, if there are kernels for it: a residual MLP without bands, not too wide."""
    one_call = isinstance(method.noise, int)
    network: Any = method.generator if one_call else method.denoiser.body
    if not isinstance(network, ResidualMLP):
        return None
    bands: Any = network.from_condition[0] if one_call else method.denoiser.bands
    return None if len(bands.frequencies) or network.from_noise.out_features > WIDEST else network


def noise_shape(whole: WholePlan, count: int, candidates: int) -> tuple[int, ...]:
    """(N,K,Z), or of a method that denoises (steps,N,K,L,D): what its `draw` gives."""
    method: Any = whole.method
    if isinstance(method.noise, int):
        return count, candidates, method.noise
    steps = method.nfe if method.diffusion.sampler == "ddpm" else 1
    return steps, count, candidates, whole.tokens, whole.width


def generator(whole: WholePlan) -> Generate:
    """By kernels, where there are some for the network."""
    if network_of(whole.method) is None:
        return by_libraries(whole)
    return one_call(whole) if isinstance(whole.method.noise, int) else denoising(whole)


def one_call(whole: WholePlan) -> Generate:
    """KDP's."""
    from kdp.backends import kernels

    network: Any = whole.method.generator
    first, last = network.from_condition[1], network.from_condition[3]
    width, drawn = first.out_features, network.from_noise.in_features
    near, bias = first.weight.t().contiguous(), last.bias + network.from_noise.bias
    sizes = {"STATE": len(near), "WIDTH": width, "DRAWN": padded(drawn), "STEP": STEP, "TIMES": 1}
    early = not len(network.trunk)  # the noise enters with the condition
    ends, bounded = bounds(whole)

    def generate(here: Tensor, noise: Tensor, windows: Tensor) -> Tensor:
        rows, candidates = noise.shape[:2].numel(), noise.shape[1]
        entering, of_each = (rows, candidates) if early else (len(here), 1)
        h = here.new_empty(entering, width)
        kernels.enter[grid(TILE, entering, width)](
            *(here, whole.state_mean, whole.state_std, noise, near, first.bias, last.weight),
            *(network.from_noise.weight, bias if early else last.bias, h, entering, of_each),
            **(how(TILE.warps) | shape(width) | sizes | {"NOISE": drawn if early else 0}),
        )
        if not early:
            told = through(network.trunk, h)
            h = layer(noise.flatten(0, 1), network.from_noise.weight, network.from_noise.bias, onto=told)
        h, (norm, head), seen = through(network.blocks, h), network.head, here.new_empty(rows, seen_of(whole))
        kernels.leave[grid(TILE, rows, head.out_features)](
            *(h, norm.weight, norm.bias, head.weight, head.bias, here, whole.token_mean, whole.token_std),
            *(*ends, windows, seen, rows, candidates),
            **(how(TILE.warps) | shape(width) | ending(whole, windows) | {"INPUTS": width, "BOUNDED": bounded}),
        )
        return seen

    return generate


def denoising(whole: WholePlan) -> Generate:
    """Diffuser's: a step is two launches, and two for each residual block. What it is told of the state and the time is
    computed for all steps at once, and the step itself (prediction, clip, clamp, fresh noise) in the network's last
    layer."""
    from kdp.backends import denoise, kernels

    method: Any = whole.method
    network, times, size = method.denoiser.body, method.times[:-1], whole.tokens * whole.width
    first, last, state = network.from_condition[1], network.from_condition[3], len(whole.state_mean)
    width, near = first.out_features, first.weight[:, :state].t().contiguous()
    late = (_told_of_times(method).double() @ first.weight.double().t() + first.bias.double()).float()  # (T,width)
    factors = torch.cat([method.steps, torch.stack([method.signal, method.noise], 1)[times]], 1).tolist()
    enter = {"STATE": state, "NOISE": 0, "WIDTH": width, "DRAWN": LEAST, "STEP": STEP, "TIMES": len(times)}
    ends, bounded = bounds(whole)
    how_denoised = {"EPSILON": method.diffusion.predict == "epsilon", "CLIP": float(method.diffusion.clip)}

    def generate(here: Tensor, noise: Tensor, windows: Tensor) -> Tensor:
        count, candidates = noise.shape[1:3]
        rows = count * candidates
        told = here.new_empty(count, len(times), width)
        kernels.enter[grid(TILE, count * len(times), width)](
            *(here, whole.state_mean, whole.state_std, here, near, late, last.weight),
            *(here, last.bias, told, count * len(times), len(times)),
            **(how(TILE.warps) | shape(width) | enter),
        )
        told = through(network.trunk, told.flatten(0, 1)).view_as(told)
        x = here.new_empty(rows, size)
        begin = noise[0] if method.temperature == 1 else method.temperature * noise[0]
        finish(whole, begin, here, torch.empty_like(x), x)
        for number, scales in enumerate(factors):
            done, noisy = number == len(times) - 1, number + 1 < len(noise)
            h = layer(x, network.from_noise.weight, network.from_noise.bias, onto=told[:, number])
            h, (norm, head) = through(network.blocks, h), network.head
            seen = here.new_empty(rows, seen_of(whole) if done else size)
            sizes = ending(whole, windows) | {"SEEN": seen.shape[1], "INPUTS": width, "BOUNDED": bounded}
            denoise.descend[grid(TILE, rows, size)](
                *(h, norm.weight, norm.bias, head.weight, head.bias, here, whole.token_mean, whole.token_std),
                *(*ends, x, noise[number + 1 if noisy else 0], windows, seen, rows, candidates, *scales),
                **(how(TILE.warps) | shape(width) | sizes | how_denoised | {"NOISY": noisy, "DONE": done}),
            )
            x = seen
        return x

    return generate


def _told_of_times(method: Any) -> Tensor:
    """(T,n) what Diffuser's network is told in each of its steps, of a state of zeros: overheard as it is called."""
    told: list[Tensor] = []
    network, clamp, device = method.denoiser, method.clamp, method.steps.device
    hook = network.body.register_forward_pre_hook(lambda module, given: told.append(given[1].reshape(1, -1)))
    window, state = torch.zeros(1, 1, clamp.tokens, clamp.width), torch.zeros(1, 1, clamp.told)
    with torch.no_grad():
        for time in method.times[:-1]:
            network(window.to(device), torch.full((1, 1), time, device=device), state.to(device))
    hook.remove()
    return torch.cat(told)


def by_libraries(whole: WholePlan) -> Generate:
    """With PyTorch's products."""
    method: Any = whole.method

    def generate(here: Tensor, noise: Tensor, windows: Tensor) -> Tensor:
        condition = whole.condition(here, None)
        if isinstance(method.noise, int):
            x = method.generator(noise, condition.vector()[:, None])
            x = method.clamped.within(x.unflatten(-1, (whole.tokens, whole.width)))
        else:
            x = method.decode(noise, condition)
        seen = here.new_empty(x.shape[:2].numel(), seen_of(whole))
        return finish(whole, x.contiguous(), here, windows, seen)

    return generate


def finish(whole: WholePlan, x: Tensor, here: Tensor, windows: Tensor, seen: Tensor) -> Tensor:
    """Standardised x (N,K,...) -> the windows, written: clamped and in the dataset's units; and `seen`, written: the
    first coordinates of each, clamped."""
    from kdp.backends import kernels

    rows, candidates = x.shape[:2].numel(), x.shape[1]
    sizes = ending(whole, windows) | {"SEEN": seen.shape[1], "ROWS": FINISH.rows, "COLUMNS": FINISH.columns}
    kernels.finish[grid(FINISH, rows, whole.tokens * whole.width)](
        *(x, here, whole.token_mean, whole.token_std, windows, seen, rows, candidates),
        **(how(FINISH.warps) | sizes),
    )
    return seen


def bounds(whole: WholePlan) -> tuple[tuple[Tensor, Tensor], bool]:
    """The ends (D,) that a window's coordinates are kept between, standardised; and whether they are."""
    clamped = whole.method.clamped
    if clamped.low is None:
        return (whole.token_mean, whole.token_std), False  # which no kernel looks at
    return (clamped.low[0], clamped.high[0]), True  # a token's are all tokens'


def ending(whole: WholePlan, windows: Tensor) -> dict[str, Any]:
    """Sizes of the kernels that end windows."""
    sizes = {"OUTPUTS": whole.tokens * whole.width, "STATE": len(whole.state_mean), "TOKEN": whole.width}
    return sizes | {"SEEN": seen_of(whole), "PLACED": windows.dtype == torch.int64}


def seen_of(whole: WholePlan) -> int:
    """How many of a window's coordinates, from the first on, its scorer looks at."""
    if not isinstance(whole.score, WorthScore):
        return 0
    return whole.score.told if whole.score.critic else whole.tokens * whole.width
