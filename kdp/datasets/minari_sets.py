"""Minari datasets: in any folder, or by their id on this machine, else from Minari's remote where there is a network.

A dataset's folder holds data/metadata.json and, beside it, what Minari stores the steps in."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from kdp.datasets.files import check_arrays
from kdp.errors import UserError, did_you_mean
from kdp.files import check_room, reason, replacing_folder
from kdp.windows import Episodes

ANSWER_SECONDS = 8.0
"""How long the remote may take to say what it holds. The download after that has no limit."""
METADATA = "data/metadata.json"
FILES = {"metadata.json", "main_data.hdf5"}  # beside each other in a dataset that is written here
Answer = TypeVar("Answer")


def data_folder() -> Path:
    """Where made datasets are kept, as in a root folder of Minari's: $KDP_DATA, else data/ in the current folder."""
    return Path(os.environ.get("KDP_DATA", "data"))


def dataset_id(name: str) -> str:
    """What data made here are called in Minari."""
    return f"regenerated/{name}-v0"


def is_minari_id(text: str) -> bool:
    """Does this look like "name-v0" or "namespace/name-v0"?"""
    return re.fullmatch(r"([\w-]+/)*[\w-]+-v\d+", text) is not None


def read_minari(dataset_id: str) -> Episodes:
    """A Minari dataset by its id, downloaded if it is not on this machine."""
    if not is_minari_id(dataset_id):
        raise UserError(f"a Minari id looks like namespace/name-v0; got {dataset_id!r}.")
    folder = minari_folder(dataset_id)
    if not (folder / "data").exists():
        _download(dataset_id)
    return read_folder(folder)


def minari_folder(dataset_id: str) -> Path:
    """Where Minari keeps this dataset, or would."""
    from minari.storage.datasets_root_dir import get_dataset_path

    return get_dataset_path(dataset_id)


def holds_dataset(folder: Path) -> bool:
    return (folder / METADATA).is_file()


def read_metadata(folder: Path) -> dict[str, Any]:
    """What the dataset in a folder says about itself."""
    from minari.dataset.minari_storage import MinariStorage

    if not holds_dataset(folder):
        raise UserError(
            f"a folder must hold a Minari dataset to be read; {folder} has no {METADATA}. "
            "Make a set with `kdp data make ...`, or give the path of an .hdf5 or .npz file."
        )
    try:
        found = MinariStorage.read_raw_metadata(folder / "data")
        if not isinstance(found, dict):
            raise ValueError(f"{METADATA} holds no names and values")
        return found
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error


def read_folder(folder: Path, name: str | None = None) -> Episodes:
    """The Minari dataset in a folder, called by its id unless named. Of observations in a Dict, the entry
    "observation"."""
    import minari

    name = name or str(read_metadata(folder).get("dataset_id", folder))
    try:
        arrays = _arrays(name, minari.MinariDataset(folder / "data"))
    except UserError:
        raise
    except Exception as error:  # a damaged dataset raises whatever its storage format happens to raise
        raise _unreadable(folder, error) from error
    return check_arrays(name, arrays)


def write_folder(
    folder: Path,
    episodes: Iterable[Any],
    observation_space: Any,
    action_space: Any,
    spec: Any,
    about: Mapping[str, Any],
    size: int,
) -> None:
    """A Minari dataset of about `size` bytes from Minari's EpisodeBuffers, in place of the one that is there: all of it
    or nothing."""
    import minari
    from minari.dataset.minari_storage import MinariStorage

    with replacing_folder(folder.absolute() / "data") as temporary:  # Minari miscounts below a relative path
        check_room(temporary, size)
        storage = MinariStorage.new(temporary, observation_space, action_space, spec)
        storage.update_metadata({"minari_version": minari.__version__, **about})
        storage.update_episodes(episodes)


