"""How long decisions and training steps take, as Markdown."""

from __future__ import annotations

from kdp.bench.latency import said_ratio, short
from kdp.bench.markdown import few, markdown, mean, origin, prose
from kdp.bench.results import Row, Rows, latest


def latency_page(rows: Rows) -> str:
    """A table for each machine and kind of run: planners by their candidates, and how many times KDP's time it is."""
    lines = ["# Latency", "", "Written by `kdp table` from `results/latency.jsonl`.", ""]
    lines += ["![Latency](latency.png)", ""]
    found = latencies(rows)
    for title, mine in found.items():
        body = [_latency_cells(row) for row in mine]
        head = [name for name in body[0] if any(cells[name] for cells in body)]
        lines += [f"## {title}", "", *markdown(head, [[cells[name] for name in head] for cells in body]), ""]
        loads = {f"{row['load']:.1f}" for row in mine if row["load"] is not None}
        about = f"Most memory held: {short(max(row['peak_mib'] or 0.0 for row in mine))} MiB."
        lines += [*prose(about + (f" Load of the machine before: {few(loads)}." if loads else "")), ""]
    note = (
        "Planners of one table took turns in one process, in a new order every round. ms, p95, p99: time of a decision "
        "for one robot, all K candidates and the scorer included (untrained networks do not rank a single one). "
        "+ env: median until the next observation, with the executor and one step of the environment. n: decisions "
        "timed. × kdp: how many times KDP's median at the same K, over the rounds that both were in, and the range of "
        "95 % of bootstrap draws. × same net: the same, of KDP with that very network by that very backend. Every "
        "name: [metrics](../metrics.md)."
    )
    return "\n".join([*lines, *prose(note), "", *origin(list(found.values())), ""])


def training_page(rows: Rows) -> str:
    """A table for each task and device: steps in a second by what is varied, and where the time of a step goes."""
    lines = ["# Training speed", "", "Written by `kdp table` from `results/training.jsonl`.", ""]
    groups = latest(rows, ("task", "device"), each=("axis", "value"))
    for group in groups:
        head = ["varied", "conditions", "samples", "positives", "steps/s", "windows/s", *group[0]["stages_ms"]]
        body = []
        for at in group:
            varied = f"loop: {at['value']}" if at["axis"] == "loop" else at["axis"]
            cells = [varied, *(str(at[name]) for name in ("conditions", "samples", "positives"))]
            cells += [short(at["steps_per_s"]), f"{at['windows_per_s']:.0f}"]
            body.append([*cells, *(f"{ms:.2f}" for ms in at["stages_ms"].values())])
        lines += [f"## {group[0]['task']}, {group[0]['device']}", "", *markdown(head, body), ""]
        tables = f"{mean(group, 'table_s', '{:.1f}')} s for every {few({at['table_steps'] for at in group})} steps"
        graph = " A step is one CUDA graph." if group[0]["graph"] else ""
        lines += [*prose(f"A table of windows and their neighbours takes {tables}, not counted here.{graph}"), ""]
    note = (
        "Stages in milliseconds, launched one after the other: batch (windows and positives looked up), generator, "
        "field (and scorer, where there is one), backward, optimizer, average of the weights. On a GPU a step as one "
        "graph takes less than their sum. loop: the usual sizes, training's switches bf16 and fuse (torch.compile)."
    )
    return "\n".join([*lines, *prose(note), "", *origin(groups), ""])


def _latency_cells(row: Row) -> dict[str, str]:
    cells = {"planner": row["subject"], "K": str(row["candidates"]), "calls": str(row["nfe"])}
    cells |= {"windows": str(row["bef"]), "ms": short(row["plan_ms_p50"]), "p95": short(row["plan_ms_p95"])}
    cells |= {"p99": short(row["plan_ms_p99"]), "+ env": short(row["end_to_end_ms_p50"])}
    cells |= {"plans/s": short(row["plans_per_s"]), "n": str(row["samples"]), "× kdp": said_ratio(row)}
    return cells | {"× same net": said_ratio(row, "ratio_same_net")}


def latencies(rows: Rows) -> dict[str, Rows]:
    """By task, horizon, machine and KDP's backend, what the newest command measured: one table, one process."""
    found: dict[str, Rows] = {}
    for row in rows:
        kdp = f", KDP by {row['kdp_backend']}" if row["kdp_backend"] else ""
        device = row["device"].replace("1 threads", "1 thread")  # as older rows have it
        found.setdefault(f"{row['task']}, horizon {row['horizon']}, {device}{kdp}", []).append(row)
    for title, mine in found.items():
        last = [row for row in mine if (row["commit"], row["command"]) == (mine[-1]["commit"], mine[-1]["command"])]
        found[title] = list({(row["subject"], row["candidates"]): row for row in last}.values())
    return found
