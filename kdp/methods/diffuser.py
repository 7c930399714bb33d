"""Diffuser: windows denoised step by step, with the condition written into them before every step (inpainting).

Times run from T (noise) down to 0 (data), x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps. A step from t to an earlier
time s, by DDPM as by DDIM, is a weighted sum of the predicted x_0, of x_t and of fresh noise: `transition`.

Few steps make samples too much alike. With T = 20 and a perfect denoiser, Gaussian data of standard deviation 1 or 0.5
come out of DDPM 10 or 14 % too narrow (of DDIM 6 or 8 %), narrower data more so; the error goes with 1 / T.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from kdp.errors import UserError
from kdp.graphs import Recorded
from kdp.keys import Clamp, Clamped, Condition
from kdp.methods.bc import squared_error
from kdp.networks import Bands, NetworkConfig, ResidualMLP, UNetBackbone
from kdp.sampler import Batch

TIME = 32  # coordinates of the time embedding
GRAPHS = 4  # shapes of plans whose CUDA graphs are kept

Guide = Callable[[Tensor, Condition], Tensor]  # clamped, standardised windows (B,n,L,D) and their conditions -> (B,n)


@dataclass(frozen=True)
class DiffusionConfig:
    """Noise levels and how to come down them (diffuser)."""

    steps: int = 20
    """T: noise levels in training. With 20, samples spread 6 to 14 % too little even with a perfect denoiser."""
    sampler: Literal["ddpm", "ddim"] = "ddpm"
    """ddpm: with fresh noise in every step. ddim: all the noise at the start."""
    sampling_steps: int | None = None
    """Network calls in a plan, evenly spread over the noise levels. Default: one for each."""
    predict: Literal["x0", "epsilon"] = "x0"
    """What the network predicts: the window, or the noise in it."""
    clip: float = 5.0
    """Predicted windows are kept within this many standard deviations of the data's mean, in every coordinate."""


