"""Reading, checking and describing datasets."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import brief_inverse, write_hdf5
from rich.console import Console

import kdp
from kdp.datasets import open_file
from kdp.datasets.files import check_arrays, read_hdf5, read_npz
from kdp.datasets.info import describe, histogram, print_info
from kdp.datasets.minari_sets import is_minari_id, read_minari
from kdp.errors import UserError
from kdp.files import replacing_folder

REAL = Path(__file__).resolve().parents[2] / "shared" / "data"


def steps(count: int = 10, **changes) -> dict[str, np.ndarray]:
    """A good dataset of two episodes, one with a terminal and one with a timeout at its end; None removes."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(count, 3)).astype(np.float32),
        "actions": rng.normal(size=(count, 2)).astype(np.float32),
        "rewards": np.arange(count, dtype=np.float32),
        "terminals": np.arange(count) == count // 2 - 1,
        "timeouts": np.arange(count) == count - 1,
    }
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def refusal(call, *arguments) -> str:
    """The sentence a call is refused with: it has no line breaks and ends with a full stop."""
    with pytest.raises(UserError) as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


def real(name: str) -> Path:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"the shared file {name} is not on this machine")
    return path


# Reading


@pytest.mark.parametrize("suffix", [".hdf5", ".h5", ".npz", ".HDF5"])
def test_a_file_gives_back_what_was_written(tmp_path, suffix):
    path, arrays = tmp_path / f"set{suffix}", steps()
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        write_hdf5(path, arrays)
    episodes = open_file(str(path))
    np.testing.assert_array_equal(episodes.observations.numpy(), arrays["observations"])
    np.testing.assert_array_equal(episodes.actions.numpy(), arrays["actions"])
    np.testing.assert_array_equal(episodes.rewards.numpy(), arrays["rewards"])
    np.testing.assert_array_equal(episodes.terminals.numpy(), arrays["terminals"])
    assert episodes.starts.tolist() == [0, 5, 10]
    assert episodes.name == path.name


def test_extra_groups_and_arrays_are_ignored(tmp_path):
    write_hdf5(tmp_path / "a.h5", steps() | {"infos/goal": np.zeros((10, 2)), "metadata/x": np.zeros(3)})
    np.savez(tmp_path / "a.npz", **steps(), infos=np.array([{"any": "object"}] * 10))
    assert len(read_hdf5(tmp_path / "a.h5")) == len(read_npz(tmp_path / "a.npz")) == 10


def test_a_suffix_that_is_no_dataset_is_refused():
    assert ".hdf5, .h5, .npz" in refusal(open_file, "set.csv")


@pytest.mark.parametrize("read", [read_hdf5, read_npz])
def test_a_missing_file_is_refused(tmp_path, read):
    assert "there is no file" in refusal(read, tmp_path / "none.h5")


@pytest.mark.parametrize("read", [read_hdf5, read_npz])
def test_a_folder_is_refused(tmp_path, read):
    assert "is a folder" in refusal(read, tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a dataset at all"])
@pytest.mark.parametrize("read", [read_hdf5, read_npz])
def test_a_file_of_another_kind_is_refused(tmp_path, read, content):
    (tmp_path / "a").write_bytes(content)
    assert "is no readable" in refusal(read, tmp_path / "a")


def test_a_truncated_hdf5_file_is_refused(tmp_path):
    write_hdf5(tmp_path / "a.h5", steps(1000))
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 2])
    assert "is no readable HDF5 file" in refusal(read_hdf5, tmp_path / "a.h5")


def test_a_truncated_npz_file_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **steps(1000))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    assert "is no readable .npz file" in refusal(read_npz, tmp_path / "a.npz")


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_file_is_read_or_refused_in_one_sentence(tmp_path, seed):
    rng = np.random.default_rng(seed)
    np.savez_compressed(tmp_path / "a.npz", **steps(200))
    write_hdf5(tmp_path / "a.hdf5", steps(200))
    for path in tmp_path.iterdir():
        content = bytearray(path.read_bytes())
        first = rng.integers(len(content) - 40)
        content[first : first + 40] = rng.bytes(40)
        path.write_bytes(content)
        try:
            assert len(open_file(path)) == 200
        except UserError as error:
            assert "\n" not in str(error)


def test_object_arrays_are_refused_and_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", **steps(observations=np.array([[1.0], "two"], dtype=object)))
    assert "Object arrays" in refusal(read_npz, tmp_path / "a.npz")


