"""Made mazes are Minari datasets: what other tools read from them, and what happens when making goes wrong."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace

import minari
import numpy as np
import pytest

from kdp.datasets import waypoint
from kdp.datasets.minari_sets import read_folder
from kdp.datasets.waypoint import point_maze, roam
from kdp.domains import DOMAINS, find_domain
from kdp.domains.maze2d import UMAZE
from kdp.errors import UserError

RING = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
ID = "regenerated/maze2d-umaze-v0"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data folder with a small U-maze, made by the command."""
    home = tmp_path_factory.mktemp("home")
    words = [sys.executable, "-m", "kdp", "data", "make", "maze2d-umaze", "--steps", "2500", "--seed", "4"]
    subprocess.run(words, env=os.environ | {"KDP_DATA": str(home)}, capture_output=True, check=True)
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy of it, where the command looks for data."""
    home = tmp_path / "data"
    shutil.copytree(made, home)
    monkeypatch.setenv("KDP_DATA", str(home))
    return home


def bytes_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What is stored


def test_minari_loads_by_id_what_the_wanderer_did(home, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home))
    assert list(minari.list_local_datasets()) == [ID]
    dataset = minari.load_dataset(ID)
    journeys = roam(UMAZE.rows, UMAZE.goal_cell, 2500, (4, 0))
    assert dataset.total_steps == 2500 and [len(episode) for episode in dataset] == [1000, 1000, 500]
    for episode, journey in zip(dataset, journeys, strict=True):
        assert all(dataset.observation_space.contains(step) for step in first_and_last(episode.observations))
        np.testing.assert_array_equal(episode.observations["observation"], journey.observations)
        np.testing.assert_array_equal(episode.observations["achieved_goal"], journey.observations[:, :2])
        np.testing.assert_array_equal(episode.observations["desired_goal"], journey.goals)
        np.testing.assert_array_equal(episode.actions, journey.actions)
        np.testing.assert_array_equal(episode.rewards, journey.rewards)
        assert not episode.terminations.any()
        assert np.flatnonzero(episode.truncations).tolist() == [len(episode) - 1]


def first_and_last(observations):
    return ({key: array[at] for key, array in observations.items()} for at in (0, -1))


def test_the_domain_reads_what_the_wanderer_did(home):
    episodes = DOMAINS["maze2d-umaze"].episodes()
    journeys = roam(UMAZE.rows, UMAZE.goal_cell, 2500, (4, 0))
    states = np.concatenate([journey.observations[:-1] for journey in journeys]).astype(np.float32)
    np.testing.assert_array_equal(episodes.observations.numpy(), states)
    np.testing.assert_array_equal(episodes.actions.numpy(), np.concatenate([j.actions for j in journeys]))
    np.testing.assert_array_equal(episodes.rewards.numpy(), np.concatenate([j.rewards for j in journeys]))
    assert episodes.starts.tolist() == [0, 1000, 2000, 2500] and not episodes.terminals.any()
    assert episodes.name == "regenerated/maze2d-umaze"


@pytest.mark.parametrize("judged", [False, True])
def test_minari_recovers_an_environment_with_the_same_map(home, judged):
    dataset = minari.MinariDataset(home / ID / "data")
    env = dataset.recover_environment(eval_env=judged)
    walls = [[int(cell == 1) for cell in row] for row in env.unwrapped.maze.maze_map]
    assert walls == UMAZE.rows and env.spec.max_episode_steps == UMAZE.episode_steps
    assert (env.observation_space, env.action_space) == (dataset.observation_space, dataset.action_space)
    goals = []
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        goals.append(observation["desired_goal"])
    (_, _, terminated, truncated, _), steps = env.step(env.action_space.sample()), 1
    while not truncated:
        (_, _, terminated, truncated, _), steps = env.step(env.action_space.sample()), steps + 1
        assert not terminated
    env.close()
    assert steps == UMAZE.episode_steps
    assert (np.linalg.norm(np.array(goals) - [-1, 1], axis=1) < 0.5).all() == judged  # the maze's own goal


def test_the_description_says_what_it_is_and_names_no_machine(home):
    text = (home / ID / "data/metadata.json").read_text()
    about = json.loads(text)
    assert (about["dataset_id"], about["algorithm_name"], about["seed"]) == (ID, "waypoint controller", 4)
    assert "Regenerated" in about["description"] and json.loads(about["maze_map"]) == UMAZE.rows
    assert {"mujoco", "gymnasium-robotics"} <= about["made_with"].keys()
    assert str(home) not in text and "/home" not in text and "/tmp" not in text


# Which domain a dataset belongs to


def test_the_domains_own_folder_is_the_domain_by_path_and_by_id(home, monkeypatch):
    monkeypatch.chdir(home)
    for x in (str(home / ID), str(home / ID / "data"), ID):
        assert find_domain(x) is DOMAINS["maze2d-umaze"]


def test_a_copy_elsewhere_is_the_same_maze_with_data_of_its_own(home, tmp_path, monkeypatch):
    monkeypatch.setenv("KDP_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home))
    for x in (str(home / ID), ID):
        domain = find_domain(x)
        assert domain.source == str(home / ID) and domain.horizon == DOMAINS["maze2d-umaze"].horizon
        assert domain.reference == UMAZE.reference and len(domain.episodes()) == 2500


def test_another_minari_folder_is_trained_on_by_its_path(kdp_command, home, tmp_path):
    mine, path = tmp_path / "mine", tmp_path / "mine/data/metadata.json"
    shutil.copytree(home / ID, mine)
    about = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in about.items() if key != "maze_map"}))
    small = ("--steps", 2, "--batch", 16, "--horizon", 8, "--network.width", 8)
    assert kdp_command("train", "mine", *small)[0] == 0
    config = json.loads((tmp_path / "runs/mine/config.json").read_text())
    assert config["goal_dims"] == [] and config["data"]["steps"] == 2500


def test_a_map_of_ones_own_is_a_minari_folder(kdp_command, tmp_path):
    (tmp_path / "ring.json").write_text(json.dumps(RING))
    words = ("data", "make", "maze2d", "--map", "ring.json", "--out", "ring", "--steps")
    assert kdp_command(*words, 1500)[0] == 0
    (tmp_path / "ring/notes.txt").write_text("mine")
    assert kdp_command(*words, 1200)[0] == 0  # in place of the first
    assert sorted(path.name for path in (tmp_path / "ring").iterdir()) == ["data", "notes.txt"]
    dataset = minari.MinariDataset(str(tmp_path / "ring/data"))
    assert dataset.total_steps == 1200 and dataset.id == "regenerated/maze2d-v0"
    env = dataset.recover_environment(eval_env=True)
    assert env.unwrapped.maze.maze_map == RING
    env.close()
    code, out, _ = kdp_command("data", "info", "ring")
    assert code == 0 and "1,200" in out
    domain = find_domain("ring")
    assert domain.walls == RING and domain.goals is not None and len(domain.episodes()) == 1200


def test_a_damaged_map_is_told_in_one_sentence(home):
    path = home / ID / "data/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"maze_map": "[[0"}))
    with pytest.raises(UserError, match="cannot be read as a map"):
        find_domain(str(home / ID))


# When it goes wrong


def test_data_are_made_the_first_time_and_read_after_that(tmp_path, monkeypatch):
    monkeypatch.setenv("KDP_DATA", str(tmp_path))
    small = replace(UMAZE, data_steps=700)
    assert len(small.episodes()) == 700
    monkeypatch.setattr("kdp.domains.maze2d.make_maze_data", None)
    assert len(small.episodes()) == 700


def test_a_full_disk_is_told_in_one_sentence_and_keeps_the_old_data(home):
    before, old = bytes_of(home), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, old[1]))
    try:
        for folder in (None, home / "new"):
            with pytest.raises(UserError, match="cannot write .*File too large"):
                UMAZE.make(2500, 0, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert bytes_of(home) == before and not (home / "new").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_maker_that_is_stopped_while_it_writes_keeps_the_old_data(home, monkeypatch, error):
    before, buffer, written = bytes_of(home), waypoint._buffer, []

    def stop(journey):
        written.append(journey)
        if len(written) == 2:
            raise error
        return buffer(journey)

    monkeypatch.setattr(waypoint, "_buffer", stop)
    with pytest.raises(error):
        UMAZE.make(2500)
    assert bytes_of(home) == before
    assert not any(path.name.endswith(".tmp") for path in home.rglob("*"))


def test_a_killed_maker_leaves_the_old_data_and_can_be_run_again(home):
    before = bytes_of(home / ID / "data")
    code = (
        "import os; from kdp.datasets import waypoint; from kdp.domains.maze2d import UMAZE;"
        "waypoint._buffer = lambda journey: os.kill(os.getpid(), 9); UMAZE.make(500)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"KDP_DATA": str(home)}, capture_output=True)
    assert done.returncode == -9
    assert bytes_of(home / ID / "data") == before
    assert len(read_folder(UMAZE.make(500))) == 500


@pytest.mark.parametrize("cut", [0.0, 0.5])
def test_damaged_steps_are_told_in_one_sentence_and_can_be_made_again(home, cut):
    path = home / ID / "data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    with pytest.raises(UserError, match="cannot be read .*Make, copy or download it again"):
        DOMAINS["maze2d-umaze"].episodes()
    UMAZE.make(500)
    assert len(DOMAINS["maze2d-umaze"].episodes()) == 500


def test_a_file_beside_the_steps_is_never_deleted(home):
    (home / ID / "data/notes.txt").write_text("mine")
    before = bytes_of(home)
    with pytest.raises(UserError, match="new or empty folder"):
        UMAZE.make(500)
    assert bytes_of(home) == before


def test_an_environment_leaves_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = point_maze([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]])
    env.reset(seed=0)
    env.step(np.zeros(2))
    env.close()
    assert not list(tmp_path.iterdir())
