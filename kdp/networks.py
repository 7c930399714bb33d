"""Networks, as plain modules: two generators (residual MLP, temporal U-Net) and the critics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdp.errors import UserError


class Sizes(NamedTuple):
    """A network's sizes, all of them known."""

    width: int = 256
    blocks: int = 3
    channels: int = 32
    noise: int = 16
    bands: int = 0
    trunk: int = 0


@dataclass(frozen=True)
class NetworkConfig:
    """The generator, or the denoiser. Default of each size: the domain's own."""

    kind: Literal["mlp", "unet"] | None = None
    """mlp: residual MLP, fast. unet: temporal U-Net. Default: the method's own, unet for diffuser, else mlp."""
    width: int | None = None
    """Width of the residual stream (mlp)."""
    blocks: int | None = None
    """Residual blocks of noise and condition together (mlp)."""
    channels: int | None = None
    """Channels of the first level, a multiple of 4 (unet)."""
    noise: int | None = None
    """Coordinates of the noise z (kdp)."""
    bands: int | None = None
    """Sines and cosines of each coordinate of the condition, at this many frequencies, each twice the last: plans may
    then change sharply with the condition, as they do at a wall. 0: none."""
    trunk: int | None = None
    """Residual blocks of the condition alone, before the noise enters (mlp): computed once for all plans. 0: none."""

    def sizes(self, default: Sizes | None = None) -> Sizes:
        """What was chosen, and the default for the rest."""
        chosen = {name: getattr(self, name) for name in Sizes._fields if getattr(self, name) is not None}
        return (default or Sizes())._replace(**chosen)


class Bands(nn.Module):
    """x (...,C) -> (...,C*(1+2*count)): x, and its sines and cosines at frequencies 1, 2, 4, ..."""

    def __init__(self, count: int):
        super().__init__()
        self.frequencies: Tensor
        self.register_buffer("frequencies", 2.0 ** torch.arange(count), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not len(self.frequencies):
            return x
        angle = (x[..., None] * self.frequencies).flatten(-2)
        return torch.cat([x, angle.sin(), angle.cos()], -1)


class ResidualMLP(nn.Module):
    """noise (...,Z), condition (...,C) -> (..., out): one wide residual stream.

    The two inputs enter through layers of their own, and the condition's passes `trunk` blocks before the noise is
    added, so that its part can be computed once for all candidates of a plan: noise (B,K,Z) and condition (B,1,C)
    broadcast.
    """

    def __init__(
        self, noise: int, condition: int, out: int, width: int = 256, blocks: int = 3, bands: int = 0, trunk: int = 0
    ):
        super().__init__()
        self.from_noise = nn.Linear(noise, width)
        told = condition * (1 + 2 * bands)
        self.from_condition = nn.Sequential(Bands(bands), nn.Linear(told, width), nn.SiLU(), nn.Linear(width, width))
        self.trunk, self.blocks = (
            nn.ModuleList(
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
                for _ in range(count)
            )
            for count in (trunk, blocks)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out))

    def forward(self, noise: Tensor, condition: Tensor) -> Tensor:
        h = self.from_noise(noise) + residual(self.trunk, self.from_condition(condition))
        lead = h.shape[:-1]
        h = residual(self.blocks, h.reshape(-1, h.shape[-1]))  # runtimes are at their best with plain matrices
        return self.head(h).reshape(*lead, -1)


def residual(blocks: Iterable[nn.Module], h: Tensor) -> Tensor:
    """h (...,width) through blocks, each of which adds to it."""
    for block in blocks:
        h = h + block(h)
    return h


