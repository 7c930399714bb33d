"""`kdp table`: the rows of results/*.jsonl as Markdown in docs/results/. Numbers are never typed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kdp.bench.ablations import OURS, VALUE, VARIANTS
from kdp.bench.latency import latency_lines
from kdp.bench.locomotion_page import locomotion_page, locomotion_summary
from kdp.bench.markdown import few, markdown, mean, ms, origin, prose, score
from kdp.bench.results import Row, Rows, latest, read
from kdp.bench.speed_pages import latencies, latency_page, training_page
from kdp.errors import UserError
from kdp.files import replacing
from kdp.pictures import Line, draw_latency, draw_scaling

METHODS = ("kdp", "diffuser", "bc")  # from left to right
EXECUTORS = ("track", "inverse", "action")
PROTOCOL = ("executor", "candidates", "chunk", "warm")
BEGIN, END = "<!-- {} table: kdp table -->", "<!-- end -->"
PAPER = (
    "The paper prints, for D4RL's own data, which ours are not: KDP 122.3 / 130.4 / 133.0 and Diffuser "
    "113.9 / 121.5 / 123.0 on U-maze / medium / large."
)


def write_tables(results: Path, docs: Path, readme: Path) -> list[Path]:
    """One page for each file of results that has a table, and the README's part; returns what was written."""
    found = {
        suite: read(results / f"{suite}.jsonl")
        for suite in ("fields", "maze2d", "locomotion", "ablations", "scaling", "curves", "latency", "training")
    }
    curves = found["curves"]
    pages: dict[str, Callable[[Rows], str]] = {
        "fields": fields_page,
        "maze2d": lambda rows: maze2d_page(rows, curves),
        "locomotion": locomotion_page,
        "ablations": ablations_page,
        "scaling": scaling_page,
        "curves": curves_page,
        "latency": latency_page,
        "training": training_page,
    }
    written = []
    for suite, rows in found.items():
        if rows:
            written.append(docs / f"{suite}.md")
            with replacing(written[-1]) as temporary:
                temporary.write_text(pages[suite](rows))
    if not written:
        raise UserError(f"{results} holds no results; run a study first, for example `kdp bench fields`.")
    if found["scaling"]:
        written.append(draw_scaling(docs / "scaling.png", scaling_lines(found["scaling"])))
    if found["latency"]:
        panels = {title: latency_lines(rows) for title, rows in latencies(found["latency"]).items()}
        compared = {title: lines for title, lines in panels.items() if len(lines) > 1}  # a line alone says little
        written.append(draw_latency(docs / "latency.png", compared or panels))
    summaries = {"maze2d": lambda rows: maze2d_summary(rows, curves), "locomotion": locomotion_summary}
    for suite, summary in summaries.items():
        if found[suite] and readme.exists() and BEGIN.format(suite) in readme.read_text():
            _into_readme(readme, BEGIN.format(suite), summary(found[suite]))
            written += [readme] if readme not in written else []
    return written


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
    shares = [row["shares"] for row in group if row["shares"]]
    said = " ".join(f"{share:.2f}" for share in np.mean(shares, 0)) if shares else ""
    head = [str(len(group)), mean(group, "energy_score", "{:.3f}"), mean(group, "near", "{:.2f}"), said]
    return [*head, mean(group, "score", "{:.1f}"), mean(group, "walls", "{:.1%}")]


def maze2d_page(rows: Rows, curves: Rows) -> str:
    """The summary, then each maze with everything that was measured."""
    groups = _maze_groups(rows)
    lines = ["# Maze2D", "", "Written by `kdp table` from `results/maze2d.jsonl`.", "", maze2d_summary(rows, curves)]
    head = ["method", "executor", "loop", "K", "seeds", "score", "success", "steps", "walls", "calls", "ms", "min"]
    for task in _tasks(groups):
        mine = [group for group in groups if group[0]["task"] == task]
        lines += ["", f"## {task}", "", *markdown(head, [_maze_cells(group) for group in mine])]
    note = (
        "loop: closed plans at every step, every N at each Nth, open only once; warm N refines the last plan in N "
        "calls. steps: to the goal, where it arrives. calls: network calls one after the other in a plan. ms: median "
        "time of a decision for one robot. min: minutes of training. Every name: [metrics](../metrics.md)."
    )
    return "\n".join([*lines, "", *prose(note), ""])


