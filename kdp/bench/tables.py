"""`kdp table`: the rows of results/*.jsonl as Markdown in docs/results/. Numbers are never typed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kdp.bench.results import read
from kdp.errors import UserError
from kdp.files import replacing

Rows = list[dict[str, Any]]


def write_tables(results: Path, docs: Path) -> list[Path]:
    """One page for each file of results that has a table; returns the pages."""
    pages = []
    for suite, render in TABLES.items():
        rows = read(results / f"{suite}.jsonl")
        if rows:
            pages.append(docs / f"{suite}.md")
            with replacing(pages[-1]) as temporary:
                temporary.write_text(render(rows))
    if not pages:
        raise UserError(f"{results} holds no results; run a study first, for example `kdp bench fields`.")
    return pages


def fields_page(rows: Rows) -> str:
    """The field study: one table for each task and commit, best energy score first."""
    lines = ["# Field study", "", "Written by `kdp table` from `results/fields.jsonl`.", ""]
    for task in dict.fromkeys(row["task"] for row in rows):
        for commit in dict.fromkeys(row["commit"] for row in rows):
            chosen = [row for row in rows if row["task"] == task and row["commit"] == commit]
            if not chosen:
                continue
            devices = ", ".join(sorted({row["device"] for row in chosen}))
            steps = ", ".join(sorted({str(row["train_steps"]) for row in chosen}))
            lines += [
                f"## {task}, commit {commit}",
                "",
                f"Data: {chosen[0]['dataset']}. {steps} steps on {devices}.",
                "",
            ]
            lines += ["| variant | seeds | energy score | near a mode | shares | score | through walls |"]
            lines += ["|---|---|---|---|---|---|---|"]
            groups = [
                [row for row in chosen if row["variant"] == v] for v in dict.fromkeys(r["variant"] for r in chosen)
            ]
            for group in sorted(groups, key=lambda group: np.mean([row["energy_score"] for row in group])):
                lines.append("| " + " | ".join([group[0]["variant"], *field_cells(group)]) + " |")
            lines.append("")
    return "\n".join(lines)


def field_cells(group: Rows) -> list[str]:
    """The numbers of one line of the field study: means over the rows of one variant and task."""

    def mean(key: str, form: str) -> str:
        values = [row[key] for row in group if row[key] is not None]
        return form.format(float(np.mean(values))) if values else ""

    shares = [row["shares"] for row in group if row["shares"]]
    said = " ".join(f"{share:.2f}" for share in np.mean(shares, 0)) if shares else ""
    head = [str(len(group)), mean("energy_score", "{:.3f}"), mean("near", "{:.2f}"), said]
    return [*head, mean("score", "{:.1f}"), mean("walls", "{:.1%}")]


def maze2d_page(rows: Rows) -> str:
    """Scores by maze, method and executor: mean over seeds and its standard error, newest commit's rows only."""
    newest = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    lines = ["# Maze2D", "", f"Written by `kdp table` from `results/maze2d.jsonl`, commit {newest[0]['commit']}."]
    lines += ["Regenerated data on D4RL's scale of returns; not D4RL's files.", ""]
    lines += [
        "| maze | method | executor | K | seeds | score | success | steps to goal | calls | ms per plan | minutes |"
    ]
    lines += ["|" + "---|" * 11]
    keys = ("task", "method", "executor")
    for group_key in dict.fromkeys(tuple(row[k] for k in keys) for row in newest):
        group = [row for row in newest if tuple(row[k] for k in keys) == group_key]
        scores = np.array([row["score"] for row in group])
        error = f" ± {scores.std(ddof=1) / len(scores) ** 0.5:.1f}" if len(scores) > 1 else ""
        arrivals = [row["time_to_goal"] for row in group if row["time_to_goal"] is not None]
        cells = [*group_key, str(group[0]["candidates"]), str(len(group)), f"{scores.mean():.1f}{error}"]
        cells += [f"{np.mean([row['success'] for row in group]):.0%}", f"{np.mean(arrivals):.0f}" if arrivals else "-"]
        cells += [str(group[0]["nfe"]), f"{np.median([row['plan_ms_p50'] for row in group]):.2f}"]
        lines.append("| " + " | ".join([*cells, f"{np.mean([row['train_minutes'] for row in group]):.1f}"]) + " |")
    return "\n".join([*lines, ""])


TABLES: dict[str, Callable[[Rows], str]] = {"fields": fields_page, "maze2d": maze2d_page}
