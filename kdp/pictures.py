"""Pictures of plans and of driven episodes, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from kdp.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCENT, CANDIDATE, GOAL, INK, WALL = "#d6336c", "#868e96", "#f59f00", "#212529", "#343a40"
SPAN = 10.0  # points of score that a picture shows at least: a standard error is not to look like a cliff
COLOURS = (ACCENT, "#1c7ed6", "#2b8a3e", GOAL, "#7048e8", CANDIDATE, "#0b7285", "#862e00")

Panel = tuple[str, ArrayLike, ArrayLike, int]
"""Title, driven states (T,d), candidates (K,L,d) of the first plan, index of the chosen one."""
Line = tuple[float, float, float, float]
"""A point of a scaling curve: what is varied, the score, its standard error, the milliseconds of a decision."""


def draw_plan(
    path: str | Path,
    states: ArrayLike,
    candidates: ArrayLike,
    *,
    best: int,
    walls: ArrayLike | None = None,
    start: ArrayLike | None = None,
    goal: ArrayLike | None = None,
    position_dims: tuple[int, int] | None = None,
    title: str = "",
) -> Path:
    """states (L,d_s) of the chosen plan, candidates (K,L,d_s) -> a PNG at `path`.

    With `position_dims` a map seen from above, on which start and goal are points (2,); without, a small plot
    for each of the first eight state coordinates over the tokens. Walls are (rows, cols), 1 a wall, cells of
    size 1 and the maze's centre at the origin.
    """
    states, candidates = np.asarray(states), np.asarray(candidates)
    if position_dims is None:
        figure = _coordinates(states, candidates, best)
    else:
        figure = _figure(5.2, 5.2 * _aspect(walls) + 0.4)
        axes = figure.add_subplot()
        dims = list(position_dims)
        _draw_map(axes, candidates[..., dims], states[:, dims], best, walls, start, goal)
        _legend(figure, axes)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    return _save(figure, path)


def draw_rollouts(
    path: str | Path,
    panels: Sequence[Panel],
    *,
    walls: ArrayLike | None,
    goal: ArrayLike | None,
    position_dims: tuple[int, int] = (0, 1),
) -> Path:
    """Panels of driven (T,d) and candidates (K,L,d) -> a PNG at `path`: the first eight, in two rows of four.

    The driven path is coloured by time, on one scale for all panels. `goal` is (2,), or (panels,2): one each.
    """
    panels, dims = panels[:8], list(position_dims)
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure = _figure(3.0 * columns + 0.8, (3.0 * _aspect(walls) + 0.25) * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
    goals = [None] * len(panels) if goal is None else np.broadcast_to(np.asarray(goal), (len(panels), 2))
    longest = max(len(np.asarray(driven)) for _, driven, _, _ in panels)
    for axes, (title, driven, candidates, best), place in zip(grid.flat, panels, goals, strict=False):
        candidates = np.asarray(candidates)[..., dims]
        driven = np.asarray(driven)[:, dims]
        _draw_map(axes, candidates, candidates[best], best, walls, driven[0], place)
        colours = _draw_driven(axes, driven, longest)
        axes.set_title(title, fontsize=10, color=INK)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    bar = figure.colorbar(colours, ax=grid, shrink=0.6, aspect=30, pad=0.015)
    bar.set_label("driven, step", color=INK)
    bar.outline.set_visible(False)
    _legend(figure, grid.flat[0])
    return _save(figure, path)


def draw_scaling(path: str | Path, lines: dict[str, dict[str, list[Line]]]) -> Path:
    """axis -> name -> points in order -> a PNG at `path`: a column for each axis, scores above latencies."""
    figure = _figure(4.6 * len(lines), 5.2)
    grid = figure.subplots(2, len(lines), squeeze=False, sharex="col")
    names = list(dict.fromkeys(name for named in lines.values() for name in named))
    times = [point[3] for named in lines.values() for points in named.values() for point in points]
    decades = 10 ** np.floor(np.log10(min(times))), 10 ** (np.floor(np.log10(max(times))) + 1)
    for (above, below), (axis, named) in zip(grid.T, lines.items(), strict=True):
        for name, points in named.items():
            value, score, error, ms = np.array(points).T
            colour = COLOURS[names.index(name) % len(COLOURS)]
            above.errorbar(value, score, error, color=colour, marker="o", markersize=4, capsize=2, label=name)
            below.plot(value, ms, color=colour, marker="o", markersize=4)
        ticks = sorted({point[0] for points in named.values() for point in points})
        below.set_xscale("log", base=2)
        below.set_yscale("log")
        below.set_ylim(decades)
        below.yaxis.set_major_formatter("{x:g}")
        below.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        below.minorticks_off()
        below.set_xlabel(axis, color=INK)
        low, high = above.get_ylim()
        more = max(0.0, SPAN - (high - low)) / 2
        above.set_ylim(low - more, high + more)
        above.set_ylabel("score", color=INK)
        below.set_ylabel("ms a decision", color=INK)
        for axes in (above, below):
            axes.tick_params(labelsize=8, colors="#495057", length=2)
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color("#adb5bd")
            axes.grid(color="#f1f3f5")
    _legend(figure, *grid[0])
    return _save(figure, path)


def draw_latency(path: str | Path, panels: dict[str, dict[str, list[tuple[float, float]]]]) -> Path:
    """title -> name -> (candidates, milliseconds) in order -> a PNG at `path`: a panel for each title, two in a row."""
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure = _figure(7.0 if columns == 1 else 5.0 * columns, 3.6 * rows + 0.8)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    names = list(dict.fromkeys(name for named in panels.values() for name in named))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, named) in zip(grid.flat, panels.items(), strict=False):
        for name, points in named.items():
            candidates, ms = np.array(points).T
            colour = COLOURS[names.index(name) % len(COLOURS)]
            axes.plot(candidates, ms, color=colour, marker="o", markersize=4, label=name)
        ticks = sorted({point[0] for points in named.values() for point in points})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_xlabel("candidates K", color=INK)
        axes.set_ylabel("ms a decision, median", color=INK)
        axes.tick_params(labelsize=8, colors="#495057", length=2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#adb5bd")
        axes.grid(color="#f1f3f5")
    _legend(figure, *grid.flat, columns=3)
    return _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_map(
    axes: Axes,
    candidates: np.ndarray,
    chosen: np.ndarray,
    best: int,
    walls: ArrayLike | None,
    start: ArrayLike | None,
    goal: ArrayLike | None,
) -> None:
    """candidates (K,L,2), chosen (L,2), start and goal (2,): one map."""
    from matplotlib.colors import ListedColormap

    if walls is not None:
        walls = np.asarray(walls)
        rows, columns = walls.shape
        extent = (-columns / 2, columns / 2, -rows / 2, rows / 2)  # row 0 on top
        colours = ListedColormap(["white", WALL])
        axes.imshow(walls != 0, cmap=colours, vmin=0, vmax=1, extent=extent, zorder=0)
    for k, line in enumerate(candidates):
        if k != best:
            _line(axes, line[:, 0], line[:, 1], chosen=False)
    _line(axes, chosen[:, 0], chosen[:, 1], chosen=True)
    for name, point, marker, size, colour in (("start", start, "o", 8, INK), ("goal", goal, "*", 15, GOAL)):
        if point is not None:
            x, y = np.asarray(point)
            axes.plot(x, y, marker, color=colour, markersize=size, markeredgecolor="white", label=name, zorder=5)
    axes.set_aspect("equal", adjustable="datalim" if walls is None else "box")
    axes.margins(0.08)
    if walls is not None:  # the outer wall only as a frame
        axes.set_xlim(extent[0] + 0.5, extent[1] - 0.5)
        axes.set_ylim(extent[2] + 0.5, extent[3] - 0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(walls is None)
    axes.spines[:].set_color("#dee2e6")


def _aspect(walls: ArrayLike | None) -> float:
    """Height of a map over its width."""
    if walls is None:
        return 1.0
    rows, columns = np.asarray(walls).shape
    return (rows - 1) / (columns - 1)


def _draw_driven(axes: Axes, driven: np.ndarray, longest: int):
    """driven (T,2) -> the coloured lines, one per step, on a scale from 0 to `longest`."""
    from matplotlib.collections import LineCollection

    lines = LineCollection(
        list(np.stack([driven[:-1], driven[1:]], 1)),
        cmap="viridis",
        linewidths=2.2,
        capstyle="round",
        zorder=4,
    )
    lines.set_array(np.arange(len(driven) - 1))
    lines.set_clim(0, max(longest - 1, 1))
    axes.add_collection(lines)
    return lines


def _coordinates(states: np.ndarray, candidates: np.ndarray, best: int) -> Figure:
    """states (L,d_s), candidates (K,L,d_s) -> small plots of up to eight state coordinates."""
    from matplotlib.ticker import MaxNLocator

    count = min(states.shape[1], 8)
    columns = min(count, 4)
    rows = -(-count // columns)
    figure = _figure(2.6 * columns + 0.4, 2.1 * rows + 0.8)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    tokens = np.arange(len(states))
    for i, axes in enumerate(grid.flat):
        if i >= count:
            axes.set_axis_off()
            continue
        for k, line in enumerate(candidates):
            if k != best:
                _line(axes, tokens, line[:, i], chosen=False)
        _line(axes, tokens, states[:, i], chosen=True)
        axes.set_title(f"state {i}", fontsize=9, color=INK, loc="left")
        lowest = i + columns >= count
        axes.tick_params(labelsize=8, colors="#495057", length=2, labelbottom=lowest)
        axes.set_xlabel("token" if lowest else "", fontsize=8, color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#adb5bd")
        axes.grid(color="#f1f3f5")
    _legend(figure, grid.flat[0])
    return figure


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, *, chosen: bool) -> None:
    """x (L,), y (L,): one plan; a plan of a single token is a dot."""
    axes.plot(
        x,
        y,
        color=ACCENT if chosen else CANDIDATE,
        alpha=1.0 if chosen else 0.45,
        linewidth=2.6 if chosen else 0.8,
        marker="o" if len(x) == 1 else None,
        markersize=6 if chosen else 3,
        solid_capstyle="round",
        zorder=3 if chosen else 2,
        label="chosen plan" if chosen else "candidates",
    )


def _legend(figure: Figure, *grid: Axes, columns: int | None = None) -> None:
    """One legend below the whole figure, each name once."""
    once: dict[str, Any] = {}
    for axes in grid:
        handles, names = axes.get_legend_handles_labels()
        once |= dict(zip(names, handles, strict=True))
    figure.legend(
        once.values(),
        once.keys(),
        loc="outside lower center",
        ncols=columns or (4 if figure.get_figwidth() > 5 else 2),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )


def _save(figure: Figure, path: str | Path) -> Path:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return Path(path)