class Diffuser(nn.Module):
    """`sample` denoises all windows of all conditions together; `loss` is one step of DDPM's regression.

    `weight` (L,D) is zero where clamped. With a guide J, samples follow p(x) exp(J(x)), to first order in J. On a GPU
    the loop over the steps is a CUDA graph from the second plan of a shape on, unless there is a guide.
    """

    samples, positives = 1, 0

    def __init__(self, clamp: Clamp, weight: Tensor, diffusion: DiffusionConfig, network: NetworkConfig):
        super().__init__()
        self.clamp, self.diffusion = clamp, diffusion
        self.clamped = Clamped(clamp)
        self.denoiser = Denoiser(clamp, network)
        self.graphs: dict[tuple, Callable[..., Tensor] | None] = {}  # None: seen once
        abar = cosine_schedule(diffusion.steps)
        count = diffusion.sampling_steps or diffusion.steps
        self.temperature = 1.0
        self.times = [diffusion.steps - diffusion.steps * i // count for i in range(count + 1)]  # T, ..., 0
        steps = [transition(abar[t], abar[s], diffusion.sampler) for t, s in pairwise(self.times)]
        self.weight: Tensor
        self.free: Tensor
        self.signal: Tensor
        self.noise: Tensor
        self.steps: Tensor
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("free", clamp.mask(), persistent=False)
        self.register_buffer("signal", abar.sqrt().float(), persistent=False)  # (T+1,) x_t = signal x_0 + noise eps
        self.register_buffer("noise", (1 - abar).sqrt().float(), persistent=False)
        self.register_buffer("steps", torch.stack(steps).float(), persistent=False)  # (count,3)

    @property
    def nfe(self) -> int:
        return len(self.times) - 1

    def draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """What is random in a step of `count` windows: times (count,1), and noise (count,1,L,D)."""
        t = torch.randint(1, self.diffusion.steps + 1, (count, 1), generator=generator, device=generator.device)
        return t, normal((count, 1, self.clamp.tokens, self.clamp.width), generator, self.steps.device)

    def loss(self, batch: Batch, draws: tuple[Tensor, ...], value: object = None) -> tuple[Tensor, dict[str, Tensor]]:
        x0 = batch.windows[:, None]
        t, eps = (drawn.to(x0.device) for drawn in draws)
        x = self.clamped(self.noised(x0, t, eps), batch.condition)
        prediction = self.denoiser(x, t, batch.condition.vector()[:, None])
        target = x0 if self.diffusion.predict == "x0" else eps
        return squared_error(prediction, target, self.weight, self.clamp.state_dim)

    @torch.no_grad()
    def sample(self, condition: Condition, n: int, generator: torch.Generator, guide: Guide | None = None) -> Tensor:
        """B conditions -> clamped windows (B,n,L,D), standardised; `nfe` network calls."""
        noise = self.draw(len(condition), n, generator)
        return self._denoise(self.temperature * noise[0], noise[1:], condition, self.nfe, guide)

    def cool(self, temperature: float) -> None:
        """From now on noise is this many times as large, at the beginning and in every step."""
        self.temperature *= temperature
        self.steps[:, 2] *= temperature

    def draw(self, count: int, n: int, generator: torch.Generator) -> Tensor:
        """The noise of n windows of each of `count` conditions (steps,count,n,L,D), all of a plan in one draw."""
        return self._noise((count, n, self.clamp.tokens, self.clamp.width), self.nfe, generator)

    def decode(self, noise: Tensor, condition: Condition) -> Tensor:
        """noise (steps,B,n,L,D) -> clamped windows (B,n,L,D), as it stands: without a CUDA graph of its own."""
        known, told = self.clamped.known(condition)[:, None], condition.vector()[:, None]
        return self._descend(self.nfe, self.temperature * noise[0], noise[1:], known, told)

    @torch.no_grad()
    def refine(
        self,
        windows: Tensor,
        condition: Condition,
        generator: torch.Generator,
        steps: int,
        guide: Guide | None = None,
    ) -> Tensor:
        """windows (B,n,L,D), an earlier plan say -> the same made noisy and denoised by the last `steps` calls."""
        if not 0 <= steps <= self.nfe:
            raise UserError(f"a plan is refined in 0 to {self.nfe} steps; got {steps}.")
        noise = self._noise(windows.shape, steps, generator)
        x = self.noised(windows, self.times[-1 - steps], self.temperature * noise[0])
        return self._denoise(x, noise[1:], condition, steps, guide)

    def noised(self, x0: Tensor, t: Tensor | int, eps: Tensor) -> Tensor:
        """x0 (B,n,L,D), t (B,n) or one for all -> x_t."""
        return self.signal[t][..., None, None] * x0 + self.noise[t][..., None, None] * eps

    def _noise(self, shape: tuple[int, ...], steps: int, generator: torch.Generator) -> Tensor:
        """All the noise of a plan in one draw: to begin with and, for ddpm, for every step but the last."""
        count = max(steps, 1) if self.diffusion.sampler == "ddpm" else 1
        return normal((count, *shape), generator, self.steps.device)

    def _denoise(self, x: Tensor, noise: Tensor, condition: Condition, steps: int, guide: Guide | None) -> Tensor:
        """x (B,n,L,D) -> what the last `steps` steps make of it."""
        known = self.clamped.known(condition)[:, None]
        told = condition.vector()[:, None]
        if guide is not None:
            return self._descend(steps, x, noise, known, told, partial(gradient, guide, condition))
        return (self._replay if x.is_cuda else self._descend)(steps, x, noise, known, told)

    def _descend(
        self,
        steps: int,
        x: Tensor,
        noise: Tensor,
        known: Tensor,
        told: Tensor,
        slope: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The loop itself: `known` (B,1,L,D) is written over x before every step and after the last."""
        for i in range(steps):
            x = torch.where(self.free, x, known)
            x0 = self._predict(x, self.times[i - steps - 1], known, told, slope)
            of_x0, of_x, of_noise = self.steps[i - steps]
            x = of_x0 * x0 + of_x * x
            if i < len(noise):
                x = x + of_noise * noise[i]
        return torch.where(self.free, x, known)

    def _predict(self, x: Tensor, t: int, known: Tensor, told: Tensor, slope) -> Tensor:
        """x (B,n,L,D) at time t -> the x_0 it is thought to come from, moved up the guide, clamped, clipped and kept
        within the data's actions."""
        out = self.denoiser(x, torch.full((1, 1), t, device=x.device), told)
        x0 = out if self.diffusion.predict == "x0" else (x - self.noise[t] * out) / self.signal[t]
        if slope is not None:  # 1 - abar_t is the variance of x_0 given x_t where the data are standard normal
            x0 = x0 + self.noise[t].square() * slope(torch.where(self.free, x0, known))
        return torch.where(self.free, self.clamped.within(x0, self.diffusion.clip), known)

    def _replay(self, steps: int, *inputs: Tensor) -> Tensor:
        """`_descend` on a GPU: as it stands for the first plan of a shape, by a CUDA graph from the second on."""
        loop: Callable[..., Tensor] = partial(self._descend, steps)
        key = (steps, inputs[0].shape)
        if key not in self.graphs:
            if len(self.graphs) == GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            self.graphs[key] = None
            return loop(*inputs)
        graph = self.graphs[key]
        if graph is None:
            try:
                with torch.no_grad():
                    graph = Recorded(loop, inputs)
            except RuntimeError as error:
                warnings.warn(
                    f"no CUDA graph of a plan's steps, which are now launched one by one: {error}", stacklevel=2
                )
                graph = loop
            self.graphs[key] = graph
        return graph(*inputs).clone()

    def _apply(self, *arguments, **options):
        self.graphs.clear()  # they hold the addresses of weights that are about to move
        return super()._apply(*arguments, **options)


class Denoiser(nn.Module):
    """x (B,n,L,D), time (B or 1,1), condition (B,1,C) -> (B,n,L,D): the temporal U-Net unless asked otherwise."""

    def __init__(self, clamp: Clamp, network: NetworkConfig):
        super().__init__()
        sizes = network.sizes()
        self.bands = Bands(sizes.bands)
        told = clamp.told * (1 + 2 * sizes.bands) + TIME
        self.body: nn.Module
        self.embed: nn.Module | None = None
        if network.kind == "mlp":
            numbers = clamp.tokens * clamp.width
            self.body = ResidualMLP(numbers, told, numbers, sizes.width, sizes.blocks, trunk=sizes.trunk)
        else:
            size = 4 * sizes.channels
            self.embed = nn.Sequential(nn.Linear(told, size), nn.Mish(), nn.Linear(size, size), nn.Mish())
            self.body = UNetBackbone(clamp.width, clamp.width, size, sizes.channels)

    def forward(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        told = torch.cat([self.bands(condition), time_embedding(time).expand(len(condition), -1, -1)], -1)
        if self.embed is None:
            return self.body(x.flatten(-2), told).view_as(x)
        embedding = self.embed(told)
        if len(told) > 1:  # a single one is enough for all
            embedding = embedding.expand(-1, x.shape[1], -1)
        return self.body(x.flatten(0, 1), embedding.flatten(0, 1)).view_as(x)


def cosine_schedule(steps: int, offset: float = 0.008, largest: float = 0.999) -> Tensor:
    """abar_0 ... abar_T in float64 (Nichol & Dhariwal, 2021): 1 at first, nearly 0 at last."""
    u = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    f = torch.cos((u + offset) / (1 + offset) * math.pi / 2).square()
    beta = (1 - f[1:] / f[:-1]).clamp(max=largest)
    return torch.cat([f.new_ones(1), (1 - beta).cumprod(0)])


def transition(abar_t: Tensor, abar_s: Tensor, sampler: str) -> Tensor:
    """(3,): what a step from t down to s takes of the predicted x_0, of x_t, and of fresh noise."""
    if sampler == "ddim":  # the same eps in x_s as in x_t
        of_x = ((1 - abar_s) / (1 - abar_t)).sqrt()
        return torch.stack([abar_s.sqrt() - of_x * abar_t.sqrt(), of_x, torch.zeros_like(of_x)])
    alpha = abar_t / abar_s  # q(x_s | x_t, x_0), a Gaussian
    of_x0 = abar_s.sqrt() * (1 - alpha) / (1 - abar_t)
    of_x = alpha.sqrt() * (1 - abar_s) / (1 - abar_t)
    return torch.stack([of_x0, of_x, ((1 - alpha) * (1 - abar_s) / (1 - abar_t)).sqrt()])


def time_embedding(time: Tensor) -> Tensor:
    """(...) -> (...,TIME): sines and cosines, from one step a radian to one in ten thousand."""
    rate = torch.exp(torch.linspace(0, -math.log(1e4), TIME // 2, device=time.device))
    angle = time[..., None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1)


def gradient(guide: Guide, condition: Condition, x: Tensor) -> Tensor:
    """dJ/dx, shaped like x, also where gradients are switched off (a planner does)."""
    with torch.inference_mode(False), torch.enable_grad():
        x = x.clone().requires_grad_()
        known = Condition(condition.state.clone(), None if condition.goal is None else condition.goal.clone())
        return torch.autograd.grad(guide(x, known).sum(), x)[0]


def normal(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Standard normal numbers, made on the device: on a GPU by a generator there, which the given one seeds."""
    if generator.device.type != device.type:
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device)