def test_the_real_kitchen_file_is_read():
    episodes = open_file(real("kitchen/kitchen-complete-v0.hdf5"))
    assert (len(episodes), episodes.state_dim, episodes.action_dim) == (3680, 60, 9)
    assert len(episodes.lengths) == int(episodes.terminals.sum()) == 19  # its timeouts are all False


def test_the_real_door_file_is_read():
    episodes = open_file(real("adroit/door-human.npz"))
    assert (len(episodes), episodes.state_dim, episodes.action_dim) == (6729, 39, 28)
    assert len(episodes.lengths) == 25 and not episodes.terminals.any()  # it has timeouts only


@pytest.mark.parametrize("name", ["kitchen/kitchen-complete-v0.hdf5", "adroit/door-human.npz"])
def test_a_real_file_is_trained_on_and_planned_with(kdp_command, tmp_path, name):
    """Planned first actions come nearer to what the people did than the mean of all that they did."""
    path, run = real(name), tmp_path / "run"
    sizes = ["--network.width", 64, "--value.width", 16, "--value.heads", 2, "--horizon", 4, "--batch", 256]
    with brief_inverse():
        words = ["--value.scorer", "return", *sizes, "--loop.warmup", 10, "--steps", 150, "--run", run]
        assert kdp_command("train", path, *words)[0] == 0
    planner, episodes = kdp.load(run), open_file(path)
    some = torch.arange(0, len(episodes), len(episodes) // 200)
    random = torch.Generator().manual_seed(0)
    plans = planner.plan_batch(episodes.observations[some], None, candidates=16, generator=random)
    assert plans.scores.isfinite().all() and plans.scores.std(1).min() > 0
    planned = plans.candidates[:, :, 0, episodes.state_dim :][..., : episodes.action_dim].mean(1)
    spread = episodes.actions.std(0)
    missed, usual = (
        ((guess - episodes.actions[some]) / spread)[:, spread > 0.01].square().mean()
        for guess in (planned, episodes.actions.mean(0))
    )
    assert missed < 0.8 * usual


# The rules


@pytest.mark.parametrize("key", ["observations", "actions"])
def test_a_missing_array_is_named_with_those_found(key):
    sentence = refusal(check_arrays, "x", steps(**{key: None}))
    assert f"no array '{key}'" in sentence and "rewards, terminals, timeouts" in sentence


def test_a_close_name_is_suggested():
    arrays = steps(observations=None, observation=np.zeros((10, 3)))
    assert "Did you mean 'observation'?" in refusal(check_arrays, "x", arrays)


def test_a_file_without_arrays_is_refused(tmp_path):
    write_hdf5(tmp_path / "a.h5", {})
    assert "It holds no arrays" in refusal(read_hdf5, tmp_path / "a.h5")


def test_a_group_in_place_of_an_array_is_refused(tmp_path):
    write_hdf5(tmp_path / "a.h5", steps(observations=None) | {"observations/image": np.zeros((10, 3))})
    assert "it is a group of image" in refusal(read_hdf5, tmp_path / "a.h5")


def test_missing_rewards_are_zeros():
    assert check_arrays("x", steps(rewards=None)).rewards.tolist() == [0] * 10


def test_episodes_may_end_by_terminals_only():
    assert check_arrays("x", steps(timeouts=None)).starts.tolist() == [0, 5, 10]


def test_episodes_may_end_by_timeouts_only():
    episodes = check_arrays("x", steps(terminals=None))
    assert episodes.starts.tolist() == [0, 10] and not episodes.terminals.any()


def test_neither_terminals_nor_timeouts_is_refused():
    sentence = refusal(check_arrays, "x", steps(terminals=None, timeouts=None))
    assert "a dataset needs terminals or timeouts" in sentence


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8])
def test_terminals_may_be_numbers_0_and_1(kind):
    arrays = steps()
    assert check_arrays("x", arrays | {"terminals": arrays["terminals"].astype(kind)}).terminals.sum() == 1


@pytest.mark.parametrize("key", ["terminals", "timeouts"])
@pytest.mark.parametrize("value", [0.3, np.nan, 2.0])
def test_other_terminals_are_refused_with_the_first_index(key, value):
    flags = np.zeros(10)
    flags[[4, 7]] = value
    assert f"{key}[4] = {value}" in refusal(check_arrays, "x", steps(**{key: flags}))


