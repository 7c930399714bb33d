"""`kdp demo`: data, training, closed-loop planning, a table and a picture, in a few minutes on two cores."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.domains.maze2d import UMAZE
from kdp.errors import UserError
from kdp.judge import EVAL, PICTURE, judge
from kdp.runs import CONFIG, INVERSE, start_run
from kdp.train import METRICS, MODEL, TRAINING

DATA_STEPS = 300_000
DATA = "demo-data"
OURS = {DATA, CONFIG, MODEL, INVERSE, TRAINING, METRICS, EVAL, PICTURE, "tensorboard"}


def run_demo(folder: Path, minutes: float, seed: int, episodes: int, console: Console) -> None:
    """An earlier demo in `folder` is replaced; any other run there is left alone."""
    begin = time.monotonic()
    config = RunConfig("maze2d-umaze", minutes=minutes, seed=seed)
    config.check()
    if episodes < 1:
        raise UserError(f"episodes must be 1 or more; got {episodes}.")
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if found - OURS or (found and DATA not in found):
        raise UserError(f"{folder} holds something that is not a demo's; choose another folder with --run.")
    if found:
        shutil.rmtree(folder)
    domain = DOMAINS["maze2d-umaze"]
    data = UMAZE.make(DATA_STEPS, seed, folder / DATA)
    domain = replace(domain, episodes=lambda: UMAZE.read(data))
    outcome = start_run(config, folder, console=console, domain=domain)
    if outcome.interrupted:
        raise KeyboardInterrupt
    judge(folder, episodes, 16, "track", 1, seed, None, "cpu", console)
    console.print(f"the demo took {time.monotonic() - begin:.0f} s; its run, picture and eval.json are in {folder}")
