"""Diffuser: windows denoised step by step, with the condition written into them before every step (inpainting).

Times run from T (noise) down to 0 (data), x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps. A step from t to an earlier
time s, by DDPM as by DDIM, is a weighted sum of the predicted x_0, of x_t and of fresh noise: `transition`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from kdp.errors import UserError
from kdp.keys import Clamp, Condition
from kdp.methods.bc import squared_error
from kdp.networks import NetworkConfig, ResidualMLP, UNetBackbone
from kdp.sampler import Batch

TIME = 32  # coordinates of the time embedding


@dataclass(frozen=True)
class DiffusionConfig:
    """Noise levels and how to come down them (diffuser)."""

    steps: int = 20
    """T: noise levels in training."""
    sampler: Literal["ddpm", "ddim"] = "ddpm"
    """ddpm: with fresh noise in every step. ddim: all the noise at the start."""
    sampling_steps: int | None = None
    """Network calls in a plan, evenly spread over the noise levels. Default: one for each."""
    predict: Literal["x0", "epsilon"] = "x0"
    """What the network predicts: the window, or the noise in it."""
    clip: float = 5.0
    """Predicted windows are kept within this many standard deviations of the data's mean, in every coordinate."""
    guidance: float = 1.0
    """How much the guide counts, where one is set."""


class Diffuser(nn.Module):
    """`sample` denoises all windows of all conditions together; `loss` is one step of DDPM's regression.

    `weight` (L,D) is zero where clamped. `guide` may be set to a function J of clamped windows (B,n,L,D) and their
    conditions that gives (B,n) values: samples then follow p(x) exp(guidance * J(x)), to first order in J.
    """

    samples, positives = 1, 0

    def __init__(self, clamp: Clamp, weight: Tensor, diffusion: DiffusionConfig, network: NetworkConfig):
        super().__init__()
        self.clamp, self.diffusion = clamp, diffusion
        self.guide: Callable[[Tensor, Condition], Tensor] | None = None
        self.denoiser = Denoiser(clamp, network)
        abar = cosine_schedule(diffusion.steps)
        count = diffusion.sampling_steps or diffusion.steps
        self.times = [diffusion.steps - diffusion.steps * i // count for i in range(count + 1)]  # T, ..., 0
        steps = [transition(abar[t], abar[s], diffusion.sampler) for t, s in pairwise(self.times)]
        self.weight: Tensor
        self.signal: Tensor
        self.noise: Tensor
        self.steps: Tensor
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("signal", abar.sqrt().float(), persistent=False)  # (T+1,) x_t = signal x_0 + noise eps
        self.register_buffer("noise", (1 - abar).sqrt().float(), persistent=False)
        self.register_buffer("steps", torch.stack(steps).float(), persistent=False)  # (count,3)

    @property
    def nfe(self) -> int:
        return len(self.times) - 1

    def loss(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        x0 = batch.windows[:, None]
        t = torch.randint(1, self.diffusion.steps + 1, (len(x0), 1), generator=generator, device=generator.device)
        eps = normal(x0, generator)
        x = self.clamp(self.noised(x0, t.to(x0.device), eps), batch.condition)
        prediction = self.denoiser(x, t.to(x0.device), batch.condition.vector()[:, None])
        target = x0 if self.diffusion.predict == "x0" else eps
        return squared_error(prediction, target, self.weight, self.clamp.state_dim)

    @torch.no_grad()
    def sample(self, condition: Condition, n: int, generator: torch.Generator) -> Tensor:
        """B conditions -> clamped windows (B,n,L,D), standardised; `nfe` network calls."""
        shape = condition.state.new_empty(len(condition), n, self.clamp.tokens, self.clamp.width)
        return self._denoise(normal(shape, generator), condition, generator, self.nfe)

    @torch.no_grad()
    def refine(self, windows: Tensor, condition: Condition, generator: torch.Generator, steps: int) -> Tensor:
        """windows (B,n,L,D), an earlier plan say -> the same made noisy and denoised by the last `steps` calls."""
        if not 0 <= steps <= self.nfe:
            raise UserError(f"a plan is refined in 0 to {self.nfe} steps; got {steps}.")
        t = torch.tensor(self.times[-1 - steps], device=windows.device)
        return self._denoise(self.noised(windows, t, normal(windows, generator)), condition, generator, steps)

    def _denoise(self, x: Tensor, condition: Condition, generator: torch.Generator, steps: int) -> Tensor:
        for i in range(self.nfe - steps, self.nfe):
            x = self.clamp(x, condition)
            x0 = self.predict(x, self.times[i], condition)
            of_x0, of_x, of_noise = self.steps[i]
            x = of_x0 * x0 + of_x * x
            if self.diffusion.sampler == "ddpm":
                x = x + of_noise * normal(x, generator)
        return self.clamp(x, condition)

    def predict(self, x: Tensor, t: int, condition: Condition) -> Tensor:
        """x (B,n,L,D) at time t -> the x_0 it is thought to come from, moved up the guide, clamped and clipped."""
        out = self.denoiser(x, torch.full((1, 1), t, device=x.device), condition.vector()[:, None])
        x0 = out if self.diffusion.predict == "x0" else (x - self.noise[t] * out) / self.signal[t]
        if self.guide is not None:  # 1 - abar_t is the variance of x_0 given x_t where the data are standard normal
            slope = gradient(self.guide, self.clamp(x0, condition), condition)
            x0 = x0 + self.diffusion.guidance * self.noise[t].square() * slope
        return self.clamp(x0.clamp(-self.diffusion.clip, self.diffusion.clip), condition)

    def noised(self, x0: Tensor, t: Tensor, eps: Tensor) -> Tensor:
        """x0 (B,n,L,D), t (B,n) or () -> x_t."""
        return self.signal[t][..., None, None] * x0 + self.noise[t][..., None, None] * eps


class Denoiser(nn.Module):
    """x (B,n,L,D), time (B or 1,1), condition (B,1,C) -> (B,n,L,D): the temporal U-Net unless asked otherwise."""

    def __init__(self, clamp: Clamp, network: NetworkConfig):
        super().__init__()
        told = clamp.state_dim + len(clamp.goal_dims) + TIME
        self.body: nn.Module
        self.embed: nn.Module | None = None
        if network.kind == "mlp":
            numbers = clamp.tokens * clamp.width
            self.body = ResidualMLP(numbers, told, numbers, network.width, network.blocks)
        else:
            channels = network.channels
            size = 4 * channels
            self.embed = nn.Sequential(nn.Linear(told, size), nn.Mish(), nn.Linear(size, size), nn.Mish())
            self.body = UNetBackbone(clamp.width, clamp.width, size, channels)

    def forward(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        told = torch.cat([condition, time_embedding(time).expand(len(condition), -1, -1)], -1)
        if self.embed is None:
            return self.body(x.flatten(-2), told).view_as(x)
        embedding = self.embed(told).expand(-1, x.shape[1], -1)
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


def gradient(guide: Callable[[Tensor, Condition], Tensor], x: Tensor, condition: Condition) -> Tensor:
    """dJ/dx, shaped like x, also where gradients are switched off (a planner does)."""
    with torch.inference_mode(False), torch.enable_grad():
        x = x.clone().requires_grad_()
        known = Condition(condition.state.clone(), None if condition.goal is None else condition.goal.clone())
        return torch.autograd.grad(guide(x, known).sum(), x)[0]


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers, shaped like `like` and where it is."""
    return torch.randn(like.shape, generator=generator, device=generator.device).to(like)
