"""The command as a person uses it: what goes well, what is refused, and Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers import COMMAND, walks
from safetensors.torch import save_file

from kdp.config import RunConfig
from kdp.domains import DOMAINS, find_domain
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.runs import start_run

TINY = ("--steps", 5, "--batch", 32, "--network.width", 16)
COMMANDS = ["demo", "data", "data list", "data info", "data make", "train", "eval", "plan", "table", "bench"]
COMMANDS += [f"bench {study}" for study in ("fields", "maze2d", "ablations", "candidates", "horizon", "curves")]


def steps(count: int = 60, length: int = 20, **other) -> dict[str, np.ndarray]:
    """Random arrays in D4RL's layout."""
    random = np.random.default_rng(0)
    arrays = {
        "observations": random.normal(size=(count, 3)).astype(np.float32),
        "actions": random.normal(size=(count, 2)).astype(np.float32),
        "rewards": np.zeros(count, np.float32),
        "terminals": np.zeros(count, bool),
        "timeouts": np.arange(count) % length == length - 1,
    }
    return {key: array for key, array in (arrays | other).items() if array is not None}


def write_file(path: Path, **other) -> Path:
    arrays = steps(**other)
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Tiny runs to copy from: a toy, one trained on a file, and two that plan toward goals."""
    folder = tmp_path_factory.mktemp("trained")
    config = RunConfig("toy", steps=2, batch=16, network=NetworkConfig(width=8, blocks=1, noise=2))
    start_run(config, folder / "toy")
    of_file = find_domain(str(write_file(folder / "steps.npz")))
    start_run(replace(config, dataset=of_file.source, horizon=8), folder / "file", domain=of_file)
    maze = replace(DOMAINS["maze2d-umaze"], episodes=lambda: walks([200]))
    config = replace(config, dataset="maze2d-umaze", horizon=16)
    start_run(config, folder / "maze", domain=maze)
    network, diffusion = NetworkConfig("mlp", width=8, blocks=1), DiffusionConfig(steps=3)
    start_run(
        replace(config, method="diffuser", network=network, diffusion=diffusion), folder / "diffuser", domain=maze
    )
    return folder


@pytest.fixture
def folder(tmp_path, trained):
    """The folder the command runs in, with the runs "toy", "file", "maze" and "diffuser"."""
    for name in ("toy", "file", "maze", "diffuser"):
        shutil.copytree(trained / name, tmp_path / name)
    return tmp_path


# What goes well


def test_the_list_names_every_domain(kdp_command):
    code, out, _ = kdp_command("data", "list")
    assert code == 0 and all(name in out for name in DOMAINS)


def test_the_list_has_a_line_for_every_domain_in_80_columns(kdp_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.rstrip() for line in kdp_command("data", "list")[1].splitlines()]
    assert max(map(len, lines)) <= 80
    for name, domain in DOMAINS.items():
        line = next(line for line in lines if line.startswith(f"{name} "))
        assert line.split(maxsplit=2)[1:] == [f"{domain.horizon}/{domain.stride}", domain.about]
    assert lines[-1].startswith("Also: ")


def test_a_maze_is_made_looked_at_trained_and_judged_with_both_executors(kdp_command, tmp_path):
    code, out, _ = kdp_command("data", "make", "maze2d-umaze", "--steps", 3000)
    assert code == 0 and "regenerated/maze2d-umaze-v0" in out.replace("\n", "")
    tables = []
    for name in (tmp_path / "data/regenerated/maze2d-umaze-v0", "regenerated/maze2d-umaze-v0", "maze2d-umaze"):
        code, out, _ = kdp_command("data", "info", name)
        assert code == 0 and "3,000" in out and "4 numbers a step" in out
        tables.append(out)
    assert tables[0] == tables[1] == tables[2]

    assert kdp_command("train", "maze2d-umaze", *TINY, "--horizon", 32, "--run", "m")[0] == 0
    for executor in ("action", "track"):
        code, out, _ = kdp_command("eval", "m", "--episodes", 2, "--candidates", 2, "--executor", executor)
        assert code == 0 and executor in out
        result = json.loads((tmp_path / "m/eval.json").read_text())
        assert result["executor"] == executor and result["dataset"] == "regenerated/maze2d-umaze"
    assert (tmp_path / "m/rollouts.png").read_bytes().startswith(b"\x89PNG")

    code, _, _ = kdp_command("plan", "m", "--observation=-1,-1,0,0", "--goal=-1,1", "--out", "plan.png")
    assert code == 0 and (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_trained_and_says_how_to_judge_it(kdp_command, tmp_path):
    code, _, err = kdp_command("train", "toy", *TINY, "--run", "r")
    assert code == 0 and "trained 5 steps" in err and "kdp eval r" in err
    assert {"config.json", "model.safetensors", "training.safetensors", "metrics.jsonl"} <= {
        path.name for path in (tmp_path / "r").iterdir()
    }


def test_a_stopped_run_says_how_to_go_on_and_does(kdp_command):
    code, _, err = kdp_command("train", "toy", *TINY, "--run", "r", "--stop-after", 2)
    assert code == 0 and "stopped after step 2" in err and "kdp train --resume r" in err
    code, _, err = kdp_command("train", "--resume", "r")
    assert code == 0 and "trained 5 steps" in err


def test_an_evaluation_is_written_with_its_provenance(kdp_command, folder):
    code, out, _ = kdp_command("eval", "toy", "--episodes", 3)
    assert code == 0 and "score" in out and "success" in out
    result = json.loads((folder / "toy/eval.json").read_text())
    assert {"score", "success", "plan_ms_p50", "commit", "versions", "device", "train_seed"} <= result.keys()
    assert (result["episodes"], result["candidates"], result["executor"]) == (3, 16, "action")
    assert result["plan_ms_p50"] > 0 and result["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("flags, shown, expected", [
    ([], "planning every 1 steps", {"chunk": 1, "warm": 0, "guidance": 0, "nfe": 3, "nfe_first": 3, "bef": 6}),
    (["--chunk", 0], "one plan, open loop", {"chunk": 0, "warm": 0, "nfe": 3, "bef": 6, "temperature": 1}),
    (["--chunk", 20, "--warm", 2], "each from the last", {"chunk": 20, "warm": 2, "nfe": 2, "nfe_first": 3, "bef": 4}),
    (["--chunk", 50, "--guidance", 0.1], "0.1", {"guidance": 0.1, "nfe": 3}),
    (["--temperature", 0.25], "0.25", {"temperature": 0.25}),
    (["--temperature", 0.0], "temperature", {"temperature": 0.0}),
])  # fmt: skip
def test_diffuser_is_judged_in_open_loop_from_the_last_plan_and_guided(kdp_command, folder, flags, shown, expected):
    code, out, err = kdp_command("eval", "diffuser", "--episodes", 2, "--candidates", 2, *flags)
    assert code == 0 and shown in " ".join(out.split()), err
    result = json.loads((folder / "diffuser/eval.json").read_text())
    assert {key: result[key] for key in expected} == expected and result["plan_ms_p50"] > 0


def test_a_plan_is_written_as_json_with_one_action_a_step(kdp_command, folder):
    code, out, _ = kdp_command("plan", "toy", "--observation", "0.5,0,0", "--candidates", 7, "--out", "plan.json")
    assert code == 0 and "8 actions" in out
    plan = json.loads((folder / "plan.json").read_text())
    shapes = {key: np.shape(plan[key]) for key in ("actions", "states", "candidates", "scores")}
    assert shapes == {"actions": (8, 1), "states": (8, 3), "candidates": (7, 8, 4), "scores": (7,)}
    np.testing.assert_allclose(plan["states"][0], [0.5, 0, 0], atol=1e-5)


def test_a_plan_without_positions_is_drawn(kdp_command, folder):
    assert kdp_command("plan", "toy", "--observation", "0.5,0,0", "--out", "new/plan.png")[0] == 0
    assert (folder / "new/plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("words", [["--observation=-0.5,0,0"], ["--observation", "-0.5,0,0"]], ids=["equals", "space"])
def test_an_observation_may_begin_with_a_minus(kdp_command, folder, words):
    assert kdp_command("plan", "toy", *words, "--out", "plan.json")[0] == 0
    np.testing.assert_allclose(json.loads((folder / "plan.json").read_text())["states"][0], [-0.5, 0, 0], atol=1e-5)


@pytest.mark.parametrize("name", ["steps.hdf5", "steps.npz"])
def test_a_file_is_trained_on_and_its_stride_is_undone_in_a_plan(kdp_command, tmp_path, name):
    write_file(tmp_path / name)
    code, _, _ = kdp_command("train", name, *TINY, "--horizon", 8, "--stride", 2)
    assert code == 0
    assert kdp_command("plan", "runs/steps", "--observation", "0,0,0", "--out", "plan.json")[0] == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert np.shape(plan["actions"]) == (8, 2) and np.shape(plan["states"]) == (4, 3)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_an_example(kdp_command, command):
    code, out, _ = kdp_command(*command.split(), "--help")
    assert code == 0 and "xample" in out and f"kdp {command}" in out


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "kdp", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and all(word in done.stdout for word in ("demo", "data", "train", "eval", "plan"))


# What is refused


@dataclass(frozen=True)
class Bad:
    """A command line, what its one sentence must say (nothing: the parser's own words), and what goes before it."""

    line: str
    says: tuple[str, ...] = ()
    before: Callable[[Path, pytest.MonkeyPatch], object] | None = None


def with_file(name: str, **other):
    return lambda folder, patch: write_file(folder / name, **other)


def with_text(name: str, text: str):
    def write(folder, patch):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return write


def spoiled(key: str, value: float) -> np.ndarray:
    array = steps()[key].copy()
    array[7, 1] = array[9, 0] = value
    return array


def cut_short(name: str):
    return lambda folder, patch: (folder / name).write_bytes((folder / name).read_bytes()[:-50])


def foreign(folder, patch):
    save_file({"weights.a": torch.zeros(2)}, folder / "toy/model.safetensors")


def of_another_size(folder, patch):
    shutil.copy(folder / "file/model.safetensors", folder / "toy/model.safetensors")


def without_a_part(folder, patch):
    about = json.loads((folder / "toy/config.json").read_text())
    del about["config"]["drift"]
    (folder / "toy/config.json").write_text(json.dumps(about))


def offline(folder, patch):
    def no_network():
        raise ConnectionError("no route to host")

    patch.setenv("MINARI_DATASETS_PATH", str(folder))
    patch.setattr("kdp.datasets.minari_sets.find_hub", no_network)


def little_data(folder, patch):
    """Whatever is made is small: a refusal that comes too late does not cost minutes."""
    from kdp.domains import maze2d

    make = maze2d.make_maze_data

    def few(folder, name, rows, cell, limit, count, seed=0):
        return make(folder, name, rows, cell, limit, min(count, 300), seed)

    patch.setattr(maze2d, "make_maze_data", few)


def little_data_and(*names: str):
    def prepare(folder, patch):
        little_data(folder, patch)
        for name in names:
            with_text(name, "mine")(folder, patch)

    return prepare


needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")

BOX = '{"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -1], "high": [1, 1]}'
HALF = {"total_episodes": 1, "data_format": "hdf5", "dataset_id": "half-v0"}
HALF |= {"observation_space": BOX, "action_space": BOX}

BAD = {
    "missing file": Bad("train none.hdf5 --run n", ("there is no file none.hdf5",)),
    "missing file to look at": Bad("data info none.npz", ("there is no file none.npz",)),
    "not HDF5": Bad("train a.hdf5 --run n", ("a.hdf5 is no readable HDF5 file",), with_text("a.hdf5", "hello")),
    "not npz": Bad("train a.npz --run n", ("a.npz is no readable .npz file",), with_text("a.npz", "hello")),
    "another ending": Bad("train a.csv --run n", (".hdf5", ".npz", "a.csv"), with_text("a.csv", "1,2")),
    "a folder that is no dataset": Bad(
        "train toy/ --run n", ("must hold a Minari dataset", "toy has no data/metadata")
    ),
    "half a dataset": Bad(
        "train half --run n",
        ("half cannot be read (No data found",),
        with_text("half/data/metadata.json", json.dumps(HALF)),
    ),
    "a dataset without its description": Bad(
        "data info half", ("half has no data/metadata.json",), with_text("half/data/main_data.hdf5", "")
    ),
    "a damaged description": Bad(
        "data info half", ("half cannot be read (", "Make, copy"), with_text("half/data/metadata.json", "{")
    ),
    "a person's folder to make data in": Bad(
        "data make maze2d-umaze --steps 300 --out toy", ("new or empty folder", "toy holds", "--out")
    ),
    "a person's dataset to make data in": Bad(
        "data make maze2d-umaze --steps 300 --out half",
        ("half holds something else (data)",),
        with_text("half/data/metadata.json", '{"dataset_id": "mine-v0"}'),
    ),
    "a file to make data in": Bad(
        "data make maze2d-umaze --steps 300 --out a", ("a is a file", "--out"), with_text("a", "mine")
    ),
    "missing array": Bad("train a.hdf5 --run n", ("no array 'actions'",), with_file("a.hdf5", actions=None)),
    "unequal lengths": Bad(
        "train a.hdf5 --run n",
        ("same length", "observations has 60 and actions has 59"),
        with_file("a.hdf5", actions=np.zeros((59, 2))),
    ),
    "NaN": Bad(
        "train a.hdf5 --run n",
        ("must be finite", "first of 2", "observations[7, 1] = nan"),
        with_file("a.hdf5", observations=spoiled("observations", np.nan)),
    ),
    "infinity": Bad(
        "train a.npz --run n", ("actions[7, 1] = -inf",), with_file("a.npz", actions=spoiled("actions", -np.inf))
    ),
    "empty dataset": Bad(
        "train a.hdf5 --run n",
        ("at least one step", "is empty"),
        with_file("a.hdf5", **{key: array[:0] for key, array in steps().items()}),
    ),
    "horizon too long": Bad(
        "train a.hdf5 --horizon 24 --run n", ("horizon=24", "has 20 steps", "Try horizon=20"), with_file("a.hdf5")
    ),
    "stride does not divide": Bad(
        "train toy --horizon 8 --stride 3 --steps 2 --run n", ("multiple of the stride", "Try horizon=6 stride=3")
    ),
    "horizon zero": Bad("train toy --horizon 0 --steps 2 --run n", ("horizon", "got")),
    "stride zero": Bad("train toy --stride 0 --steps 2 --run n", ("stride", "got")),
    "negative horizon": Bad("train toy --horizon -8 --steps 2 --run n", ("horizon", "-8")),
    "unknown domain": Bad("train maze2d-umaz --run n", ("'maze2d-umaz'", "Did you mean 'maze2d-umaze'?")),
    "unknown domain to look at": Bad("data info toyy", ("Did you mean 'toy'?",)),
    "unknown domain to make": Bad("data make maze2d-umase", ("Did you mean 'maze2d-umaze'?",)),
    "built-in domain to make": Bad("data make toy", ("built in",)),
    "no steps to make": Bad("data make maze2d-umaze --steps 0", ("1 step or more", "got 0"), little_data),
    "unknown method": Bad("train toy --method kpd --run n", ("'kpd' is not a method", "Did you mean 'kdp'?")),
    "no dataset": Bad("train --run n", ("name what to train on", "toy")),
    "observation of the wrong size": Bad("plan toy --observation 1,2", ("observation must be 3 numbers", "(2,)")),
    "observation that is not numbers": Bad("plan toy --observation 1,b,0", ("numbers separated by commas", "'1,b,0'")),
    "observation that is not finite": Bad("plan toy --observation 1,nan,0", ("must be finite", "nan")),
    "missing goal": Bad("plan maze --observation 0,0,0,0", ("goal of 2 numbers", "Give one")),
    "goal of the wrong size": Bad("plan maze --observation 0,0,0,0 --goal 1", ("goal must be 2 numbers",)),
    "goal where there is none": Bad("plan toy --observation 0,0,0 --goal 1", ("trained without goals",)),
    "truncated weights": Bad("eval toy", ("model.safetensors", "may be truncated"), cut_short("toy/model.safetensors")),
    "truncated checkpoint": Bad(
        "train --resume toy", ("training.safetensors", "may be truncated"), cut_short("toy/training.safetensors")
    ),
    "foreign weights": Bad("plan toy --observation 0,0,0", ("not a checkpoint of kdp", "'kdp-3'"), foreign),
    "weights of another run": Bad("plan toy --observation 0,0,0", ("does not fit",), of_another_size),
    "config that is not JSON": Bad(
        "eval toy", ("config.json cannot be read as JSON",), with_text("toy/config.json", "{")
    ),
    "config of something else": Bad(
        "eval toy", ("not the config of a run of this version",), with_text("toy/config.json", "{}")
    ),
    "config without a part": Bad("eval toy", ("config.json", "drift"), without_a_part),
    "no run to judge": Bad("eval none", ("none holds no run",)),
    "no run to plan with": Bad("plan none --observation 1", ("none holds no run",)),
    "no run to resume": Bad("train --resume none", ("none holds no run",)),
    "run folder below a file": Bad(
        "train toy --steps 2 --run a/r", ("cannot make the run folder a/r",), with_text("a", "")
    ),
    "run folder that is a file": Bad(
        "train toy --steps 2 --run a", ("cannot make the run folder a",), with_text("a", "")
    ),
    "run folder of another run": Bad("train toy --steps 2 --run file", ("file already holds a run", "--resume file")),
    "steps and minutes": Bad("train toy --steps 2 --minutes 1 --run n", ("not both", "steps=2 minutes=1.0")),
    "no steps": Bad("train toy --steps 0 --run n", ("steps must be more than zero; got 0",)),
    "no minutes": Bad("train toy --minutes 0 --run n", ("minutes must be more than zero",)),
    "no batch": Bad("train toy --steps 2 --batch 0 --run n", ("batch must be more than zero",)),
    "negative temperature": Bad(
        "train toy --steps 2 --drift.temperatures 0.1 -1 --run n", ("drift.temperatures", "more than zero; got -1.0")
    ),
    "negative key temperature": Bad("train toy --drift.key-temperature -1 --run n", ("drift.key-temperature", "-1.0")),
    "negative seed to train with": Bad("train toy --steps 2 --seed -1 --run n", ("seed", "-1")),
    "negative seed to judge with": Bad("eval toy --seed -1", ("seed", "-1")),
    "no steps between rows of the log": Bad("train toy --steps 2 --loop.log-every 0 --run n", ("loop.log-every", "0")),
    "no warm-up": Bad("train toy --steps 2 --loop.warmup 0 --run n", ("loop.warmup", "0")),
    "resume with settings": Bad("train --resume toy --steps 9", ("keeps its own settings",)),
    "resume with a network": Bad("train --resume toy --network.width 9", ("keeps its own settings",)),
    "resume with a dataset": Bad("train toy --resume toy", ("keeps its own settings",)),
    "resume with another folder": Bad("train --resume toy --run n", ("keeps its own settings",)),
    "no tracking law": Bad("eval toy --executor track", ("track executor", "Use action")),
    "a plan as text": Bad("plan toy --observation 0,0,0 --out plan.txt", ("end in .json or .png", "'plan.txt'")),
    "a plan below a file": Bad(
        "plan toy --observation 0,0,0 --out a/p.json", ("cannot write a/p.json",), with_text("a", "")
    ),
    "a picture below a file": Bad(
        "plan toy --observation 0,0,0 --out a/p.png", ("cannot write a/p.png",), with_text("a", "")
    ),
    "no environment": Bad("eval file", ("trained on a file", "--domain")),
    "unknown environment": Bad("eval file --domain toi", ("'toi' is not a domain", "Did you mean 'toy'?")),
    "an environment of another size": Bad("eval toy --domain maze2d-umaze --episodes 1", ("maze2d-umaze",)),
    "no episodes": Bad("eval toy --episodes 0", ("episodes must be 1 or more; got 0",)),
    "no candidates to judge": Bad("eval toy --candidates 0", ("candidates", "1 or more", "0")),
    "no candidates to plan": Bad(
        "plan toy --observation 0,0,0 --candidates 0", ("candidates must be 1 or more; got 0",)
    ),
    "negative chunk": Bad("eval toy --chunk -1", ("chunk", "1 or more", "0 to plan only once", "-1")),
    "warm start in one call": Bad("eval toy --warm 2", ("warm start", "diffuser", "Leave warm at 0; got 2")),
    "warm start too long": Bad("eval diffuser --warm 4", ("warm must be 0 (off) to 3", "got 4")),
    "warm start of nothing": Bad("eval diffuser --warm 1 --chunk 0", ("no second plan", "warm=1")),
    "guidance in one call": Bad("eval maze --guidance 1", ("guidance", "diffuser", "Leave guidance at 0")),
    "negative guidance": Bad("eval diffuser --guidance -1", ("weight of guidance", "got -1.0")),
    "no GPU": Bad("train toy --steps 2 --device cuda --run n", ("cuda", "there is none", "--device cpu")),
    "unknown device": Bad("train toy --steps 2 --device gpu --run n", ("cpu or cuda", "'gpu'")),
    "other device": Bad("train toy --steps 2 --device meta --run n", ("cpu or cuda", "'meta'")),
    "unknown Minari id": Bad(
        "train kdp/none-v0 --run n", ("kdp/none-v0", "no route to host", "kdp data make"), offline
    ),
    "demo on another run": Bad("demo --run toy", ("not a demo's",)),
    "demo without time": Bad("demo --minutes 0 --run n", ("minutes must be more than zero",), little_data),
    "demo without episodes": Bad("demo --minutes 0.001 --episodes 0 --run n", ("episodes must be 1",), little_data),
    "demo on a person's data": Bad(
        "demo --minutes 0.001 --episodes 1 --run mine",
        ("not a demo's",),
        little_data_and("mine/data.hdf5", "mine/notes.txt"),
    ),
    "unknown study": Bad("bench fields --tasks toi", ("'toi' is not a task", "Did you mean 'toy'?")),
    "unknown flag": Bad("train toy --stepz 2 --run n"),
    "unknown command": Bad("trian toy"),
    "unknown executor": Bad("eval toy --executor fly"),
    "steps that are no number": Bad("train toy --steps many --run n"),
}


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(
    "bad", [pytest.param(bad, id=name, marks=needs_no_gpu if name == "no GPU" else ()) for name, bad in BAD.items()]
)
def test_bad_input_is_one_sentence_and_exit_code_2_and_changes_nothing(kdp_command, folder, monkeypatch, bad):
    if bad.before is not None:
        bad.before(folder, monkeypatch)
    before = everything(folder)
    code, _, err = kdp_command(*bad.line.split())
    assert "Traceback" not in err
    assert code == 2, err
    if bad.says:
        lines = err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("kdp: "), err
        assert all(words in err for words in bad.says), err
    after = everything(folder)
    assert before.keys() == after.keys()
    assert before == after


# Ctrl-C


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def kdp(*words: str) -> subprocess.Popen:
        command = [*COMMAND, "train", *words]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    settings = ["--steps", "100000", "--batch", "32", "--network.width", "16", "--loop.log-every", "1"]
    process = kdp("toy", *settings, "--run", "r")
    try:
        metrics, begin = tmp_path / "r/metrics.jsonl", time.monotonic()
        while not (metrics.exists() and "\n" in metrics.read_text()):
            assert process.poll() is None and time.monotonic() - begin < 60
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in err
    assert "kdp train --resume r" in err

    done = int(err.split("stopped after step ")[1].split(";")[0])
    again = kdp("--resume", "r", "--stop-after", str(done + 3))
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0 and f"stopped after step {done + 3};" in err
    assert [json.loads(row)["step"] for row in metrics.read_text().splitlines()] == list(range(1, done + 4))
    assert not list(tmp_path.rglob("*.tmp"))
