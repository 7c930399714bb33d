"""Groups of rows as the cells, tables and notes of a Markdown page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import numpy as np

from kdp.bench.results import Rows


def score(group: Rows) -> str:
    """Mean over seeds and its standard error."""
    scores = np.array([row["score"] for row in group if row["score"] is not None])
    error = f" ± {scores.std(ddof=1) / len(scores) ** 0.5:.1f}" if len(scores) > 1 else ""
    return f"{scores.mean():.1f}{error}" if len(scores) else ""


def mean(group: Rows, name: str, form: str) -> str:
    """The mean of a column, where it is known."""
    values = [row[name] for row in group if row.get(name) is not None]
    return form.format(float(np.mean(values))) if values else ""


def markdown(head: list[str], body: list[list[str]]) -> list[str]:
    """The lines of a table, its columns under each other."""
    widths = [max(len(cells[at]) for cells in [head, *body]) for at in range(len(head))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, body)]


def prose(text: str) -> list[str]:
    return textwrap.wrap(text, 118)


def origin(groups: list[Rows]) -> list[str]:
    """Below a table: whose rows come from which commit and device."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for row in [row for group in groups for row in group]:
        tasks = found.setdefault((str(row["commit"]), row["device"]), {})
        tasks.setdefault(row["task"], {})[row["method"]] = None
    alone = len(found) == 1
    said = [f"{commit} on {device}" + ("" if alone else f": {_of(tasks)}") for (commit, device), tasks in found.items()]
    quick = any(row.get("quick") for group in groups for row in group)
    return prose(("From a --quick study: not results. " if quick else "") + f"Commits: {'; '.join(said)}.")


def _of(tasks: dict[str, dict[str, None]]) -> str:
    """Tasks of the same methods together, with the methods once."""
    together: dict[str, list[str]] = {}
    for task, methods in tasks.items():
        together.setdefault(", ".join(sorted(methods)), []).append(task)
    return " and ".join(f"{methods} of {', '.join(some)}" for methods, some in together.items())


def ms(group: Rows) -> str:
    """The median of the medians: one run that was disturbed does not count."""
    values = [row["plan_ms_p50"] for row in group if row["plan_ms_p50"] is not None]
    return f"{np.median(values):.2f}" if values else ""


def few(values: Iterable) -> str:
    """What there is, in order."""
    return ", ".join(str(value) for value in sorted(values, key=str) if value is not None)
