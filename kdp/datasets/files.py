"""Dataset files: D4RL's HDF5 layout, and the same arrays in an .npz.

    observations (N, d_s)   actions (N, d_a)   rewards (N,)   terminals (N,)   timeouts (N,)

Only observations, actions and one of terminals and timeouts have to be there. Where timeouts are missing and there are
next_observations (N, d_s), an episode also ends where they are not the observations that follow. All else in a file is
ignored.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kdp.errors import UserError, did_you_mean
from kdp.files import reason
from kdp.windows import Episodes


def read_hdf5(path: str | Path) -> Episodes:
    """A file in D4RL's layout."""
    import h5py

    with _reading(path, "HDF5 file") as file, h5py.File(file, "r") as arrays:
        return check_arrays(str(arrays.attrs.get("name", file.name)), arrays)


def read_npz(path: str | Path) -> Episodes:
    """The arrays of D4RL's layout in an .npz."""
    with _reading(path, ".npz file") as file:
        if not zipfile.is_zipfile(file):
            raise zipfile.BadZipFile("it is not a zip archive, or it was cut short")
        with np.load(file, allow_pickle=False) as arrays:
            return check_arrays(file.name, arrays)


def check_arrays(name: str, arrays: Mapping[str, Any]) -> Episodes:
    """Episodes from the arrays of a dataset, or the rule they break. Only the arrays it needs are read."""
    for key in ("observations", "actions"):
        if key not in arrays:
            found = did_you_mean(key, arrays) if len(arrays) else "It holds no arrays."
            raise UserError(f"{name} has no array {key!r}. {found}")
    if "terminals" not in arrays and "timeouts" not in arrays:
        raise UserError(f"a dataset needs terminals or timeouts, to end its episodes; {name} has neither.")
    observations, actions = _matrix(name, "observations", arrays), _matrix(name, "actions", arrays)
    count = len(observations)
    if count == 0:
        raise UserError(f"a dataset needs at least one step; {name} is empty.")
    rewards = _column(name, "rewards", arrays, count)
    terminals = _column(name, "terminals", arrays, count)
    timeouts = _column(name, "timeouts", arrays, count)
    others = {"actions": actions, "rewards": rewards, "terminals": terminals, "timeouts": timeouts}
    for key, array in others.items():
        if len(array) != count:
            raise UserError(
                f"{name}: all arrays must have the same length; observations has {count} and {key} has {len(array)}."
            )
    if "timeouts" not in arrays and "next_observations" in arrays:
        following = _matrix(name, "next_observations", arrays)
        if following.shape == observations.shape:
            timeouts = np.append((following[:-1] != observations[1:]).any(1), True) & (terminals == 0)
    return Episodes.from_arrays(
        _finite(name, "observations", observations),
        _finite(name, "actions", actions),
        _finite(name, "rewards", rewards),
        _flags(name, "terminals", terminals),
        _flags(name, "timeouts", timeouts),
        name,
    )


@contextmanager
def _reading(path: str | Path, kind: str) -> Iterator[Path]:
    """Whatever goes wrong inside, in one sentence."""
    file = Path(path).expanduser()
    if file.is_dir():
        raise UserError(f"a dataset must be one file; {file} is a folder. Give the path of a file in it.")
    if not file.exists():
        raise UserError(f"there is no file {file}. Check the path; it is relative to {Path.cwd()}.")
    try:
        yield file
    except UserError:
        raise
    except Exception as error:  # a damaged file makes h5py, zipfile and numpy raise almost anything
        raise UserError(f"{file} is no readable {kind} ({reason(error)}). Make or copy it again.") from error


def _numbers(name: str, key: str, arrays: Mapping[str, Any]) -> np.ndarray:
    found = arrays[key]
    if isinstance(found, Mapping):
        raise UserError(f"{name}: {key} must be an array; it is a group of {', '.join(found) or 'nothing'}.")
    array = np.asarray(found)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{name}: {key} must hold numbers; its type is {array.dtype}. Store it as float32.")
    return array


def _matrix(name: str, key: str, arrays: Mapping[str, Any]) -> np.ndarray:
    array = _numbers(name, key, arrays)
    if array.ndim != 2 or array.shape[1] == 0:
        remedy = f"Store it as ({len(array)}, 1)." if array.ndim == 1 else "Make each step a row of numbers."
        raise UserError(f"{name}: {key} must have the shape (steps, values); it has {array.shape}. {remedy}")
    return array


def _column(name: str, key: str, arrays: Mapping[str, Any], count: int) -> np.ndarray:
    """An array with one number a step; zeros where the dataset has none."""
    if key not in arrays:
        return np.zeros(count, np.float32)
    array = _numbers(name, key, arrays)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{name}: {key} must have the shape (steps,); it has {array.shape}.")
    return array


def _finite(name: str, key: str, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite here, and is refused
        floats = array.astype(np.float32, copy=False)
    bad = ~np.isfinite(floats)
    if bad.any():
        first = tuple(np.argwhere(bad)[0].tolist())
        where = ", ".join(map(str, first))
        raise UserError(
            f"{name}: {key} must be finite as float32; the first of {int(bad.sum())} that are not is "
            f"{key}[{where}] = {array[first]}. Repair or remove the episodes with such steps."
        )
    return floats


def _flags(name: str, key: str, array: np.ndarray) -> np.ndarray:
    bad = (array != 0) & (array != 1)
    if bad.any():
        first = int(bad.argmax())
        raise UserError(f"{name}: {key} must be 0 or 1; the first other is {key}[{first}] = {array[first]}.")
    return array.astype(bool)
