"""Where the data have been, and plans that keep to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import plain_normalizer, walks

import kdp
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.networks import NetworkConfig
from kdp.parts import CELLS
from kdp.plan import Controller, Planner, Tracker
from kdp.runs import resume_run, start_run
from kdp.score import BETWEEN, LARGEST, STRAY, Arrival, Support

GOAL = torch.tensor([[3.0, 0.0]])


def scattered(count: int, seed: int, spread: float = 1.0) -> torch.Tensor:
    return spread * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)) + torch.tensor([5.0, -2.0])


def road() -> Support:
    """The data went from (0, 0) to (3, 0) by way of (0, 2) and (3, 2): straight on is a wall."""
    t = torch.linspace(0, 1, 200)[:, None]
    corners = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 2.0], [3.0, 0.0]])
    found = Support.fit(torch.cat([torch.lerp(a, b, t) for a, b in zip(corners[:-1], corners[1:], strict=True)]), 0.25)
    assert found is not None
    return found


def plan(*places: tuple[float, float]) -> torch.Tensor:
    """Windows of one candidate, with numbers after the place that do not matter."""
    return torch.cat([torch.tensor(places), torch.full((len(places), 3), 7.0)], 1)


AROUND = plan((0, 0), (0, 1), (0, 2), (1.5, 2), (3, 2), (3, 1), (3, 0), (3, 0))
THROUGH = plan((0, 0), (1.5, 0), (3, 0), (3, 0), (3, 0), (3, 0), (3, 0), (3, 0))


def test_a_straight_way_is_known_where_every_place_on_it_is():
    there = torch.tensor(
        [[[0.0, 1.0], [0.0, 2.0], [3.0, 2.0], [3.0, 0.0]], [[0.0, 1.0], [0.0, 2.0], [3.0, 2.0], [3, 0]]]
    )
    here = torch.tensor([[0.0, 0.0], [9.0, 2.0]])  # where one stands need not be known
    assert road().between(here, there).tolist() == [[True, True, False, False], [False, False, False, False]]
    assert road().between(torch.tensor([[1.5, 2.0]]), there[:1]).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize(("lookahead", "expected"), [(2, (0, 2)), (3, (0, 1.5)), (7, (0, 1.75))])
@pytest.mark.parametrize("executor", ["track", "inverse"])
def test_executors_do_not_look_around_corners(executor, lookahead, expected):
    class Aims:
        ahead = lookahead

        def __call__(self, state, target):
            return target - state

    tracker = Tracker((0, 1), (0, 1), kp=1.0, kd=0.0, lookahead=lookahead, low=-100, high=100)
    arrival = Arrival((0, 1), 0.5, 1, road())
    normal = plain_normalizer(2, 3)
    planner = Planner(lambda c, k, g: AROUND[None, None], normal, 1, (0, 1), arrival, tracker, Aims())  # type: ignore
    action = Controller(planner, 1, executor).act(np.zeros((1, 2)), GOAL.numpy())
    assert action[0] == pytest.approx(np.array(expected), abs=1e-5)
    blind = replace(planner, scorer=replace(arrival, support=None))
    if lookahead == 7:  # the goal is straight ahead, behind a wall
        assert Controller(blind, 1, executor).act(np.zeros((1, 2)), GOAL.numpy())[0] == pytest.approx([3, 0], abs=1e-5)


@pytest.mark.parametrize("size", [0.07, 0.3, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_place_is_known_where_a_data_point_lies_in_the_same_cell(seed, size):
    data, asked = scattered(300, seed), scattered(400, seed + 10, spread=2.0)
    support = Support.fit(data, size)
    low = data.double().amin(0) - size / 2
    cells = {tuple(cell) for cell in ((data.double() - low) / size).floor().long().tolist()}
    expected = [tuple(cell) in cells for cell in ((asked.double() - low) / size).floor().long().tolist()]
    found = support(asked.view(20, 20, 2)).flatten()
    assert (found != torch.tensor(expected)).sum() <= 1  # one may lie on an edge, within rounding
    assert 0 < found.sum() < 400
    assert support(data).all()


def test_what_lies_outside_the_grid_is_not_known():
    support = Support.fit(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), 0.5)
    assert support.seen.shape == (3, 3) and support(torch.tensor([[0.0, 0.0], [1.0, 1.0]])).all()
    away = [[-0.3, 0.0], [0.0, -0.3], [1.3, 1.0], [1.0, 1.3], [1.0, -100.0], [1e30, 1e30], [-1e30, 0.0]]
    assert not support(torch.tensor(away)).any()
    assert not support(torch.tensor([[float("nan"), 0.0], [float("inf"), 1.0]])).any()


def test_a_grid_that_would_be_too_large_is_not_made():
    corners = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert Support.fit(corners, 1 / 200).seen.numel() <= LARGEST
    assert Support.fit(corners, 1 / 300) is None
    assert Support.fit(1e6 * torch.eye(6), 1e-3) is None


def test_a_clean_plan_is_preferred_to_a_faster_one_through_the_unknown():
    windows = torch.stack([AROUND, THROUGH])[None]
    blind, seeing = Arrival((0, 1), 0.5, 4), Arrival((0, 1), 0.5, 4, road())
    assert blind(windows, GOAL).argmax() == 1 and seeing(windows, GOAL).argmax() == 0


def test_where_all_is_known_the_score_is_the_plain_one_and_each_unknown_place_has_its_price():
    windows = torch.stack([AROUND, THROUGH])[None]
    support = road()
    plain, scored = Arrival((0, 1), 0.5, 4)(windows, GOAL), Arrival((0, 1), 0.5, 4, support)(windows, GOAL)
    assert scored[0, 0] == plain[0, 0]
    places = [0.75 * 2 * k / BETWEEN for k in range(2 * BETWEEN)]  # along y = 0, until the goal
    unknown = sum(not bool(support(torch.tensor([x, 0.0]))) for x in places)
    assert unknown >= 5 and float(plain[0, 1] - scored[0, 1]) == STRAY * unknown


def test_a_wall_between_two_known_places_is_seen():
    jump = plan((0, 0), (0, 0), (3, 0), (3, 0))
    assert road()(jump[:, :2]).all()
    arrival = Arrival((0, 1), 0.5, 4)
    assert replace(arrival, support=road())(jump[None, None], GOAL) < arrival(jump[None, None], GOAL)


def test_support_is_kept_by_its_tensors():
    support = road()
    again = Support(**support.tensors()).to("cpu")
    places = 4 * torch.rand(500, 2, generator=torch.Generator().manual_seed(0)) - 0.5
    assert torch.equal(again(places), support(places)) and 0 < support(places).sum() < 500


@pytest.mark.parametrize("relabel", [True, False])
def test_a_loaded_run_scores_by_where_its_data_have_been(tmp_path, relabel):
    data = walks([200])
    domain = replace(DOMAINS["maze2d-umaze"], episodes=lambda: data)
    network = NetworkConfig(width=8, blocks=1, noise=2)
    config = RunConfig("maze2d-umaze", steps=2, batch=16, horizon=16, relabel=relabel, network=network)
    start_run(config, tmp_path / "run", domain=domain, stop_after=1)
    scorer = kdp.load(tmp_path / "run").scorer
    expected = replace(domain.scorer, support=Support.fit(data.observations[:, :2], domain.scorer.radius / CELLS))
    windows = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5, 2, 20))).float() + 1
    goals = torch.zeros(3, 2)
    assert torch.equal(scorer(windows, goals), expected(windows, goals))
    assert not torch.equal(scorer(windows, goals), domain.scorer(windows, goals))
    resume_run(tmp_path / "run", domain=domain)
    assert torch.equal(kdp.load(tmp_path / "run").scorer(windows, goals), scorer(windows, goals))


def test_a_run_without_goals_has_no_support(tmp_path):
    start_run(RunConfig("toy", steps=1, batch=16), tmp_path / "run")
    assert kdp.load(tmp_path / "run").scorer is None
