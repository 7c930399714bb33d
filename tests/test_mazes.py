"""Mazes of every kind: D4RL's three, a new goal each episode, and maps that the code has never seen."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from kdp.domains import DOMAINS, find_domain
from kdp.domains.maze2d import LARGE, MEDIUM, UMAZE, custom_maze, read_map
from kdp.errors import UserError

RING = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]]


def test_the_three_mazes_are_the_librarys():
    from gymnasium_robotics.envs.maze import maps

    for maze, theirs in ((UMAZE, maps.U_MAZE), (MEDIUM, maps.MEDIUM_MAZE), (LARGE, maps.LARGE_MAZE)):
        assert maze.rows == theirs


@pytest.mark.parametrize("maze", [UMAZE, MEDIUM, LARGE], ids=lambda maze: maze.name)
def test_the_goal_of_a_maze_is_a_free_cell(maze):
    assert maze.map[maze.goal_cell[0]][maze.goal_cell[1]] == 0


def test_multi2d_has_another_goal_each_episode_and_maze2d_the_same():
    for name, different in (("multi2d-medium", True), ("maze2d-medium", False)):
        environments = DOMAINS[name].environments(6)
        _, goals = environments.reset(list(range(6)))
        environments.close()
        assert (len(np.unique(goals, axis=0)) > 1) == different
    assert DOMAINS["multi2d-medium"].make == DOMAINS["maze2d-medium"].make


def test_a_map_of_ones_own_has_a_horizon_for_its_longest_way():
    small, large = custom_maze(RING), custom_maze(LARGE.rows)
    assert small.horizon < large.horizon
    for domain in (small, large):
        assert domain.horizon % domain.stride == 0 and domain.episode_steps >= 2 * domain.horizon


def test_a_map_of_ones_own_is_made_trained_on_and_judged(kdp_command, tmp_path):
    (tmp_path / "ring.json").write_text(json.dumps(RING))
    assert kdp_command("data", "make", "maze2d", "--map", "ring.json", "--steps", 3000, "--out", "ring")[0] == 0
    assert find_domain("ring").walls == RING
    small = ("--batch", 32, "--network.width", 16)
    assert kdp_command("train", "ring", "--steps", 3, "--horizon", 32, *small, "--run", "r")[0] == 0
    shutil.rmtree(tmp_path / "ring")  # judging needs the map, not the data
    code, out, _ = kdp_command("eval", "r", "--episodes", 1, "--candidates", 1, "--executor", "track")
    assert code == 0 and "success" in out
    result = json.loads((tmp_path / "r/eval.json").read_text())
    assert result["score"] is None and result["dataset"] == "regenerated/maze2d"
    assert (tmp_path / "r/rollouts.png").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ('{"a": 1}', "list of rows"),
        ("[[1, 1], [1]]", "one length"),
        ("[[1, 2], [1, 1]]", "only 0"),
        ("[[1, 1, 1], [1, 0, 0], [1, 1, 1]]", "walls all around"),
        ("[[1,1,1,1,1],[1,0,1,0,1],[1,1,1,1,1]]", "no such way"),
        ("[[1,1,1],[1,0,1],[1,1,1]]", "two free cells"),
    ],
)
def test_a_map_that_is_none_is_refused_with_the_rule(tmp_path, text, words):
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(UserError, match=words):
        read_map(tmp_path / "map.json")


@pytest.mark.parametrize("more", [("--out", "mine"), ()], ids=["with a folder", "without"])
@pytest.mark.parametrize("name", ["none.json", "folder", "none/map.json"])
def test_a_map_that_is_not_there_is_asked_for_with_an_example(kdp_command, tmp_path, name, more):
    (tmp_path / "folder").mkdir()
    code, _, err = kdp_command("data", "make", "maze2d", "--map", name, *more)
    assert code == 2 and len(err.splitlines()) == 1 and "Errno" not in err
    assert f"there is no file {name}" in err and "1 a wall and 0 free" in err and "Check the path" in err
    example = err[err.index("[[") : err.index("]]") + 2]
    (tmp_path / "map.json").write_text(example)
    assert read_map(tmp_path / "map.json") == json.loads(example)


def test_a_map_needs_a_folder_and_a_folder_a_map(kdp_command, tmp_path):
    (tmp_path / "ring.json").write_text(json.dumps(RING))
    for words in (("maze2d",), ("maze2d", "--map", "ring.json"), ("maze2d-umaze", "--map", "ring.json")):
        code, _, err = kdp_command("data", "make", *words, "--steps", 1000)
        assert code == 2 and "--out DIR" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring.json"]
