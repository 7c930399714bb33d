"""The methods by name. One file each; adding one is described in docs/adding.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kdp.keys import Clamp
from kdp.methods.bc import BC
from kdp.methods.diffuser import Diffuser
from kdp.methods.kdp import KDP


def _weight(clamp: Clamp, config: Any) -> Tensor:
    return config.drift.weight(clamp.mask(), clamp.state_dim)


# (clamp, the run's settings) -> the method with fresh weights
METHODS: dict[str, Callable[[Clamp, Any], Any]] = {
    "kdp": lambda clamp, config: KDP(clamp, config.drift, config.network),
    "bc": lambda clamp, config: BC(clamp, _weight(clamp, config), config.network),
    "diffuser": lambda clamp, config: Diffuser(clamp, _weight(clamp, config), config.diffusion, config.network),
}