def maze2d_summary(rows: Rows, curves: Rows) -> str:
    """Maze by maze, planners side by side: the closed loop with every executor, walls, latency, minutes to 90 %."""
    groups = [group for group in _maze_groups(rows) if group[0]["chunk"] == 1 and not group[0]["warm"]]
    found = {(group[0]["method"], group[0]["candidates"]): None for group in groups}
    planners = sorted(found, key=lambda planner: (METHODS.index(planner[0]), -planner[1]))
    soon = minutes_to_90(curves)
    body = []
    for task in _tasks(groups):
        by = {
            tuple(group[0][name] for name in ("method", "candidates", "executor")): group
            for group in groups
            if group[0]["task"] == task
        }
        lines = [
            [executor, *(score(by.get((*planner, executor), [])) for planner in planners)] for executor in EXECUTORS
        ]
        tracked = [by.get((*planner, "track"), []) for planner in planners]
        lines.append(["plans that touch a wall", *(mean(group, "walls", "{:.1%}") for group in tracked)])
        lines.append(["ms a decision", *map(ms, tracked)])
        lines.append(["minutes of training", *(mean(group, "train_minutes", "{:.1f}") for group in tracked)])
        for device in dict.fromkeys(where for where_task, _, where in soon if where_task == task):
            times = [soon.get((task, method, device), "") for method, _ in planners]
            lines.append([f"to 90 % of the score, {device}", *times])
        lines = [line for line in lines if any(line[1:])]
        body += [[task.removeprefix("maze2d-") if at == 0 else "", *line] for at, line in enumerate(lines)]
    episodes = few({row["episodes"] for group in groups for row in group})
    note = (
        f"Regenerated data, on D4RL's scale of returns; not D4RL's files. Mean ± standard error over seeds "
        f"({few({len(group) for group in groups})}), {episodes} episodes each, replanning at every step. K: "
        f"candidates a plan. Walls, ms and minutes: with the first executor. {PAPER}"
    )
    head = ["maze", "", *(f"{method}, K {k}" for method, k in planners)]
    return "\n".join([*markdown(head, body), "", *prose(note), "", *origin(groups)])


def ablations_page(rows: Rows) -> str:
    """One table for each task and field: what each part of the objective is worth."""
    groups = latest(rows, ("task", "base", "variant", "executor", "candidates"))
    lines = ["# Ablations", "", "Written by `kdp table` from `results/ablations.jsonl`.", ""]
    for task, base in dict.fromkeys((group[0]["task"], group[0]["base"]) for group in groups):
        mine = [group for group in groups if (group[0]["task"], group[0]["base"]) == (task, base)]
        by = {(group[0]["variant"], group[0]["executor"], group[0]["candidates"]): group for group in mine}
        ways = sorted(
            {(g[0]["executor"], g[0]["candidates"]) for g in mine}, key=lambda w: (EXECUTORS.index(w[0]), -w[1])
        )
        body, order = [], [*VARIANTS, *OURS, *VALUE]  # the study's, and last what it no longer has
        shown = dict.fromkeys(group[0]["variant"] for group in mine)
        for variant in sorted(shown, key=lambda name: order.index(name) if name in order else len(order)):
            judged = [by.get((variant, *way), []) for way in ways]
            some = next(group for group in judged if group)
            cells = [variant, str(len(some)), *map(score, judged), mean(some, "walls", "{:.1%}")]
            fit = [mean(some, "energy_score", "{:.3f}"), mean(some, "diversity", "{:.3g}")]
            body.append([*cells, *fit, some[0]["commit"][:7]])
        data = mean([row for group in mine for row in group], "data_diversity", "{:.3g}")
        head = [
            "variant",
            "seeds",
            *(f"{executor}, K {k}" for executor, k in ways),
            "walls",
            "energy score",
            "diversity",
            "commit",
        ]
        lines += [f"## {task}, {base} field", "", *markdown(head, body), ""]
        lines += [*prose(f"Diversity of the data's own nearest neighbours: {data}."), ""]
    note = (
        "Trained on nine tenths of the episodes; energy score (smaller is better) and diversity of the first action on "
        "the rest. Scores: mean ± standard error over seeds, by executor and number of candidates, planning at every "
        "step. Walls: with the first of them. Lines of different commits are of different code, and settings."
    )
    return "\n".join([*lines, *prose(note), "", *origin(groups), ""])


