"""What subcommands are told, checked before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import tyro

from kdp.errors import UserError, did_you_mean

Device = Annotated[str, tyro.conf.arg(help="cpu, or cuda where there is one.")]


def check_device(device: str) -> None:
    """Refuses a device that is none of ours or is not here."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"device must be cpu or cuda; got {device!r}.") from None
    if kind not in ("cpu", "cuda"):
        raise UserError(f"device must be cpu or cuda; got {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, and there is none here. Use --device cpu.")


def names_of(kind: str, text: str, known: Iterable[str]) -> list[str]:
    """Names separated by commas, each one of a study's own, each once; "all" are all of them."""
    known = list(known)
    if text == "all":
        return known
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"{name!r} is not a {kind} of this study. {did_you_mean(name, known)}")
    return names


def counts_of(name: str, text: str) -> list[int]:
    """Whole numbers of 1 or more, separated by commas, each once."""
    try:
        counts = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise UserError(f"{name} must be whole numbers of 1 or more, separated by commas; got {text!r}.")
    return counts


def numbers_of(name: str, text: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{name} must be numbers separated by commas; got {text!r}.") from None


def check_study(seeds: int, jobs: int, device: str) -> None:
    if seeds < 1 or jobs < 1:
        raise UserError(f"seeds and jobs must be 1 or more; got {seeds=} {jobs=}.")
    check_device(device)