def check_free(folder: Path, what: str, ours: Callable[[Mapping[str, Any]], bool]) -> None:
    """Only a dataset whose metadata say that it is `ours` is ever replaced."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{what} go to a folder; {folder} is a file. Choose another with --out.")
    found = sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.exists() else []
    if not found:
        return
    try:
        replaceable = holds_dataset(folder) and ours(read_metadata(folder))
    except UserError:
        replaceable = False
    if not replaceable or not {path.name for path in (folder / METADATA).parent.iterdir()} <= FILES:
        raise UserError(
            f"{what} go to a new or empty folder, or replace such data; {folder} holds something else "
            f"({shorten(', '.join(found), 60, placeholder=' ...')}). Choose another with --out, or empty it yourself."
        )


def in_time(call: Callable[[], Answer]) -> Answer:
    """What a call over the network answers, in a thread that can be left behind: TimeoutError after ANSWER_SECONDS."""
    answer: dict[str, Any] = {}

    def ask() -> None:
        try:
            answer["value"] = call()
        except Exception as error:
            answer["error"] = error

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if "value" in answer:
        return answer["value"]
    raise answer.get("error", TimeoutError(f"no answer in {ANSWER_SECONDS:g} s"))


def _arrays(dataset_id: str, dataset: Any) -> dict[str, np.ndarray]:
    """Flat arrays of all steps. Minari keeps the observation after the last step too; it is dropped."""
    from gymnasium.spaces import Dict

    space, nested = dataset.observation_space, isinstance(dataset.observation_space, Dict)
    _check_space(dataset_id, "observation", space.get("observation", space) if nested else space)
    _check_space(dataset_id, "action", dataset.action_space)
    keys = ("observations", "actions", "rewards", "terminals", "timeouts")
    parts: dict[str, list[np.ndarray]] = {key: [] for key in keys}
    for episode in dataset.iterate_episodes():
        steps = len(episode)
        states = episode.observations["observation"] if nested else episode.observations
        ended = np.asarray(episode.terminations, bool)
        parts["observations"].append(states[:steps])
        parts["actions"].append(episode.actions)
        parts["rewards"].append(episode.rewards)
        parts["terminals"].append(ended)
        parts["timeouts"].append((np.arange(steps) == steps - 1) & ~ended)  # whatever ends here was cut short
    if not parts["actions"]:
        raise UserError(f"a dataset needs at least one step; {dataset_id} has no episodes.")
    return {key: np.concatenate(arrays) for key, arrays in parts.items()}


def _check_space(dataset_id: str, what: str, space: Any) -> None:
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or len(space.shape) != 1:
        entry = " or a Dict with such an entry 'observation'" if what == "observation" else ""
        found = shorten(str(space), 120, placeholder=" ...")
        raise UserError(f"{what}s must be a vector, a 1-D Box{entry}; {dataset_id} has {what}s in {found}.")


def _download(dataset_id: str) -> None:
    """Ask the remote first: with no network it may try for minutes."""
    import minari

    def ask() -> dict[str, Any]:
        find_hub()
        return minari.list_remote_datasets(prefix=dataset_id.rsplit("-v", 1)[0])

    try:
        known = in_time(ask)
    except Exception as error:  # each remote has errors of its own, without a common base
        raise _missing(dataset_id, error) from error
    if dataset_id not in known:
        close = did_you_mean(dataset_id, known) if known else "Check the spelling."
        raise UserError(f"dataset {dataset_id} is neither on this machine nor on Minari's remote. {close}")
    try:
        with redirect_stdout(sys.stderr):  # Minari prints its progress
            minari.download_dataset(dataset_id)
    except Exception as error:
        raise _missing(dataset_id, error) from error


def find_hub() -> None:
    """OSError where the hub's name is not found: its client would try again and again, and print every time."""
    from huggingface_hub.constants import ENDPOINT

    if os.environ.get("MINARI_REMOTE", "hf://").startswith("hf://") and not getproxies():  # a proxy may find it
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"the Minari dataset in {folder} cannot be read ({reason(error)}). Make, copy or download it again."
    )


def _missing(dataset_id: str, error: Exception) -> UserError:
    return UserError(
        f"dataset {dataset_id} is not on this machine and cannot be downloaded ({reason(error)}). "
        "Make a set with `kdp data make ...`, or give the path of an .hdf5 or .npz file."
    )
