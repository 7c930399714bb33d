"""Keyed Drifting Policies: a generator of whole windows in one call, trained with a drift field (Alg. 1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kdp.drift import EPS, POSITIVES, DriftConfig, ascend, drift_loss, joint_field, keyed_field, rms, window_field
from kdp.keys import Clamp, Clamped, Condition
from kdp.networks import NetworkConfig, build_generator
from kdp.sampler import Batch
from kdp.value import Value

HEAVIEST = 100.0  # times the mean: what one condition may weigh in a step


class KDP(nn.Module):
    """`sample` draws windows in one call; `loss` is one step of Algorithm 1."""

    nfe = 1

    def __init__(self, clamp: Clamp, drift: DriftConfig, network: NetworkConfig):
        super().__init__()
        self.clamp, self.drift, self.noise = clamp, drift, network.sizes().noise
        self.generator = build_generator(network, self.noise, clamp.told, clamp.tokens, clamp.width)
        self.clamped = Clamped(clamp)
        self.weight: Tensor
        self.register_buffer("weight", drift.weight(clamp.mask(), clamp.state_dim), persistent=False)

    @property
    def grouped(self) -> bool:
        """joint draws G samples per condition; the paper's fields draw one, and compare across the batch."""
        return self.drift.field == "joint"

    @property
    def samples(self) -> int:
        return self.drift.samples if self.grouped else 1

    @property
    def positives(self) -> int:
        return (self.drift.positives or POSITIVES) if self.grouped else 0

    def sample(self, condition: Condition, n: int, generator: torch.Generator) -> Tensor:
        """B conditions -> clamped windows (B,n,L,D), standardised."""
        return self.decode(self.draw(len(condition), n, generator).to(condition.state.device), condition)

    def draw(self, count: int, n: int, generator: torch.Generator) -> Tensor:
        """The noise of n windows of each of `count` conditions: z (count,n,Z)."""
        return torch.randn(count, n, self.noise, generator=generator, device=generator.device)

    def decode(self, z: Tensor, condition: Condition) -> Tensor:
        """z (B,n,Z) -> clamped windows (B,n,L,D)."""
        x = self.generator(z, condition.vector()[:, None]).unflatten(-1, (self.clamp.tokens, self.clamp.width))
        return self.clamped(self.clamped.within(x), condition)

    @torch.no_grad()
    def cool(self, temperature: float) -> None:
        """From now on noise counts this much: for planning, once training is over."""
        enter: Any = self.generator.from_noise
        enter.weight *= temperature

    def draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """What is random in a step of `count` conditions: z (count,G,Z)."""
        return (self.draw(count, self.samples, generator),)

    def loss(
        self, batch: Batch, draws: tuple[Tensor, ...], value: Value | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """With a value, the field is tilted by it and goes up it, as far as its settings say."""
        x = self.decode(draws[0].to(batch.windows.device), batch.condition).to(batch.windows)  # Alg. 1, l. 1-2
        x = x if self.grouped else x.squeeze(1)
        weight = self.weight
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):  # a drift is a small difference
            if self.grouped:
                assert batch.positives is not None
                log_weight = self.log_weight(batch)
                if value is not None and value.config.tilt:
                    log_weight, mass = tilted(log_weight, value.advantage(batch.positives), value.config.tilt)
                    weight = weight * mass[:, None, None, None]
                field = joint_field(x, batch.positives, log_weight, self.weight, self.drift)
            elif self.drift.field == "keyed":
                field = keyed_field(x, batch.windows, batch.keys, batch.keys, self.weight > 0, self.drift)
            else:
                field = window_field(x, batch.windows, self.weight > 0, self.drift)
            if value is not None and value.config.ascent:
                field = ascend(field, *value.slope(x), value.config.ascent)
        loss, metrics = drift_loss(x, field, weight)
        if self.samples > 1:
            metrics = metrics | {"sample/spread": spread(x.detach())}
        return loss, metrics

    def log_weight(self, batch: Batch) -> Tensor:
        """(B,P): how much each positive counts, by its key and in goal problems by how soon it arrives."""
        assert batch.key_distance is not None and batch.positives is not None
        weight = -batch.key_distance / self.drift.bandwidth()
        if self.drift.tilt and batch.arrival is not None:
            weight = weight - batch.arrival / self.drift.tilt
        return weight


def tilted(log_weight: Tensor, advantage: Tensor, tilt: float) -> tuple[Tensor, Tensor]:
    """log_weight, advantage (B,P) -> log_weight of positives that count exp(tilt) times as much for every root mean
    square of advantage, and the mass (B,), of mean 1, that each condition's positives have won or lost by it: where a
    state is seen but once there is no better neighbour to prefer, only a better state to learn from."""
    better = log_weight + tilt * advantage / (rms(advantage) + EPS)
    mass = better.logsumexp(1) - log_weight.logsumexp(1)
    return better, (mass.softmax(0) * len(mass)).clamp_max(HEAVIEST)


def spread(x: Tensor) -> Tensor:
    """x (B,G,...) -> () standard deviation among the G, mean over the rest. (torch.std over an inner axis of few took a
    fifth of a training step.)"""
    return ((x - x.mean(1, keepdim=True)).square().sum(1) / (x.shape[1] - 1)).sqrt().mean()
