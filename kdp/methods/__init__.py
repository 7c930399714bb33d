"""The methods by name. One file each; adding one is described in docs/adding.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdp.keys import Clamp
from kdp.methods.kdp import KDP

# (clamp, the run's settings) -> the method with fresh weights
METHODS: dict[str, Callable[[Clamp, Any], Any]] = {
    "kdp": lambda clamp, config: KDP(clamp, config.drift, config.network),
}
