"""Pictures are whole PNG files under their own name, whatever the shape of the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kdp import pictures
from kdp.errors import UserError
from kdp.pictures import draw_plan, draw_rollouts

MAZE = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 1, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]]


def candidates(count: int, tokens: int, dims: int = 4) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1.5, 1.5, (count, tokens, dims))


def assert_only_a_picture(path: Path) -> None:
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 1000
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("walls", [None, MAZE])
@pytest.mark.parametrize(("count", "tokens"), [(6, 10), (1, 10), (6, 1), (1, 1)])
def test_a_map_is_drawn_with_and_without_walls(tmp_path: Path, walls: list | None, count: int, tokens: int):
    plans = candidates(count, tokens)
    path = draw_plan(
        tmp_path / "plan.png",
        plans[0],
        plans,
        best=0,
        walls=walls,
        start=(-1, 1),
        goal=(-1, -1),
        position_dims=(0, 1),
        title="a plan",
    )
    assert_only_a_picture(path)


@pytest.mark.parametrize("dims", [1, 3, 11])
@pytest.mark.parametrize(("count", "tokens"), [(5, 10), (1, 10), (5, 1), (1, 1)])
def test_without_positions_the_coordinates_are_drawn(tmp_path: Path, dims: int, count: int, tokens: int):
    plans = candidates(count, tokens, dims)
    assert_only_a_picture(draw_plan(tmp_path / "plan.png", plans[0], plans, best=0))


@pytest.mark.parametrize("walls", [None, MAZE])
@pytest.mark.parametrize("panels", [1, 5, 9])
def test_rollouts_are_drawn_with_and_without_walls(tmp_path: Path, walls: list | None, panels: int):
    driven = candidates(1, 30)[0]
    rows = [(f"episode {i}", driven, candidates(4, 8), 3) for i in range(panels)]
    path = draw_rollouts(tmp_path / "rollouts.png", rows, walls=walls, goal=(-1, -1), position_dims=(2, 3))
    assert_only_a_picture(path)


def test_rollouts_may_be_single_points_and_have_goals_of_their_own(tmp_path: Path):
    rows = [("still", np.zeros((1, 2)), np.zeros((1, 1, 2)), 0)] * 2
    assert_only_a_picture(draw_rollouts(tmp_path / "a.png", rows, walls=MAZE, goal=[(-1, -1), (1, 1)]))


def test_the_wall_of_a_cell_is_where_the_maze_has_it():
    axes = pictures._figure(4, 4).add_subplot()
    pictures._draw_map(axes, candidates(1, 2, 2), candidates(1, 2, 2)[0], 0, MAZE, None, None)
    image = axes.images[0]
    left, right, bottom, top = image.get_extent()
    drawn = np.asarray(image.get_array())
    for row in range(5):
        for column in range(5):
            x, y = column + 0.5 - 5 / 2, 5 / 2 - row - 0.5
            seen = drawn[int((top - y) / (top - bottom) * 5), int((x - left) / (right - left) * 5)]
            assert image.origin == "upper" and seen == MAZE[row][column]


def test_a_failed_picture_leaves_the_old_one_and_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plans = candidates(2, 3)
    path = draw_plan(tmp_path / "plan.png", plans[0], plans, best=0)
    before = path.read_bytes()

    def full_disk(figure, file, **options):
        Path(file).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full_disk)
    with pytest.raises(UserError, match="no space"):
        draw_plan(path, plans[1], plans, best=1)
    assert path.read_bytes() == before
    assert_only_a_picture(path)


def test_importing_pictures_does_not_import_matplotlib():
    import subprocess
    import sys

    code = "import sys, kdp.pictures; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
