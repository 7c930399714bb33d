"""Datasets: from files (D4RL's HDF5 layout, .npz) and from Minari, always as `kdp.windows.Episodes`."""

from __future__ import annotations

from pathlib import Path

from kdp.datasets.files import read_hdf5, read_npz
from kdp.errors import UserError
from kdp.windows import Episodes

READERS = {".hdf5": read_hdf5, ".h5": read_hdf5, ".npz": read_npz}


def open_file(text: str | Path) -> Episodes:
    """The dataset in a file; the end of its name says how to read it."""
    reader = READERS.get(Path(text).suffix.lower())
    if reader is None:
        raise UserError(f"a dataset file must end in {', '.join(READERS)}; got {str(text)!r}.")
    return reader(text)