def scaling_page(rows: Rows) -> str:
    """Score and latency by the number of candidates and by the horizon."""
    groups = latest(rows, ("axis", "task", "method", "value"))
    lines = ["# Scaling", "", "Written by `kdp table` from `results/scaling.jsonl`.", "", "![Scaling](scaling.png)", ""]
    head = ["task", "method", "value", "K", "seeds", "score", "success", "walls", "calls", "windows", "ms"]
    for axis in dict.fromkeys(group[0]["axis"] for group in groups):
        mine = [group for group in groups if group[0]["axis"] == axis]
        mine.sort(key=lambda group: (group[0]["task"], METHODS.index(group[0]["method"]), group[0]["value"]))
        body = []
        for group in mine:
            row = group[0]
            cells = [
                row["task"],
                row["method"],
                str(row["value"]),
                str(row["candidates"]),
                str(len(group)),
                score(group),
            ]
            cells += [
                mean(group, "success", "{:.0%}"),
                mean(group, "walls", "{:.1%}"),
                str(row["nfe"]),
                str(row["bef"]),
            ]
            body.append([*cells, ms(group)])
        lines += [f"## {axis}", "", *markdown(head, body), ""]
    note = "The track executor in closed loop; ms: median time of a decision for one robot, alone on the machine."
    return "\n".join([*lines, *prose(note), "", *origin(groups), ""])


def scaling_lines(rows: Rows) -> dict[str, dict[str, list[Line]]]:
    """axis -> task and method -> (value, score, its standard error, ms) in order of the value."""
    lines: dict[str, dict[str, list[Line]]] = {}
    for group in latest(rows, ("axis", "task", "method", "value")):
        row, scores = group[0], np.array([row["score"] for row in group if row["score"] is not None])
        if len(scores):
            error = float(scores.std(ddof=1) / len(scores) ** 0.5) if len(scores) > 1 else 0.0
            ms = float(np.median([row["plan_ms_p50"] for row in group]))
            name = f"{row['task']}, {row['method']}"
            lines.setdefault(row["axis"], {}).setdefault(name, []).append(
                (row["value"], float(scores.mean()), error, ms)
            )
    return {axis: {name: sorted(line) for name, line in named.items()} for axis, named in lines.items()}


def curves_page(rows: Rows) -> str:
    """The score at each stop, and the minutes until nine tenths of the final one."""
    groups = latest(rows, ("task", "method", "variant", "device"), each=("seed", "train_steps"))
    tasks = _tasks(groups)
    groups.sort(key=lambda group: (tasks.index(group[0]["task"]), group[0]["device"], group[0]["method"] != "kdp"))
    lines = ["# Score over training time", "", "Written by `kdp table` from `results/curves.jsonl`.", ""]
    body = []
    for group in groups:
        times, ends = reached(group), _ends(group)
        cells = [*_of_curve(group[0]), few({row.get("jobs") for row in group})]
        cells += [str(len(ends)), score(ends), mean(ends, "train_minutes", "{:.2f}")]
        body.append([*cells, f"{np.mean(times):.2f}" if times else ""])
    lines += markdown(["task", "method", "device", "jobs", "seeds", "final score", "minutes", "to 90 %"], body)
    note = (
        "To 90 %: minutes of training, without judging, until the first stop at which a run has nine tenths of its own "
        "final score; mean over seeds. Runs that share a device (jobs) slow each other down. The learning rate follows "
        "the whole run: a shorter run with a schedule of its own may be better than this one at the same minute."
    )
    lines += ["", *prose(note), ""]
    for group in groups:
        stops = [[r for r in group if r["train_steps"] == s] for s in sorted({r["train_steps"] for r in group})]
        lines += [f"## {', '.join(_of_curve(group[0]))}", ""]
        body = [[str(s[0]["train_steps"]), mean(s, "train_minutes", "{:.2f}"), score(s)] for s in stops]
        lines += [*markdown(["steps", "minutes", "score"], body), ""]
    return "\n".join([*lines, *origin(groups), ""])


