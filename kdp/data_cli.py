"""`kdp data`: each subcommand calls one function."""

from __future__ import annotations

import re
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Column, Table

from kdp.bench.arguments import numbers_of
from kdp.datasets.minari_sets import data_folder, dataset_id
from kdp.domains import DOMAINS, find_domain
from kdp.domains.locomotion import REMEDIES
from kdp.domains.maze2d import custom_maze, read_map
from kdp.errors import UserError, did_you_mean

data = tyro.extras.SubcommandApp()


@data.command(name="list")
def data_list() -> None:
    """The built-in domains.

    Example: kdp data list
    """
    built = {name: "Made with `kdp data make NAME`" if domain.make else "Built in" for name, domain in DOMAINS.items()}
    ways = built | dict.fromkeys(REMEDIES, "Collected with `kdp data collect`")
    console = Console(highlight=False)
    console.print("Name, horizon/stride of a plan in steps, and what it is.")
    for way in dict.fromkeys(ways.values()):  # a table each: short names leave more room to say what it is
        columns = Column(no_wrap=True, style="bold"), Column(no_wrap=True, justify="right"), Column()
        table = Table(*columns, box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        for name, domain in DOMAINS.items():
            if ways[name] == way:
                table.add_row(name, f"{domain.horizon}/{domain.stride}", domain.about)
        console.print(f"\n{way}:", table, sep="\n")
    console.print("\nAlso: any .hdf5 (D4RL layout), .npz or Minari folder by its path; any Minari id.")


@data.command(name="info")
def data_info(x: tyro.conf.Positional[str]) -> None:
    """Counts, shapes, episode lengths and returns of a dataset.

    Examples: kdp data info maze2d-umaze
    / kdp data info data/regenerated/maze2d-umaze-v0

    Args:
        x: A domain's name, a path to an .hdf5 or .npz file or to a Minari dataset's folder, or a Minari id.
    """
    from kdp.datasets.info import print_info

    print_info(find_domain(x).episodes(), Console())


@data.command(name="make")
def data_make(
    x: tyro.conf.Positional[str],
    steps: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    map: Path | None = None,  # noqa: A002
) -> None:
    """Make a domain's dataset, as a Minari dataset, in place of the one that is there.

    Examples: kdp data make maze2d-umaze --steps 200000
    / kdp data make maze2d --map my-maze.json --steps 200000 --out my-maze

    Args:
        x: A domain's name (see `kdp data list`), or maze2d for a map of your own.
        steps: How many steps; the domain's usual number unless given.
        seed: The same seed makes the same data.
        out: The dataset's folder, instead of the usual regenerated/NAME-v0 in $KDP_DATA (or data/).
        map: A maze in JSON: a list of rows, 1 a wall, 0 free.
    """
    if (x == "maze2d") != (map is not None):
        raise UserError(
            "a map of your own is made with `kdp data make maze2d --map FILE.json --out DIR`: both or neither."
        )
    if map is not None:
        rows = read_map(map)
        if out is None:
            raise UserError("a map of your own needs a folder to go to; give --out DIR.")
        made = custom_maze(rows).make
        assert made is not None
        path = made(steps, seed, out)
        Console().print(f"wrote {path}; train on it with `kdp train {out}`")
        return
    makers = {name: domain.make for name, domain in DOMAINS.items() if domain.make}
    if x in REMEDIES:
        raise UserError(f"the data of {x} are not made but collected. {REMEDIES[x]}")
    if x not in makers:
        built_in = " It is built in, and needs no data." if x in DOMAINS else ""
        raise UserError(f"{x!r} is not a dataset that can be made.{built_in} {did_you_mean(x, makers)}")
    path = makers[x](steps, seed, out)
    Console().print(f"wrote {path}; look at it with `kdp data info {path}`")


@data.command(name="collect")
def data_collect(
    env: str,
    policy: str,
    steps: int = 1_000_000,
    stochastic: bool = True,
    noise: float = 0.0,
    mix: str | None = None,
    seed: int = 0,
    jobs: int | None = None,
    name: str | None = None,
    out: Path | None = None,
) -> None:
    """Let behaviour policies act in a Gymnasium environment and keep what happens, as a Minari dataset.

    Examples: kdp data collect --env Hopper-v5 --policy hopper-medium.npz --name hopper-medium
    / kdp data collect --env Hopper-v5 --policy medium.npz,expert.npz --mix 1,1 --steps 200000 --out my-hopper

    Args:
        env: Id of an environment with vectors for observations and actions, of gymnasium or gymnasium-robotics.
        policy: .npz files of policies, separated by commas; kdp/datasets/policies.py describes the format.
        steps: How many steps in all.
        stochastic: Draw actions as the policy does; --no-stochastic takes its mean actions.
        noise: Standard deviation of further noise on actions, which lie in [-1, 1].
        mix: The policies' shares of the steps, separated by commas; equal unless given.
        seed: The same seed makes the same data.
        jobs: Processes; all cores unless given. The data do not depend on it.
        name: What to call the data: regenerated/NAME-v0 in $KDP_DATA (or data/). A domain's name gives it its data.
        out: The dataset's folder, instead of --name.
    """
    from kdp.datasets.collect import collect

    if (name is None) == (out is None):
        raise UserError("collected data need a name or a folder; give --name NAME or --out DIR, one of them.")
    called = re.sub(r"[^\w-]+", "-", out.resolve().name) if out else str(name)
    if re.fullmatch(r"[\w-]+", called) is None:
        raise UserError(f"a name must be letters, digits, - and _; got {called!r}.")
    shares = None if mix is None else numbers_of("mix", mix)
    folder = out or data_folder() / dataset_id(called)
    policies = policy.split(",")
    options = {"stochastic": stochastic, "noise": noise, "mix": shares, "seed": seed, "jobs": jobs}
    collect(folder, called, env, policies, steps, **options)  # type: ignore[arg-type]
    train = called if name in DOMAINS else folder
    Console().print(f"wrote {folder}; look at it with `kdp data info {folder}`, train on it with `kdp train {train}`")


@data.command(name="download")
def data_download(x: tyro.conf.Positional[str], out: Path | None = None) -> None:
    """Fetch one of D4RL's own files, such as hopper-medium-v2. Train on its path; judge with --domain.

    Examples: kdp data download hopper-medium-v2
    / kdp train data/d4rl/hopper_medium-v2.hdf5 --run runs/hopper
    / kdp eval runs/hopper --domain hopper-medium

    Args:
        x: D4RL's name of a dataset.
        out: The file to write, instead of d4rl/ in $KDP_DATA (or data/). One that is there is kept.
    """
    from kdp.datasets.d4rl import download, file_name

    path = out or data_folder() / "d4rl" / file_name(x)
    there = path.exists()
    if not there:
        download(x, path)
    Console().print(f"{path} {'is already there' if there else 'is complete'}; train on it with `kdp train {path}`")
