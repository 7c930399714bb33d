"""Where a number comes from: commit, versions, device."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("kdp", "torch", "numpy", "gymnasium", "gymnasium-robotics", "mujoco", "minari", "faiss-cpu")

WRITTEN = ("results", "docs/results", "README.md")


def commit() -> str | None:
    """The commit of this checkout, with `+` when tracked files differ from it, results and their tables apart, which
    studies write; None for an installed package. $KDP_COMMIT says it where a copy without history runs."""
    if os.environ.get("KDP_COMMIT"):
        return os.environ["KDP_COMMIT"]
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
        return done.stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "-uno", "--", ".", *(f":!{path}" for path in WRITTEN))
        return (head + ("+" if changed else "")) or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found["torch"] = torch.__version__
    return found


def device_name(device: torch.device | str = "cpu") -> str:
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = torch.get_num_threads()
    return f"CPU, {count} thread{'' if count == 1 else 's'}"
