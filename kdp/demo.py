"""`kdp demo`: data, training, closed-loop planning, a table and a picture, in a few minutes on two cores."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from kdp.datasets import open_file
from kdp.domains import DOMAINS
from kdp.errors import UserError
from kdp.judge import judge
from kdp.runs import CONFIG, RunConfig, start_run

DATA_STEPS = 300_000
DATA = "data.hdf5"


def run_demo(folder: Path, minutes: float, seed: int, episodes: int, console: Console) -> None:
    """An earlier demo in `folder` is replaced; any other run there is left alone."""
    begin = time.monotonic()
    if (folder / CONFIG).exists() and not (folder / DATA).exists():
        raise UserError(f"{folder} holds a run that is not a demo's; choose another folder with --run.")
    if folder.exists() and (folder / DATA).exists():
        shutil.rmtree(folder)
    domain = DOMAINS["maze2d-umaze"]
    assert domain.make is not None
    file = domain.make(DATA_STEPS, seed, folder / DATA)
    domain = replace(domain, episodes=lambda: open_file(file))
    config = RunConfig("maze2d-umaze", minutes=minutes, seed=seed)
    outcome = start_run(config, folder, console=console, domain=domain)
    if outcome.interrupted:
        raise KeyboardInterrupt
    judge(folder, episodes, 16, "track", 1, seed, None, "cpu", console)
    console.print(f"the demo took {time.monotonic() - begin:.0f} s; its run, picture and eval.json are in {folder}")
