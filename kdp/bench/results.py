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


def row(suite: str, device: str, **values: Any) -> dict[str, Any]:
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


def append(path: Path, row: dict[str, Any]) -> None:
    """One line, written at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from error


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []
