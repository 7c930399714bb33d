"""The toys, the maze and the scale that scores are on."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import kdp
from kdp.bench.evaluate import evaluate, normalized, roll
from kdp.config import RunConfig
from kdp.datasets import waypoint
from kdp.datasets.minari_sets import read_folder
from kdp.datasets.waypoint import EPISODE, RADIUS, Router, make_maze_data, roam
from kdp.domains import DOMAINS
from kdp.domains.domain import Step
from kdp.domains.maze2d import UMAZE, MazeEnvironments
from kdp.domains.toy import HORIZON, THREE, TWO
from kdp.networks import NetworkConfig
from kdp.runs import start_run

TOYS = {"toy": TWO, "toy-three": THREE}


class Does:
    """An actor from a function of observations."""

    def __init__(self, act):
        self._act = act

    def act(self, observations, goals):
        return self._act(observations)


class Stand:
    """Environments in which nothing happens."""

    def reset(self, seeds):
        self.zeros = np.zeros(len(seeds))
        return np.zeros((len(seeds), 17)), None

    def step(self, actions):
        return Step(np.zeros((len(self.zeros), 17)), self.zeros, self.zeros > 0, self.zeros > 0)

    def close(self):
        pass


def test_no_memory_is_taken_while_an_episode_is_played():
    """What is kept is there from the start. Small arrays kept from every step lay between a planner's large ones, and
    the process grew by gigabytes in a hundred episodes."""
    live = []

    def act(observations):
        live.append(tracemalloc.get_traced_memory()[0])
        return observations

    domain = replace(DOMAINS["toy"], environments=lambda count: Stand(), episode_steps=100)
    tracemalloc.start()
    try:
        played = roll(Does(act), domain, list(range(50)))
    finally:
        tracemalloc.stop()
    kept = played[0].states[0].nbytes * len(played)
    assert played[0].states.shape == (101, 17)
    assert max(live[10:]) - live[10] < 5 * kept


# Toys


def taken(toy, context, actions):
    """The mode whose velocity is nearest to the mean action: context (N,), actions (N,H) -> (N,)."""
    return np.abs(actions.mean(1)[:, None] - toy.velocity(context)).argmin(1)


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_modes_are_taken_as_often_as_their_shares_say(toy):
    episodes = toy.episodes(4000, seed=1)
    assert episodes.lengths.tolist() == [HORIZON] * 4000
    modes = taken(toy, episodes.observations[::HORIZON, 0].numpy(), episodes.actions.numpy().reshape(-1, HORIZON))
    shares = np.bincount(modes, minlength=len(toy.modes)) / 4000
    np.testing.assert_allclose(shares, toy.shares, atol=0.03)  # four standard deviations


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
@pytest.mark.parametrize("context", [-0.9, 0.0, 0.9])
def test_held_out_windows_are_near_the_mode_they_took(toy, context):
    windows = toy.held_out(context, 500, seed=2)
    assert windows.shape == (500, HORIZON, 4) and (windows[:, 0, :3] == toy.start(context)).all()
    expected = taken(toy, np.full(500, context), windows[..., 3])
    assert len(set(expected)) == len(toy.modes)
    np.testing.assert_array_equal(toy.nearest_mode(windows, context), expected)


def test_a_window_between_two_modes_is_near_none():
    windows = TWO.held_out(0.0, 20, seed=0)
    windows[..., [1, 3]] *= 0.4
    assert (TWO.nearest_mode(windows, 0.0) == -1).all()


@pytest.mark.parametrize(
    ("name", "mode"), [("toy", 0), ("toy", 1), ("toy-three", 0), ("toy-three", 1), ("toy-three", 2)]
)
def test_following_any_mode_succeeds(name, mode):
    played = roll(Does(lambda s: TOYS[name].velocity(s[:, 0])[:, mode, None]), DOMAINS[name], list(range(20)))
    assert all(e.success and e.total == 1 and e.steps_to_success == HORIZON for e in played)
    assert len({float(e.states[0, 0]) for e in played}) == 20  # a start for each seed


def test_doing_nothing_fails_where_no_mode_stands_still():
    still = Does(lambda s: np.zeros((len(s), 1)))
    assert not any(e.success or e.total for e in roll(still, DOMAINS["toy"], list(range(20))))
    assert all(e.success for e in roll(still, DOMAINS["toy-three"], list(range(20))))


# Ways through a maze


def test_the_way_through_the_u_maze_goes_round_the_wall():
    router = Router(UMAZE.rows)
    number = {tuple(cell): i for i, cell in enumerate(router.cells.tolist())}
    here, goal, way = number[3, 1], number[1, 1], []
    while here != goal:
        here = router.step[goal, here]
        way.append(tuple(router.cells[here].tolist()))
    assert way == [(3, 2), (3, 3), (2, 3), (1, 3), (1, 2), (1, 1)]
    assert router.step[goal, goal] == goal


def test_ways_through_an_open_room_are_as_short_as_can_be():
    router = Router([[0] * 4 for _ in range(3)])
    for goal in range(len(router.cells)):
        for here in range(len(router.cells)):
            shortest, length = int(np.abs(router.cells[goal] - router.cells[here]).sum()), 0
            while here != goal and length <= shortest:
                here, length = router.step[goal, here], length + 1
            assert length == shortest


def test_places_and_cells_belong_together():
    router = Router(UMAZE.rows)
    assert router.centre[router.number[1, 1]].tolist() == [-1, 1]  # x to the right, y upward, the middle at zero
    assert router.centre[router.number[3, 3]].tolist() == [1, -1]
    for number, (x, y) in enumerate(router.centre):
        assert router.cell_of(x + 0.4, y - 0.4) == number and router.cell_of(x - 0.4, y + 0.4) == number


# Maze data


@pytest.fixture(scope="module")
def wandering():
    return roam(UMAZE.rows, UMAZE.goal_cell, 2500, 0)


def test_data_depend_on_the_seed_and_not_on_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(waypoint, "SHARD", 400)
    made = []
    for name, cores, seed in (("one", 1, 3), ("three", 3, 3), ("other", 1, 4)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        folder = make_maze_data(tmp_path / name, "u", UMAZE.rows, UMAZE.goal_cell, 300, 1000, seed)
        made.append(read_folder(folder))
    one, three, other = made
    assert len(one) == 1000 and one.steps.equal(three.steps) and one.starts.equal(three.starts)
    assert not one.steps.equal(other.steps)
    assert not one.steps[:200].equal(one.steps[400:600])  # each shard has noise of its own


def test_episodes_are_continuous_and_begin_anywhere(wandering):
    assert [len(journey.actions) for journey in wandering] == [EPISODE, EPISODE, 500]
    for journey in wandering:
        assert len(journey.observations) == len(journey.goals) == len(journey.actions) + 1 == len(journey.rewards) + 1
        moved = np.linalg.norm(np.diff(journey.observations[:, :2], axis=0), axis=1)
        assert moved.max() < 0.1 and moved.mean() > 0.001
    ends = [journey.observations[-1] for journey in wandering[:-1]]
    starts = [journey.observations[0] for journey in wandering[1:]]
    assert np.linalg.norm(np.subtract(ends, starts)[:, :2], axis=1).max() > 0.1


def test_velocities_are_those_of_the_positions(wandering):
    states = wandering[0].observations
    np.testing.assert_allclose(np.diff(states[:, :2], axis=0), 0.01 * states[1:, 2:], atol=2e-3)


def test_the_wanderer_stays_out_of_walls_and_reaches_goals(wandering):
    router = Router(UMAZE.rows)
    for journey in wandering:
        assert all(router.cell_of(x, y) >= 0 for x, y in journey.observations[:, :2])
        assert np.abs(journey.actions).max() <= 1
    assert len(np.unique(np.concatenate([journey.goals for journey in wandering]), axis=0)) > 5


def test_rewards_are_for_being_at_the_mazes_goal(wandering):
    for journey in wandering:
        distance = np.linalg.norm(journey.observations[:-1, :2] - [-1, 1], axis=1)
        np.testing.assert_array_equal(journey.rewards == 1, distance <= RADIUS)
    assert 0 < np.concatenate([journey.rewards for journey in wandering]).mean() < 1


# The maze as an environment


def test_the_goal_is_the_centre_of_its_cell_whatever_the_seed():
    environments = MazeEnvironments(UMAZE, 3)
    first, goals = environments.reset([0, 1, 2])
    assert goals.tolist() == [[-1, 1]] * 3
    again, _ = environments.reset([0, 1, 5])
    environments.close()
    np.testing.assert_array_equal(first[:2], again[:2])
    assert not np.allclose(first[2], again[2])


def by_the_router(observations):
    router = Router(UMAZE.rows)
    goal = int(router.number[UMAZE.goal_cell])
    targets = np.array([router.centre[router.step[goal, router.cell_of(*state[:2])]] for state in observations])
    return np.clip(10 * (targets - observations[:, :2]) - observations[:, 2:], -1, 1)


def test_steering_by_the_router_scores_above_100_and_standing_still_below_0():
    domain, seeds = DOMAINS["maze2d-umaze"], list(range(8))
    steered = roll(Does(by_the_router), domain, seeds)
    still = roll(Does(lambda s: np.zeros((len(s), 2))), domain, seeds)
    scores = [normalized(np.array([e.total for e in played]), domain) for played in (steered, still)]
    assert scores[0].mean() > 100 and all(e.success for e in steered)
    assert (scores[1] < 0).mean() > 0.5
    assert all(len(e.states) == domain.episode_steps + 1 for e in still)


# Scores


def test_reference_returns_score_0_and_100():
    domain = DOMAINS["maze2d-umaze"]
    np.testing.assert_allclose(normalized(np.array(domain.reference), domain), [0, 100])
    np.testing.assert_allclose(normalized(np.array([3.0]), replace(domain, reference=(1, 5))), [50])
    assert normalized(np.array([3.0]), replace(domain, reference=None)) is None


def test_the_same_seed_is_judged_the_same_and_another_otherwise(tmp_path):
    network = NetworkConfig(width=8, blocks=1, noise=2)
    start_run(RunConfig("toy", steps=2, batch=16, network=network), tmp_path / "run")
    planner = kdp.load(tmp_path / "run")
    results, paths = [], []
    for seed in (3, 3, 4):
        result, played = evaluate(planner, DOMAINS["toy"], episodes=5, candidates=4, executor="action", seed=seed)
        result.pop("plan_ms_p50")
        results.append(result)
        paths.append(np.stack([e.states for e in played]))
    assert results[0] == results[1]
    np.testing.assert_array_equal(paths[0], paths[1])
    assert not np.array_equal(paths[0], paths[2])