def test_rewards_of_one_column_are_squeezed():
    arrays = steps(rewards=np.arange(10.0)[:, None])
    assert check_arrays("x", arrays).rewards.tolist() == list(range(10))


def test_rewards_of_two_columns_are_refused():
    assert "it has (10, 2)" in refusal(check_arrays, "x", steps(rewards=np.zeros((10, 2))))


@pytest.mark.parametrize("key", ["observations", "actions"])
@pytest.mark.parametrize("shape", [(10,), (10, 8, 8), (10, 0), ()])
def test_steps_that_are_not_rows_are_refused(key, shape):
    sentence = refusal(check_arrays, "x", steps(**{key: np.zeros(shape)}))
    assert f"{key} must have the shape (steps, values); it has {shape}" in sentence


def test_text_is_refused():
    assert "must hold numbers" in refusal(check_arrays, "x", steps(actions=np.full((10, 2), "left")))


@pytest.mark.parametrize("key", ["actions", "rewards", "terminals", "timeouts"])
def test_unequal_lengths_are_refused_with_both(key):
    arrays = steps()
    sentence = refusal(check_arrays, "x", arrays | {key: arrays[key][:7]})
    assert f"observations has 10 and {key} has 7" in sentence


@pytest.mark.parametrize("key", ["observations", "actions"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_first_index(key, value):
    array = steps()[key]
    array[6, 1] = array[8, 0] = value
    assert f"the first of 2 that are not is {key}[6, 1] = {value}" in refusal(check_arrays, "x", steps(**{key: array}))


def test_a_reward_that_is_nan_is_refused_with_its_index():
    rewards = np.zeros(10)
    rewards[3] = np.nan
    assert "rewards[3] = nan" in refusal(check_arrays, "x", steps(rewards=rewards))


def test_numbers_too_large_for_float32_are_refused():
    assert "actions[0, 0] = 1e+300" in refusal(check_arrays, "x", steps(actions=np.full((10, 2), 1e300)))


def test_an_empty_dataset_is_refused():
    arrays = {key: array[:0] for key, array in steps().items()}
    assert "at least one step" in refusal(check_arrays, "x", arrays)


# Writing folders


def test_a_folder_takes_the_place_of_the_old_one_when_it_is_whole(tmp_path):
    for text in ("old", "new"):
        with replacing_folder(tmp_path / "new/data") as temporary:
            (temporary / "a").write_text(text)
            assert not (tmp_path / "new/data").exists() or (tmp_path / "new/data/a").read_text() == "old"
    assert (tmp_path / "new/data/a").read_text() == "new" and os.listdir(tmp_path / "new") == ["data"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left"), KeyError("x")])
def test_a_folder_that_could_not_be_written_leaves_the_old_one_and_nothing_else(tmp_path, error):
    def fail(path):
        with replacing_folder(path) as temporary:
            (temporary / "a").write_text("half")
            raise error

    (tmp_path / "old/data").mkdir(parents=True)
    (tmp_path / "old/data/a").write_text("old")
    for path in (tmp_path / "old/data", tmp_path / "new/data"):
        with pytest.raises((KeyboardInterrupt, UserError, KeyError)):
            fail(path)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["old", "data", "a"]
    assert (tmp_path / "old/data/a").read_text() == "old"


def test_an_old_folder_comes_back_if_the_new_one_cannot_be_put_in_its_place(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("old")
    replace = os.replace

    def broken(source, target):
        if str(source).endswith(f"{os.getpid()}.tmp"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(UserError, match="No space left"), replacing_folder(tmp_path / "data") as temporary:
        (temporary / "a").write_text("new")
    assert (tmp_path / "data/a").read_text() == "old" and os.listdir(tmp_path) == ["data"]


def test_a_folder_that_cannot_be_made_is_told_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), replacing_folder(tmp_path / "file/data"):
        pass


# Minari


@pytest.fixture
def minari_home(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("kdp.datasets.minari_sets.find_hub", lambda: None)
    return tmp_path


def make_minari(dataset_id, lengths, terminated, space, action_space=None, wrap=lambda states: states):
    """Episodes in which state k of episode e is (e, k, 0)."""
    import minari
    from gymnasium.spaces import Box
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = []
    for number, (length, ends) in enumerate(zip(lengths, terminated, strict=True)):
        states = np.stack([np.full(length + 1, number), np.arange(length + 1), np.zeros(length + 1)], 1)
        last = np.arange(length) == length - 1
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=wrap(states),
                actions=np.full((length, 2), number / 10) if action_space is None else np.zeros(length, int),
                rewards=np.ones(length),
                terminations=last & ends,
                truncations=last & (not ends),
                infos={},
            )
        )
    minari.create_dataset_from_buffers(
        dataset_id,
        buffers,
        observation_space=space,
        action_space=action_space or Box(-1.0, 1.0, (2,)),
        description="for a test",
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("nested", [False, True])
def test_a_local_minari_dataset_is_read(minari_home, nested):
    from gymnasium.spaces import Box, Dict

    box = Box(-np.inf, np.inf, (3,), np.float64)
    space = Dict({"observation": box, "desired_goal": box}) if nested else box
    wrap = (lambda states: {"observation": states, "desired_goal": states * 0 - 1}) if nested else lambda s: s
    make_minari("kdp/tiny-v0", [4, 6], [True, False], space, wrap=wrap)

    episodes = read_minari("kdp/tiny-v0")
    assert episodes.starts.tolist() == [0, 4, 10]
    assert np.flatnonzero(episodes.terminals.numpy()).tolist() == [3]
    assert episodes.observations[:, 0].tolist() == [0] * 4 + [1] * 6
    assert episodes.observations[:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert episodes.actions.shape == (10, 2) and episodes.rewards.tolist() == [1] * 10
    assert episodes.name == "kdp/tiny-v0"


@pytest.mark.filterwarnings("ignore")
def test_spaces_that_are_not_vectors_are_refused_by_name(minari_home):
    from gymnasium.spaces import Box, Dict, Discrete, Tuple

    box = Box(-np.inf, np.inf, (3,), np.float64)
    make_minari("dict-v0", [4], [True], Dict({"camera": box}), wrap=lambda states: {"camera": states})
    make_minari("tuple-v0", [4], [True], Tuple([box]), wrap=lambda states: (states,))
    make_minari("discrete-v0", [4], [True], Discrete(9), wrap=lambda states: states[:, 1].astype(int))
    image = Box(-np.arange(30.0).reshape(10, 3), np.full((10, 3), 99.0), dtype=np.float64)
    make_minari("image-v0", [4], [True], image, wrap=lambda states: np.zeros((len(states), 10, 3)))
    make_minari("buttons-v0", [4], [True], box, action_space=Discrete(3))
    assert "observations in Dict('camera'" in refusal(read_minari, "dict-v0")
    assert "observations in Tuple(" in refusal(read_minari, "tuple-v0")
    assert "observations in Discrete(9)" in refusal(read_minari, "discrete-v0")
    assert "observations in Box(" in refusal(read_minari, "image-v0")
    assert "actions in Discrete(3)" in refusal(read_minari, "buttons-v0")


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_minari_dataset_is_refused(minari_home):
    from gymnasium.spaces import Box

    make_minari("tiny-v0", [4], [True], Box(-np.inf, np.inf, (3,), np.float64))
    (minari_home / "tiny-v0" / "data" / "main_data.hdf5").write_bytes(b"")
    assert "cannot be read" in refusal(read_minari, "tiny-v0")


def test_offline_a_minari_dataset_fails_at_once(minari_home, monkeypatch):
    def no_network(**_):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("minari.list_remote_datasets", no_network)
    start = time.monotonic()
    sentence = refusal(read_minari, "kdp/none-v0")
    assert time.monotonic() - start < 10
    assert "kdp/none-v0 is not on this machine and cannot be downloaded (no route to host)" in sentence
    assert "kdp data make" in sentence and ".npz" in sentence


def test_a_hub_whose_name_is_not_found_is_not_asked(tmp_path, monkeypatch):
    def unknown(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("kdp.datasets.minari_sets.getproxies", dict)
    monkeypatch.setattr("minari.list_remote_datasets", lambda **_: pytest.fail("asked"))
    assert "cannot be downloaded (Name or service not known)" in refusal(read_minari, "kdp/none-v0")


def test_a_remote_that_never_answers_is_given_up(minari_home, monkeypatch):
    monkeypatch.setattr("kdp.datasets.minari_sets.ANSWER_SECONDS", 0.1)
    monkeypatch.setattr("minari.list_remote_datasets", lambda **_: time.sleep(5))
    start = time.monotonic()
    assert "no answer in 0.1 s" in refusal(read_minari, "kdp/none-v0")
    assert time.monotonic() - start < 2


def test_an_id_that_the_remote_does_not_know_is_refused(minari_home, monkeypatch):
    monkeypatch.setattr("minari.list_remote_datasets", lambda prefix: {f"{prefix}-v2": {}})
    assert "Did you mean 'kdp/none-v2'?" in refusal(read_minari, "kdp/none-v0")
    monkeypatch.setattr("minari.list_remote_datasets", lambda prefix: {})
    assert "nor on Minari's remote. Check the spelling." in refusal(read_minari, "kdp/none-v0")


@pytest.mark.filterwarnings("ignore")
def test_a_known_id_is_downloaded_and_read(minari_home, monkeypatch, capsys):
    from gymnasium.spaces import Box

    def download(dataset_id):
        print("progress")
        make_minari(dataset_id, [4], [True], Box(-np.inf, np.inf, (3,), np.float64))

    monkeypatch.setattr("minari.list_remote_datasets", lambda prefix: {"tiny-v0": {}})
    monkeypatch.setattr("minari.download_dataset", download)
    assert len(read_minari("tiny-v0")) == 4
    assert capsys.readouterr().out == ""


def test_a_download_that_breaks_off_is_told_in_one_sentence(minari_home, monkeypatch):
    def download(dataset_id):
        raise ConnectionResetError("connection reset")

    monkeypatch.setattr("minari.list_remote_datasets", lambda prefix: {"tiny-v0": {}})
    monkeypatch.setattr("minari.download_dataset", download)
    assert "cannot be downloaded (connection reset)" in refusal(read_minari, "tiny-v0")


def test_minari_ids_are_known_from_paths():
    assert all(map(is_minari_id, ["door-v0", "D4RL/door/human-v2", "a/b_c-v10"]))
    assert not any(map(is_minari_id, ["door", "data/set.hdf5", "/door-v0", "a//b-v0", "../b-v0", "door-v0\n", ""]))


def test_a_malformed_minari_id_is_refused():
    assert "looks like namespace/name-v0" in refusal(read_minari, "door")


# Information


def test_a_description_counts_what_is_there():
    actions = np.zeros((10, 2))
    actions[3] = (-1, 2)
    facts = describe(check_arrays("x", steps(actions=actions, terminals=np.arange(10) == 3)))
    assert facts == {
        "name": "x",
        "steps": 10,
        "episodes": 2,
        "observation_shape": [3],
        "action_shape": [2],
        "length_min": 4,
        "length_median": 5.0,
        "length_max": 6,
        "return_min": 6.0,
        "return_mean": 22.5,
        "return_max": 39.0,
        "terminals": 1,
        "action_ranges": [(-1.0, 0.0), (0.0, 2.0)],
    }


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_information_fits_a_terminal_of_80_columns(encoding):
    rng = np.random.default_rng(0)
    wide = steps(100, actions=rng.normal(size=(100, 40)) * 1e-5, timeouts=rng.random(100) < 0.3)
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    extra = {"made by": "x" * 200, "[not] markup": "[/red]"}
    print_info(check_arrays("a/long/name" * 20, wide), Console(file=file, width=80), extra)
    file.flush()
    lines = raw.getvalue().decode(encoding).splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "[not] markup" in text and "[/red]" in text
    assert "episode returns" in text and "episode lengths" in text


def test_a_histogram_counts_every_value_once():
    values = np.random.default_rng(0).normal(size=500)
    lines = histogram(values)
    assert len(lines) == 10 and sum(int(line.split()[-1]) for line in lines) == 500


def test_a_histogram_of_whole_numbers_has_whole_bins():
    assert histogram(np.array([3, 3, 5]), "#") == ["3  " + "#" * 40 + " 2", "4   0", "5  " + "#" * 20 + " 1"]


@pytest.mark.parametrize("values", [[0.0, 0.0], [7, 7], [1.0, 1.0 + 1e-15], [-2.5]])
def test_a_histogram_of_equal_values_is_one_line(values):
    (line,) = histogram(np.array(values))
    assert line.split()[0] == f"{values[0]:.4g}" and line.split()[-1] == str(len(values))


def test_importing_the_datasets_loads_no_heavy_library():
    code = (
        "import sys, kdp.datasets, kdp.datasets.info, kdp.datasets.minari_sets;"
        "print({'h5py', 'minari', 'gymnasium', 'mujoco', 'faiss'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
