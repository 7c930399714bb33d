"""D4RL's own files, from D4RL's own server."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from kdp.datasets import minari_sets
from kdp.datasets.minari_sets import in_time, is_minari_id
from kdp.errors import UserError, did_you_mean
from kdp.files import reason, replacing

SERVER = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
KINDS = ("random", "medium", "expert", "medium-expert", "medium-replay", "full-replay")
ANT = "ant_maze_v2/Ant_maze_{}-maze_noisy_multistart_{}_multigoal_{}_sparse_fixed.hdf5"
FILES: dict[str, str] = {
    **{
        f"{body}-{kind}-v2": f"gym_mujoco_v2/{body}_{kind.replace('-', '_')}-v2.hdf5"
        for body in ("halfcheetah", "hopper", "walker2d", "ant")
        for kind in KINDS
    },
    **{f"maze2d-{size}-v1": f"maze2d/maze2d-{size}-sparse-v1.hdf5" for size in ("umaze", "medium", "large")},
    "antmaze-umaze-v2": ANT.format("u", False, False),
    "antmaze-umaze-diverse-v2": ANT.format("u", True, True),
    "antmaze-medium-play-v2": ANT.format("big", True, False),
    "antmaze-medium-diverse-v2": ANT.format("big", True, True),
    "antmaze-large-play-v2": ANT.format("hardest", True, False),
    "antmaze-large-diverse-v2": ANT.format("hardest", True, True),
    **{
        f"{task}-{kind}-v1": f"hand_dapg_v1/{task}-{kind}-v1.hdf5"
        for task in ("pen", "hammer", "door", "relocate")
        for kind in ("human", "cloned", "expert")
    },
}
"""D4RL's names, and where its server keeps them."""


def file_name(name: str) -> str:
    """What D4RL calls the file of a dataset."""
    if "/" in name and is_minari_id(name):
        raise UserError(f"{name!r} is one of Minari's, which training fetches by itself. Try `kdp train {name}`.")
    if name not in FILES:
        raise UserError(f"{name!r} is not a dataset of D4RL's that is known here. {did_you_mean(name, FILES)}")
    return FILES[name].rsplit("/", 1)[1]


def download(name: str, out: Path) -> Path:
    """Fetches a dataset of D4RL's to `out`: all of it or nothing."""
    import h5py

    file_name(name)
    url = f"{SERVER}/{FILES[name]}"
    try:
        answer: Any = in_time(lambda: urllib.request.urlopen(url, timeout=minari_sets.ANSWER_SECONDS))
    except (OSError, HTTPException) as error:
        raise _failed(name, url, error) from error
    announced = int(answer.headers.get("Content-Length") or 0)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with replacing(out) as temporary, answer:
        with temporary.open("wb") as file, Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(f"downloading {name}", total=announced or None)
            while chunk := _read(answer, name, url):
                file.write(chunk)
                bar.advance(task, len(chunk))
        size = temporary.stat().st_size
        if announced and size != announced:
            raise UserError(
                f"the transfer of {name} broke off after {size:,} of {announced:,} bytes; nothing was kept. Try again."
            )
        if not h5py.is_hdf5(temporary):
            raise UserError(
                f"{url} did not answer with an HDF5 file; nothing was kept. Open it in a browser to see why."
            )
    return out


def _read(answer: Any, name: str, url: str) -> bytes:
    try:
        return answer.read(2**20)
    except (OSError, HTTPException) as error:
        raise _failed(name, url, error) from error


def _failed(name: str, url: str, error: Exception) -> UserError:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError):
        why = f"the server answered {error.code} {error.reason}"
    else:
        why = reason(cause) if isinstance(cause, Exception) else str(cause)
    return UserError(
        f"{name} cannot be downloaded from {url} ({why}). Get the file where there is a network and train on its path, "
        "or collect data with `kdp data collect`."
    )
