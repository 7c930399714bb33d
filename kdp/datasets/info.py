"""What a dataset holds: numbers for programs, a table and two histograms for people."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdp.windows import Episodes

BAR_WIDTH = 40


def describe(episodes: Episodes) -> dict[str, Any]:
    """Sizes, episode lengths, returns and the range of every action coordinate, as plain Python values."""
    lengths, returns, actions = episodes.lengths.numpy(), _returns(episodes), episodes.actions
    return {
        "name": episodes.name,
        "steps": len(episodes),
        "episodes": len(lengths),
        "observation_shape": [episodes.state_dim],
        "action_shape": [episodes.action_dim],
        "length_min": int(lengths.min()),
        "length_median": float(np.median(lengths)),
        "length_max": int(lengths.max()),
        "return_min": float(returns.min()),
        "return_mean": float(returns.mean()),
        "return_max": float(returns.max()),
        "terminals": int(episodes.terminals.sum()),
        "action_ranges": list(zip(actions.amin(0).tolist(), actions.amax(0).tolist(), strict=True)),
    }


def print_info(episodes: Episodes, console: Console, extra: Mapping[str, Any] | None = None) -> None:
    """A table of `describe` with `extra` rows below, then the returns and lengths of the episodes as bars."""
    facts = describe(episodes)
    rows = {
        "steps": f"{facts['steps']:,}",
        "episodes": f"{facts['episodes']:,}",
        "observations": f"{facts['observation_shape'][0]} numbers a step",
        "actions": f"{facts['action_shape'][0]} numbers a step",
        "action ranges": _ranges(facts["action_ranges"]),
        "episode length": ", ".join(f"{key} {facts[f'length_{key}']:g}" for key in ("min", "median", "max")),
        "episode return": ", ".join(f"{key} {facts[f'return_{key}']:.4g}" for key in ("min", "mean", "max")),
        "terminals": f"{facts['terminals']:,}",
        **{key: str(value) for key, value in (extra or {}).items()},
    }
    table = Table(title=Text(episodes.name), show_header=False, title_justify="left")
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for key, value in rows.items():
        table.add_row(Text(key), Text(value))
    console.print(table)
    for title, values in (("returns", _returns(episodes)), ("lengths", episodes.lengths.numpy())):
        console.print(Text(f"\nepisode {title}", style="bold"))
        for line in histogram(values, "#" if console.options.ascii_only else "█"):
            console.print(Text(line))


def histogram(values: np.ndarray, block: str = "█") -> list[str]:
    """Up to 10 bins of equal width, a line each; whole numbers get whole bins, and equal values one."""
    low, high = values.min(), values.max()
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        edges, labels = np.array([low, np.inf]), [f"{low:.4g}"]
    elif np.issubdtype(values.dtype, np.integer):
        edges = np.unique(np.linspace(low, high + 1, 11).round().astype(int))
        labels = [f"{a}" if a == b - 1 else f"{a} to {b - 1}" for a, b in pairwise(edges)]
    else:
        edges = np.linspace(low, high, 11)
        labels = [f"{a:.4g} to {b:.4g}" for a, b in pairwise(edges)]
    counts, _ = np.histogram(values, edges)
    bars = np.ceil(counts / counts.max() * BAR_WIDTH).astype(int)  # one block at least for what is not empty
    pad = max(map(len, labels))
    rows = zip(labels, bars, counts, strict=True)
    return [f"{label:>{pad}}  {block * bar} {count}" for label, bar, count in rows]


def _returns(episodes: Episodes) -> np.ndarray:
    return np.add.reduceat(episodes.rewards.double().numpy(), episodes.starts[:-1].numpy())


def _ranges(ranges: list[tuple[float, float]]) -> str:
    """Coordinates one after the other that read the same are told together."""
    texts = [f"{low:.3g} to {high:.3g}" for low, high in ranges]
    parts, first = [], 0
    for text, group in groupby(texts):
        last = first + len(list(group)) - 1
        parts.append(f"[{first}] {text}" if first == last else f"[{first}-{last}] {text}")
        first = last + 1
    return ", ".join(parts)
