"""The domains by name, and the generic one for a file or a Minari id. Adding one is described in docs/adding.md."""

from __future__ import annotations

from pathlib import Path

from kdp.datasets import open_file
from kdp.datasets.minari_sets import is_minari_id, read_minari
from kdp.domains.domain import Domain
from kdp.domains.maze2d import MAZE2D, maze_of_file
from kdp.domains.toy import TOYS
from kdp.errors import UserError, did_you_mean

FOLDER_DATA = "data.hdf5"  # what `kdp data make maze2d --out FOLDER` writes into its folder

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (*TOYS, *MAZE2D)}


def find_domain(x: str) -> Domain:
    """A domain's name, a path to an .hdf5 or .npz file, or a Minari id."""
    if x in DOMAINS:
        return DOMAINS[x]
    path = Path(x) / FOLDER_DATA if Path(x).is_dir() else Path(x)
    maze = maze_of_file(path)
    if maze is not None:
        return maze
    if path.suffix in (".hdf5", ".h5", ".npz") or path.exists():
        return Domain(path.stem, "steps from a file", episodes=lambda: open_file(path), source=str(path.resolve()))
    if is_minari_id(x):
        return Domain(x.replace("/", "-"), "a Minari dataset", episodes=lambda: read_minari(x), source=x)
    raise UserError(
        f"{x!r} is neither a domain, nor a Minari id (namespace/name-v0), nor a path to an .hdf5 or .npz file. "
        + did_you_mean(x, DOMAINS)
    )
