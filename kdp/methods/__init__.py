"""The methods by name. One file each; adding one is described in docs/adding.md."""

from __future__ import annotations

from kdp.methods.kdp import KDP

METHODS = {"kdp": KDP}
