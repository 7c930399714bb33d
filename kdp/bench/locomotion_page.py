"""The locomotion study as Markdown: a line for each planner and peer, a column for each set."""

from __future__ import annotations

import numpy as np

from kdp.bench.locomotion import TASKS, VARIANTS
from kdp.bench.markdown import few, markdown, mean, ms, origin, prose, score
from kdp.bench.peer_settings import PEERS
from kdp.bench.results import Row, Rows, latest

BODIES = {"halfcheetah": "HC", "hopper": "Ho", "walker2d": "Wa"}
KINDS = {"medium": "m", "medium-expert": "me", "medium-narrow": "narrow", "medium-replay": "replay", "expert": "e"}


def locomotion_page(rows: Rows) -> str:
    """The whole page."""
    lines = ["# Locomotion", "", "Written by `kdp table` from `results/locomotion.jsonl`.", ""]
    return "\n".join([*lines, locomotion_summary(rows, costs=True), ""])


def locomotion_summary(rows: Rows, costs: bool = False) -> str:
    """A table for each device, whose budgets are not the same, with the `costs` in a second one; what they say, and
    where their rows come from."""
    rows = [row | {"way": way(row)} for row in rows]
    groups = latest(rows, ("device", "task", "way"))
    tables: list[str] = []
    for device in dict.fromkeys(group[0]["device"] for group in groups):
        tables += [f"{device}:", "", *_tables([group for group in groups if group[0]["device"] == device], costs), ""]
    episodes = few({row["episodes"] for group in groups for row in group})
    note = (
        f"Regenerated data (collected from policies), not D4RL's files; returns on D4RL's scale. HC, Ho, Wa: "
        f"half-cheetah, hopper, walker; m: medium, me: medium-expert. Mean ± standard error over seeds, {episodes} "
        f"episodes each; mean: of the six sets. K: candidates, of which the scorer's best is followed, or a blend of "
        f"all in which the better count more, or their plain mean."
    )
    if costs:
        note += (
            " steps and min: of training, beside others on the same device; calls: network calls one after the other "
            "in a plan; ms: median time of a decision."
        )
    columns = dict.fromkeys((group[0]["device"], group[0]["task"]) for group in groups)
    shared = [f"{short(task)} on {device}" for device, task in columns if _one_data(groups, device, task)]
    if shared:
        note += f" All lines of these columns are of the very same data, by their digests: {'; '.join(shared)}."
    return "\n".join([*tables, *prose(note), "", *origin(groups)])


def _one_data(groups: list[Rows], device: str, task: str) -> bool:
    """Whether it is known that all that is shown of a set on a device was trained on the same episodes."""
    digests = {row.get("data") for group in groups for row in group if (row["device"], row["task"]) == (device, task)}
    return len(digests) == 1 and None not in digests


def _tables(groups: list[Rows], costs: bool) -> list[str]:
    """Scores and costs. The mean is over the six sets of the study, where all were measured; other sets stand behind
    it."""
    by = {(*way(g[0]), g[0]["task"]): g for g in groups}
    measured = dict.fromkeys(g[0]["task"] for g in groups)
    first, others = [task for task in TASKS if task in measured], [task for task in measured if task not in TASKS]
    whole = len(first) == len(TASKS)  # else there is no mean of all
    scores, spent = [], []
    groups = sorted(groups, key=lambda group: group[0]["train_steps"])  # a peer's lines, the shortest first
    for variant, k in sorted(dict.fromkeys(way(g[0]) for g in groups), key=_order):
        mine = {task: by.get((variant, k, task), []) for task in [*first, *others]}
        cells = [score(mine[task]).replace(" ", "") for task in mine]
        scores.append([variant, k, *cells[: len(first)], *([_average(mine)] if whole else []), *cells[len(first) :]])
        there = [group for group in mine.values() if group]
        every = [row for group in there for row in group]
        trained = [few({len(group) for group in there}), few({row["train_steps"] for row in every})]
        minutes = mean(every, "train_minutes", "{:.1f}")
        spent.append([variant, k, *trained, minutes, str(every[0]["nfe"]), ms(there[0])])
    head = ["", "K", *map(short, first), *(["mean"] if whole else []), *map(short, others)]
    second = ["", *markdown(["", "K", "seeds", "steps", "min", "calls", "ms"], spent)] if costs else []
    return [*markdown(head, scores), *second]


def way(row: Row) -> tuple[str, str]:
    """Who planned, by whose scorer if not by its own, or a peer of how many steps; how many candidates there were, and
    which was followed."""
    if row["variant"] in PEERS:
        return f"{row['variant']}, {thousands(row['train_steps'])}", "1"
    if row["candidates"] == 1:
        return row["variant"], "1"
    if not row.get("scored", True):
        return row["variant"], f"{row['candidates']}, mean"
    lender = f", {row['ranked_by']}'s J" if row.get("ranked_by") else ""
    followed = f"blend {row['blend']:g}" if row.get("blend") else "best"
    return row["variant"] + lender, f"{row['candidates']}, {followed}"


def thousands(steps: int) -> str:
    """100000 -> 100k, 1000000 -> 1M."""
    for unit, name in ((1_000_000, "M"), (1000, "k")):
        if steps % unit == 0:
            return f"{steps // unit}{name}"
    return str(steps)


def short(task: str) -> str:
    body, kind = task.split("-", 1)
    return f"{BODIES.get(body, body)} {KINDS.get(kind, kind)}"


def _average(mine: dict[str, Rows]) -> str:
    six = [[row["score"] for row in mine.get(task, [])] for task in TASKS]
    return f"{np.mean([np.mean(scores) for scores in six]):.1f}" if all(six) else ""


def _order(named: tuple[str, str]) -> tuple[int, float]:
    """As in the study; blends first, the strongest before the others, then plain means, then the best, then single
    plans. (Sorting keeps the order of what is the same by this.)"""
    variant, k = named
    names, name, last = [*VARIANTS, *PEERS], variant.split(",")[0], k.split()[-1]
    followed = {"mean": 1.0, "best": 2.0, "1": 3.0}[last] if "blend" not in k else -float(last)
    return names.index(name) if name in names else len(names), followed
