"""Rows of results/*.jsonl: the same columns in every suite, so that one reader serves all tables."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from kdp.errors import UserError
from kdp.provenance import commit, device_name, versions

COLUMNS = (
    *("suite", "task", "dataset", "method", "field", "executor", "candidates", "chunk", "seed", "episodes"),
    *("score", "score_sem", "return_mean", "success", "time_to_goal", "nfe", "bef", "plan_ms_p50"),
    *("train_minutes", "train_steps", "device", "commit", "versions", "command"),
)

Row = dict[str, Any]
Rows = list[Row]


def row(suite: str, device: str, **values: Any) -> Row:
    """A row with every column, null where there is nothing to say, and where it comes from."""
    origin = {
        "suite": suite,
        "device": device_name(device),
        "commit": commit(),
        "versions": versions(),
        "command": _command(sys.argv[1:]),
    }
    return dict.fromkeys(COLUMNS) | values | origin


def _command(words: list[str]) -> str:
    """As it was typed, less the file that the row goes to: it does not change the row."""
    kept = [word for at, word in enumerate(words) if word != "--results" and words[at - 1 : at] != ["--results"]]
    return shlex.join(["kdp", *kept])


def append(path: Path, row: Row) -> None:
    """One line, written at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from error


def read(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def holds(rows: Rows, values: Row) -> bool:
    """Whether some row says all of this."""
    return any(all(row.get(name) == value for name, value in values.items()) for row in rows)


def latest(rows: Rows, keys: tuple[str, ...], each: tuple[str, ...] = ("seed",)) -> list[Rows]:
    """Rows that agree in `keys`, together, in order of appearance: of the newest commit and settings among them only,
    and the last one for each seed. Rows of a --quick study count only where there are no others."""
    groups: dict[str, Rows] = {}
    for found in [row for row in rows if not row.get("quick")] or rows:
        groups.setdefault(_values(found, keys), []).append(found)
    return [
        list({_values(row, each): row for row in group if _origin(row) == _origin(group[-1])}.values())
        for group in groups.values()
    ]


def _values(row: Row, names: tuple[str, ...]) -> str:
    return json.dumps([row.get(name) for name in names])


def _origin(row: Row) -> str:
    """Commit and settings: rows that differ in them are not averaged."""
    settings = {name: value for name, value in (row.get("config") or {}).items() if name != "seed"}
    return json.dumps([row["commit"], row["episodes"], settings], sort_keys=True)
