"""The domains by name, and the generic one for any other dataset. Adding one is described in docs/adding.md."""

from __future__ import annotations

from pathlib import Path

from kdp.datasets import open_file
from kdp.datasets.minari_sets import data_folder, holds_dataset, is_minari_id, minari_folder, read_folder, read_minari
from kdp.domains.domain import Domain
from kdp.domains.locomotion import LOCOMOTION, locomotion_of_folder
from kdp.domains.maze2d import MAZE2D, maze_of_folder
from kdp.domains.toy import TOYS
from kdp.errors import UserError, did_you_mean

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (*TOYS, *MAZE2D, *LOCOMOTION)}


def find_domain(x: str) -> Domain:
    """A domain's name, a path to an .hdf5 or .npz file or to the folder of a Minari dataset, or a Minari id."""
    if x in DOMAINS:
        return DOMAINS[x]
    path = Path(x)
    if path.is_dir():
        inside = path.resolve().name == "data" and (path / "metadata.json").is_file()
        folder = path.resolve().parent if inside else path
        return _domain_of_folder(folder, folder.resolve().name, str(folder.resolve()))
    if path.suffix in (".hdf5", ".h5", ".npz") or path.exists():
        return Domain(path.stem, "steps from a file", episodes=lambda: open_file(path), source=str(path.resolve()))
    if is_minari_id(x):
        name = x.replace("/", "-")
        for folder in (data_folder() / x, minari_folder(x)):
            if holds_dataset(folder):
                return _domain_of_folder(folder, name, x)
        return Domain(name, "a Minari dataset", episodes=lambda: read_minari(x), source=x)
    raise UserError(
        f"{x!r} is neither a domain, nor a Minari id (namespace/name-v0), nor a path to an .hdf5 or .npz file or "
        "a dataset's folder. " + did_you_mean(x, DOMAINS)
    )


def _domain_of_folder(folder: Path, name: str, source: str) -> Domain:
    known = maze_of_folder(folder) or locomotion_of_folder(folder)
    return known or Domain(name, "a Minari dataset", episodes=lambda: read_folder(folder), source=source)