class _ConvBlock(nn.Module):
    """x (N,I,T), embedding (N or 1,E) -> (N,O,T): two convolutions, the embedding added between, and a bypass."""

    def __init__(self, inputs: int, outputs: int, embedding: int):
        super().__init__()
        groups = math.gcd(8, outputs // 4)  # four channels or more in each: a lone token can be normalised
        self.before = nn.Sequential(nn.Conv1d(inputs, outputs, 5, padding=2), nn.GroupNorm(groups, outputs), nn.Mish())
        self.shift = nn.Linear(embedding, outputs)
        self.after = nn.Sequential(nn.Conv1d(outputs, outputs, 5, padding=2), nn.GroupNorm(groups, outputs), nn.Mish())
        self.around = nn.Identity() if inputs == outputs else nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.around(x) + self.after(self.before(x) + self.shift(embedding)[..., None])


class UNetBackbone(nn.Module):
    """x (N,L,I), embedding (N,E), or (1,E) for all -> (N,L,O): Diffuser's temporal U-Net, for any number of tokens L.

    Each level has half the tokens of the one above. Inside, a sequence is lengthened to a multiple of
    2**(levels-1) by repeating its last token, as windows do at the end of an episode.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        embedding: int,
        channels: int = 32,
        multipliers: tuple[int, ...] = (1, 2, 4),
    ):
        super().__init__()
        if channels < 4 or channels % 4:
            raise UserError(f"channels must be a multiple of 4; got {channels=}. Try {max(channels // 4, 1) * 4}.")
        sizes = [channels * multiplier for multiplier in multipliers]
        self.multiple = 2 ** (len(sizes) - 1)
        pairs = list(zip(sizes[:-1], sizes[1:], strict=True))  # (this level, the one below)

        def level(first: int, size: int) -> nn.ModuleList:
            return nn.ModuleList([_ConvBlock(first, size, embedding), _ConvBlock(size, size, embedding)])

        self.enter = level(inputs, sizes[0])
        self.shrink = nn.ModuleList(nn.Conv1d(upper, upper, 3, stride=2, padding=1) for upper, _ in pairs)
        self.down = nn.ModuleList(level(upper, lower) for upper, lower in pairs)
        self.middle = level(sizes[-1], sizes[-1])
        self.grow = nn.ModuleList(
            nn.ConvTranspose1d(lower, upper, 4, stride=2, padding=1) for upper, lower in reversed(pairs)
        )
        self.up = nn.ModuleList(level(2 * upper, upper) for upper, _ in reversed(pairs))
        self.head = nn.Conv1d(sizes[0], outputs, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        tokens = x.shape[1]
        missing = -tokens % self.multiple
        h = torch.cat([x, x[:, -1:].expand(-1, missing, -1)], 1).transpose(1, 2)
        h = _through(self.enter, h, embedding)
        skips = []
        for shrink, blocks in zip(self.shrink, self.down, strict=True):
            skips.append(h)
            h = _through(blocks, shrink(h), embedding)
        h = _through(self.middle, h, embedding)
        for grow, blocks in zip(self.grow, self.up, strict=True):
            h = _through(blocks, torch.cat([grow(h), skips.pop()], 1), embedding)
        return self.head(h)[..., :tokens].transpose(1, 2)


def _through(blocks: nn.Module, h: Tensor, embedding: Tensor) -> Tensor:
    for block in blocks.children():
        h = block(h, embedding)
    return h


class TemporalUNet(nn.Module):
    """noise (...,Z), condition (...,C) -> (..., tokens*width): the U-Net as a generator, like ResidualMLP.

    The noise becomes the sequence that enters the U-Net, through one linear map; the condition, embedded once
    for all candidates of a plan, is added in every block: noise (B,K,Z) and condition (B,1,C) broadcast.
    """

    def __init__(
        self,
        noise: int,
        condition: int,
        tokens: int,
        width: int,
        channels: int = 32,
        multipliers: tuple[int, ...] = (1, 2, 4),
        bands: int = 0,
    ):
        super().__init__()
        embedding = 4 * channels
        self.shape = (tokens, channels)
        self.from_noise = nn.Linear(noise, tokens * channels)
        self.from_condition = nn.Sequential(
            Bands(bands),
            nn.Linear(condition * (1 + 2 * bands), embedding),
            nn.Mish(),
            nn.Linear(embedding, embedding),
            nn.Mish(),
        )
        self.unet = UNetBackbone(channels, width, embedding, channels, multipliers)

    def forward(self, noise: Tensor, condition: Tensor) -> Tensor:
        lead = torch.broadcast_shapes(noise.shape[:-1], condition.shape[:-1])
        sequence = self.from_noise(noise).expand(*lead, -1).reshape(-1, *self.shape)
        embedding = self.from_condition(condition)
        if embedding.shape[:-1].numel() > 1:  # a single one is enough for all
            embedding = embedding.expand(*lead, -1)
        return self.unet(sequence, embedding.reshape(-1, embedding.shape[-1])).reshape(*lead, -1)


class StackedLinear(nn.Module):
    """(heads,N,inputs) -> (heads,N,outputs): one linear layer per head, each initialised as nn.Linear is."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(heads, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, 1, outputs).uniform_(-bound, bound))

    def forward(self, h: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, h, self.weight)


class StackedNorm(nn.Module):
    """(heads,N,width) -> (heads,N,width): LayerNorm with a scale and shift per head."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.width = width
        self.scale = nn.Parameter(torch.ones(heads, 1, width))
        self.shift = nn.Parameter(torch.zeros(heads, 1, width))

    def forward(self, h: Tensor) -> Tensor:
        return functional.layer_norm(h, (self.width,)) * self.scale + self.shift


class Critic(nn.Module):
    """x (..., inputs) -> (heads, ...): one value network per head, computed together; `layers` are hidden."""

    def __init__(self, inputs: int, width: int = 256, layers: int = 3, heads: int = 2):
        super().__init__()
        self.heads = heads
        modules: list[nn.Module] = []
        for size in [inputs] + [width] * (layers - 1):
            modules += [StackedLinear(heads, size, width), StackedNorm(heads, width), nn.SiLU()]
        self.stack = nn.Sequential(*modules, StackedLinear(heads, width, 1))

    @torch.no_grad()
    def ignore(self, inputs: Tensor) -> None:
        """Inputs (inputs,), true where they are to be zero in training, count nothing: then nor do they ever after."""
        first: Any = self.stack[0]
        first.weight[:, inputs] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.apart(x.expand(self.heads, *x.shape))

    def apart(self, x: Tensor) -> Tensor:
        """x (heads,...,inputs), one for each -> (heads,...)."""
        return self.stack(x.reshape(self.heads, -1, x.shape[-1])).reshape(x.shape[:-1])


def build_generator(config: NetworkConfig, inputs: int, condition: int, tokens: int, width: int) -> nn.Module:
    """A network (...,inputs), (...,condition) -> (..., tokens * width), as configured: an MLP unless it says unet."""
    size = config.sizes()
    if config.kind == "unet":
        return TemporalUNet(inputs, condition, tokens, width, size.channels, bands=size.bands)
    return ResidualMLP(inputs, condition, tokens * width, size.width, size.blocks, size.bands, size.trunk)
