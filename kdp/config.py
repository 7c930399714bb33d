"""Everything that decides the weights of a run, except the data themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kdp.domains import Domain
from kdp.drift import POSITIVES, DriftConfig
from kdp.errors import UserError, did_you_mean
from kdp.methods import METHODS
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.train import Budget, LoopConfig
from kdp.value import ValueConfig

CPU_BATCH = dict.fromkeys(METHODS, 512)
GPU_BATCH = dict.fromkeys(METHODS, 2048) | {"kdp": 4096}  # it draws several windows of each condition


@dataclass(frozen=True)
class RunConfig:
    """What was not chosen is None until `for_domain`."""

    dataset: str
    method: str = "kdp"
    horizon: int | None = None
    stride: int | None = None
    steps: int | None = None
    minutes: float | None = None
    batch: int | None = None
    seed: int = 0
    relabel: bool | None = None
    temperature: float | None = None
    bounded: bool | None = None
    drift: DriftConfig = field(default_factory=DriftConfig)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    value: ValueConfig = field(default_factory=ValueConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunConfig:
        drift = value["drift"] | {"temperatures": tuple(value["drift"]["temperatures"])}
        parts = {
            "drift": DriftConfig(**drift),
            "diffusion": DiffusionConfig(**value["diffusion"]),
            "network": NetworkConfig(**value["network"]),
            "value": ValueConfig(**value["value"]),
            "loop": LoopConfig(**value["loop"]),
        }
        return cls(**(value | parts))

    def for_domain(self, domain: Domain, device: str = "cpu") -> RunConfig:
        """The same with the domain's own, and the device's, where nothing was chosen."""
        bandwidth = self.drift.key_temperature
        drift = replace(
            self.drift,
            key_temperature=domain.key_temperature if bandwidth is None else bandwidth,
            positives=self.drift.positives or domain.positives or POSITIVES,
            tilt=domain.tilt if self.drift.tilt is None else self.drift.tilt,
            lambda_a=domain.lambda_a if self.drift.lambda_a is None else self.drift.lambda_a,
        )
        scorer = self.value.scorer or domain.value
        steps = self.steps or (None if self.minutes else domain.steps)
        decay = domain.weight_decay if self.loop.weight_decay is None else self.loop.weight_decay
        network = NetworkConfig(self.network.kind, **self.network.sizes(domain.network)._asdict())
        usual = round(domain.apart * (steps or domain.steps)) if scorer == "critic" else 0
        apart = usual if self.value.apart is None else self.value.apart
        value = replace(
            self.value,
            scorer=scorer,
            apart=apart if scorer != "none" else 0,
            blend=domain.blend if self.value.blend is None else self.value.blend,
            wish=domain.wish if self.value.wish is None else self.value.wish,
            trace=domain.trace if self.value.trace is None else self.value.trace,
            sees=self.value.sees or domain.sees,
            smooth=domain.smooth if self.value.smooth is None else self.value.smooth,
            favour=domain.favour if self.value.favour is None else self.value.favour,
        )
        return replace(
            self,
            dataset=domain.source or domain.name,
            horizon=self.horizon or domain.horizon,
            stride=self.stride or domain.stride,
            steps=steps,
            batch=self.batch or usual_batch(self.method, network, drift, torch.device(device).type),
            relabel=domain.relabel if self.relabel is None else self.relabel,
            temperature=domain.temperature if self.temperature is None else self.temperature,
            bounded=domain.bounded if self.bounded is None else self.bounded,
            drift=drift,
            value=value,
            network=network,
            loop=replace(self.loop, weight_decay=decay),
        )

    def budgets(self) -> tuple[Budget, Budget]:
        """Of the training and of that of a scorer apart; minutes are shared by the two."""
        if self.minutes is None:
            return Budget(self.steps), Budget(self.value.apart or 0)
        share = self.minutes / 2 if self.value.apart else self.minutes
        return Budget(minutes=share), Budget(minutes=share)

    def check(self) -> None:
        """The rules that no single part can see."""
        if self.method not in METHODS:
            raise UserError(f"{self.method!r} is not a method. {did_you_mean(self.method, METHODS)}")
        if self.steps is not None and self.minutes is not None:
            raise UserError(f"give steps or minutes, not both; got {self.steps=} {self.minutes=}.".replace("self.", ""))
        if self.seed < 0:
            raise UserError(f"seed must be 0 or more; got {self.seed}.")
        numbers = {
            "horizon": self.horizon,
            "stride": self.stride,
            "steps": self.steps,
            "minutes": self.minutes,
            "batch": self.batch,
            "drift.samples": self.drift.samples,
            "drift.positives": self.drift.positives,
            "drift.key-temperature": self.drift.bandwidth(),
            "drift.temperatures": min(self.drift.scale()),
            "diffusion.steps": self.diffusion.steps,
            "diffusion.sampling-steps": self.diffusion.sampling_steps,
            "diffusion.clip": self.diffusion.clip,
            "network.width": self.network.width,
            "network.blocks": self.network.blocks,
            "network.channels": self.network.channels,
            "network.noise": self.network.noise,
            "value.steps": self.value.steps,
            "value.batch": self.value.batch,
            "value.asked": self.value.asked,
            "value.heads": self.value.heads,
            "value.width": self.value.width,
            "value.layers": self.value.layers,
            "value.rate": self.value.rate,
            "loop.lr": self.loop.lr,
            "loop.warmup": self.loop.warmup,
            "loop.log-every": self.loop.log_every,
        }
        for name, number in numbers.items():
            if number is not None and not (number > 0 and math.isfinite(number)):
                raise UserError(f"{name} must be more than zero; got {number}.")
        for name, number in {"discount": self.value.discount, "expectile": self.value.expectile}.items():
            if number is not None and not 0 < number < 1:
                raise UserError(f"value.{name} must be between 0 and 1; got {number}.")
        for name in ("apart", "tilt", "ascent", "caution", "blend", "smooth", "favour"):
            if not ((getattr(self.value, name) or 0.0) >= 0 and math.isfinite(getattr(self.value, name) or 0.0)):
                raise UserError(f"value.{name} must be 0 (off) or more; got {getattr(self.value, name)}.")
        if self.value.trace is not None and not 0 <= self.value.trace <= 1:
            raise UserError(f"value.trace must be 0 to 1 (1: the data's returns as they are); got {self.value.trace}.")
        if not 0 <= (self.value.wish or 0.0) < 1:
            raise UserError(f"value.wish must be 0 (off) or more, and less than 1; got {self.value.wish}.")
        for name, decay in {"loop": self.loop.decay(), "value": self.value.weight_decay}.items():
            if not 0 <= decay < math.inf:
                raise UserError(f"{name}.weight-decay must be 0 (none) or more, and finite; got {decay}.")
        planning_temperature(self.temperature)
        for name in ("bands", "trunk"):
            if (getattr(self.network, name) or 0) < 0:
                raise UserError(f"network.{name} must be 0 (none) or more; got {getattr(self.network, name)}.")
        levels, calls = self.diffusion.steps, self.diffusion.sampling_steps
        if calls is not None and calls > levels:
            raise UserError(
                f"diffusion.sampling-steps must be diffusion.steps or less; got {calls} and {levels}. Try {levels}."
            )


def planning_temperature(asked: float | None, own: float | None = None) -> float:
    """What was asked for, else the run's own, else as in training."""
    temperature = next(t for t in (asked, own, 1.0) if t is not None)
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature must be 0 (no noise) or more; got {temperature}. As in training: 1.")
    return temperature


def usual_batch(method: str, network: NetworkConfig, drift: DriftConfig, kind: str) -> int:
    """Windows in a step, on a kind of device. Where a network has a trunk, several windows of a condition cost little
    more than one, and KDP has as many conditions as regression has windows."""
    sizes = GPU_BATCH if kind == "cuda" else CPU_BATCH
    if method == "kdp" and drift.field == "joint" and network.trunk and network.kind != "unet":
        return drift.samples * sizes["bc"]
    return sizes[method]