def _of_curve(row: Row) -> list[str]:
    """What was trained, and where."""
    return [row["task"], row.get("variant") or row["method"], row["device"]]


def minutes_to_90(curves: Rows) -> dict[tuple[str, str, str], str]:
    """(task, method, device) -> minutes of training to nine tenths of the final score."""
    soon = {}
    for group in latest(curves, ("task", "method", "device"), each=("seed", "train_steps")):
        times = reached(group)
        soon[group[0]["task"], group[0]["method"], group[0]["device"]] = f"{np.mean(times):.2f}" if times else ""
    return soon


def reached(group: Rows) -> list[float]:
    """For each seed that ends above zero, the minutes until its first stop with nine tenths of its final score."""
    times = []
    for end in _ends(group):
        mine = sorted((r for r in group if r["seed"] == end["seed"]), key=lambda row: row["train_steps"])
        if end["score"] is not None and end["score"] > 0:
            times.append(next(row["train_minutes"] for row in mine if row["score"] >= 0.9 * end["score"]))
    return times


def _ends(group: Rows) -> Rows:
    """The last row of each seed's training."""
    return list({row["seed"]: row for row in sorted(group, key=lambda row: row["train_steps"])}.values())


def _maze_groups(rows: Rows) -> list[Rows]:
    """By maze, method and protocol, in the order of the tables: of each method's newest commit in a maze. Rows from
    before there were warm starts have none."""
    groups = latest([{"warm": 0} | row for row in rows], ("task", "method", *PROTOCOL))
    newest = {(row["task"], row["method"]): row["commit"] for row in rows if not row.get("quick")}
    groups = [g for g in groups if g[0]["commit"] == newest.get((g[0]["task"], g[0]["method"]), g[0]["commit"])]
    return sorted(groups, key=lambda group: (METHODS.index(group[0]["method"]), _order(group[0])))


def _maze_cells(group: Rows) -> list[str]:
    row = group[0]
    loop = _loop(row).replace(" loop", "").replace("closed, ", "").replace(" steps", "")
    cells = [row["method"], row["executor"], loop, str(row["candidates"]), str(len(group)), score(group)]
    cells += [mean(group, "success", "{:.0%}"), mean(group, "time_to_goal", "{:.0f}") or "-"]
    cells += [mean(group, "walls", "{:.1%}"), str(row["nfe"]), ms(group)]
    return [*cells, mean(group, "train_minutes", "{:.1f}")]


def _loop(row: Row) -> str:
    often = {0: "open loop", 1: "closed loop"}.get(row["chunk"], f"every {row['chunk']} steps")
    return often + (f", warm {row['warm']}" if row.get("warm") else "")


def _order(row: Row) -> tuple[bool, bool, int, int]:
    """Closed loops first, by executor and most candidates; then warm starts, then open loops."""
    executor = EXECUTORS.index(row["executor"])
    return row["chunk"] == 0, bool(row["warm"]), executor, -row["candidates"]


def _tasks(groups: list[Rows]) -> list[str]:
    """Mazes from small to large."""
    order = ["maze2d-umaze", "maze2d-medium", "maze2d-large"]
    found = dict.fromkeys(group[0]["task"] for group in groups)
    return sorted(found, key=lambda task: order.index(task) if task in order else len(order))


def _into_readme(readme: Path, begin: str, text: str) -> None:
    """The README with the table after this marker renewed."""
    before, rest = readme.read_text().split(begin, 1)
    if END not in rest:
        raise UserError(f"{readme} has {begin!r} and no {END!r} after it; write that below the place of the table.")
    with replacing(readme) as temporary:
        temporary.write_text(f"{before}{begin}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}")
