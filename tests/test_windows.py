"""Episodes and their windows: cuts, padding, stride, hindsight goals, returns, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from helpers import numbered_episodes, walks

from kdp.errors import UserError
from kdp.windows import Episodes, Goals, Windows

PLANE = Goals(dims=(0, 1), still=(2, 3))


def random_lengths(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 25, 12).tolist() + [16]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def all_windows(windows: Windows) -> torch.Tensor:
    first = torch.arange(len(windows))
    return windows.gather(first, torch.zeros_like(first))


# Episodes


def test_an_episode_ends_at_a_terminal_at_a_timeout_and_with_the_data():
    terminals, timeouts = np.zeros(10), np.zeros(10)
    terminals[2] = timeouts[6] = terminals[6] = timeouts[7] = 1
    data = Episodes.from_arrays(np.zeros((10, 2)), np.zeros((10, 1)), np.zeros(10), terminals, timeouts)
    assert data.starts.tolist() == [0, 3, 7, 8, 10]
    assert data.lengths.tolist() == [3, 4, 1, 2]
    assert data.terminals.nonzero().flatten().tolist() == [2, 6]  # a timeout is not a real end


@pytest.mark.parametrize("flag", [0, 1])
def test_an_end_on_the_last_step_makes_no_empty_episode(flag):
    ends = np.array([0, 1, 0, flag])
    data = Episodes.from_arrays(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(4), ends, np.zeros(4))
    assert data.lengths.tolist() == [2, 2]


def test_arrays_are_kept_as_they_were_in_single_precision():
    random = np.random.default_rng(0)
    observations, actions, rewards = random.normal(size=(7, 3)), random.normal(size=(7, 2)), random.normal(size=7)
    data = Episodes.from_arrays(observations, actions, rewards, np.zeros(7), np.zeros(7))
    assert data.steps.dtype == torch.float32 and data.state_dim == 3 and data.action_dim == 2
    np.testing.assert_allclose(data.observations, observations, rtol=1e-6)
    np.testing.assert_allclose(data.actions, actions, rtol=1e-6)
    np.testing.assert_allclose(data.rewards, rewards, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_every_step_knows_the_last_one_of_its_episode(seed):
    lengths = random_lengths(seed)
    expected = np.repeat(np.cumsum(lengths) - 1, lengths)
    data = numbered_episodes(lengths)
    assert data.last_of(torch.arange(len(data))).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("rewards", "lengths", "discount", "expected"),
    [
        ([1, 2, 3], [3], 1.0, [6, 5, 3]),
        ([1, 2, 3], [3], 0.5, [2.75, 3.5, 3]),
        ([1, 2, 3, 4, 5], [2, 3], 0.5, [2, 2, 6.25, 6.5, 5]),
        ([1, 2, 3, 4, 5, 6], [1, 3, 2], 0.1, [1, 2.34, 3.4, 4, 5.6, 6]),
        ([1, 2, 3, 4], [1, 1, 1, 1], 0.9, [1, 2, 3, 4]),
        ([1, 2, 3, 4], [2, 2], 0.0, [1, 2, 3, 4]),
        ([-1, 0, 8, 4, 2, 1, 16], [3, 4], 0.5, [1, 4, 8, 7.25, 6.5, 9, 16]),
    ],
)
def test_returns_to_go_stay_within_their_episode(rewards, lengths, discount, expected):
    ends = np.isin(np.arange(len(rewards)), np.cumsum(lengths) - 1)
    flat = np.zeros((len(rewards), 1))
    data = Episodes.from_arrays(flat, flat, np.array(rewards), np.zeros(len(rewards)), ends)
    torch.testing.assert_close(data.returns_to_go(discount), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("holdout", [0.01, 0.3, 0.9])
def test_a_split_keeps_whole_episodes_and_loses_none(holdout):
    data = numbered_episodes(random_lengths(0))
    train, held_out = data.split(holdout, seed=1)
    seen = []
    for part in (train, held_out):
        assert part.starts[-1] == len(part) == len(part.rewards) == len(part.terminals)
        for lo, hi in zip(part.starts[:-1], part.starts[1:], strict=True):
            number = int(part.observations[lo, 0])
            whole = data.steps[data.starts[number] : data.starts[number + 1]]
            assert torch.equal(part.steps[lo:hi], whole)
            seen.append(number)
    assert sorted(seen) == list(range(len(data.lengths)))
    assert len(held_out.lengths) == max(1, round(holdout * len(data.lengths)))


def test_a_split_depends_on_its_seed_alone():
    data = numbered_episodes([3] * 20)
    one, same, other = (data.split(0.3, seed=seed)[1].steps for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize(("count", "holdout"), [(1, 0.1), (3, 0.9), (3, 1.0)])
def test_a_split_that_leaves_nothing_to_train_on_is_refused(count, holdout):
    with pytest.raises(UserError, match=f"of {count} episodes leaves none to train on; hold out fewer"):
        numbered_episodes([20] * count).split(holdout)


# Windows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("horizon", "stride"), [(1, 1), (8, 1), (8, 4), (12, 3)])
def test_windows_never_cross_an_episode(seed, horizon, stride):
    lengths = random_lengths(seed)
    data = numbered_episodes(lengths)
    windows = Windows(data, horizon, stride)
    assert len(windows) == sum(lengths)  # every step starts one
    got = all_windows(windows)
    assert got.shape == (sum(lengths), horizon // stride, 3 + stride)
    assert (got[..., 0] == data.observations[:, :1]).all()
    low, high = data.starts[:-1], data.starts[1:]
    episode = data.observations[:, 0].long()
    actions = got[..., 3:].flatten(1)
    assert (actions >= low[episode][:, None]).all() and (actions < high[episode][:, None]).all()


def test_a_window_that_runs_past_its_episode_repeats_the_last_step():
    windows = Windows(numbered_episodes([3, 6]), 6)
    assert windows.gather(torch.tensor([1]), torch.tensor([0]))[0].tolist() == [
        [0, 1, 1, 1],
        *[[0, 2, 2, 2]] * 5,
    ]


def test_a_token_holds_a_state_and_the_actions_that_follow_it():
    windows = Windows(numbered_episodes([9], action_dim=2), 8, 4)
    assert windows.tokens == 2 and windows.width == 3 + 4 * 2
    assert windows.gather(torch.tensor([1]), torch.tensor([0]))[0].tolist() == [
        [0, 1, 1, 1, 1001, 2, 1002, 3, 1003, 4, 1004],
        [0, 5, 5, 5, 1005, 6, 1006, 7, 1007, 8, 1008],
    ]


@pytest.mark.parametrize("goals", [None, PLANE])
def test_the_same_seed_draws_the_same_windows(goals):
    windows = Windows(walks([30, 20]), 16, 4, goals)
    one, same, other = (windows.sample(40, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one[0], same[0]) and torch.equal(one[1], same[1])
    assert torch.equal(windows.gather(*one), windows.gather(*same))
    assert not torch.equal(one[0], other[0])


def test_every_step_is_drawn_as_a_first_one_and_without_goals_none_arrives():
    windows = Windows(numbered_episodes([3, 9]), 8)
    first, arrival = windows.sample(2000, generator())
    assert first.bincount(minlength=12).min() > 100 and not arrival.any()
    assert windows.goal(first, arrival) is None


# Hindsight goals


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stride", [1, 4, 16])
def test_a_window_arrives_within_its_episode_and_by_its_last_state(seed, stride):
    data = numbered_episodes(random_lengths(seed))
    windows = Windows(data, 16, stride, Goals(dims=(0,)))
    first, arrival = windows.sample(5000, generator(seed))
    assert arrival.min() == 0 and arrival.max() == 16 - stride
    assert (first + arrival <= data.last_of(first)).all()
    assert (data.observations[first, 0] == windows.goal(first, arrival)[:, 0]).all()


def test_near_goals_get_more_than_their_share_and_far_ones_theirs():
    windows = Windows(walks([100_000]), 256, 1, PLANE)
    _, arrival = windows.sample(20_000, generator())
    here, near, far = (arrived.float().mean() for arrived in (arrival == 0, arrival < 15, arrival >= 128))
    assert here == pytest.approx(0.5 / 8 + 0.5 / 256, abs=0.01)  # 2 is the eighth root of 256
    assert near == pytest.approx(0.5 * 0.5 + 0.5 * 15 / 256, abs=0.02)  # 15 + 1 is the square root of 256
    assert far == pytest.approx(0.5 / 8 + 0.5 / 2, abs=0.02)


@pytest.mark.parametrize("stride", [1, 4])
def test_before_it_arrives_a_window_is_the_data_and_after_it_rests_at_the_goal(stride):
    data = walks([40, 12, 25])
    windows = Windows(data, 16, stride, PLANE)
    first, arrival = windows.sample(300, generator())
    arrival[:20] = 0
    got, goal = windows.gather(first, arrival), windows.goal(first, arrival)
    states, actions = got[..., :4], got[..., 4:].reshape(300, 16, 2)
    for n in range(300):
        place = data.observations[first[n] + arrival[n]]
        assert torch.equal(goal[n], place[:2])
        for step in range(16):
            arrived = step >= arrival[n]
            assert torch.equal(actions[n, step], torch.zeros(2) if arrived else data.actions[first[n] + step])
            if step % stride:
                continue
            state = states[n, step // stride]
            if step == 0:
                assert torch.equal(state, data.observations[first[n]])  # the start is as it is, even at the goal
            elif arrived:
                assert torch.equal(state, torch.cat([goal[n], torch.zeros(2)]))
            else:
                assert torch.equal(state, data.observations[first[n] + step])


def pull(state: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """An inverse model that tells what it was given: every number of the two states counts, each in its own way."""
    weights = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]], dtype=state.dtype)
    return state @ weights - 0.5 * (target.square() @ weights)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(2))
def test_with_reach_the_last_token_of_actions_before_arrival_comes_to_rest_at_the_goal(stride, seed):
    data = walks([40, 12, 25], seed)
    windows, plain = Windows(data, 16, stride, PLANE, pull), Windows(data, 16, stride, PLANE)
    first, arrival = windows.sample(300, generator(seed))
    arrival[:20] = 0
    arrival[20:30] = torch.minimum(torch.tensor(stride), data.last_of(first[20:30]) - first[20:30])
    got, before = windows.gather(first, arrival), plain.gather(first, arrival)
    assert torch.equal(got[..., :4], before[..., :4])  # states are as they were
    actions, observations, pushes = got[..., 4:].reshape(300, 16, 2), data.observations.double(), data.actions
    braked = 0
    for n in range(300):
        rest = observations[first[n] + arrival[n]].clone()
        rest[[2, 3]] = 0
        for step in range(16):
            if step > arrival[n]:
                expected = torch.zeros(2, dtype=torch.float64)
            elif step >= arrival[n] - stride:
                expected, braked = pull(observations[first[n] + step], rest), braked + 1
            else:
                assert torch.equal(actions[n, step], pushes[first[n] + step])
                continue
            torch.testing.assert_close(actions[n, step].double(), expected, atol=1e-3, rtol=1e-5)
    assert braked > 300


@pytest.mark.parametrize("stride", [1, 4])
def test_a_pushed_window_begins_off_the_data_and_its_actions_lead_back(stride):
    data = walks([40, 12, 25], 0)
    windows = Windows(data, 16, stride, PLANE, pull)
    first, arrival = windows.sample(200, generator(1))
    arrival[:20] = 0
    push = torch.randn(200, 4, generator=generator(2))
    plain, got = windows.gather(first, arrival), windows.gather(first, arrival, push)
    torch.testing.assert_close(got[:, 0, :4], plain[:, 0, :4] + push)
    assert torch.equal(got[:, 1:, :4], plain[:, 1:, :4])  # all else is where it was
    actions, before = got[..., 4:].reshape(200, 16, 2), plain[..., 4:].reshape(200, 16, 2)

    def state(n: int, step: int, resting: bool) -> torch.Tensor:
        found = data.observations[first[n] + min(step, int(arrival[n]))].double()
        if resting:
            found[[2, 3]] = 0
        return found

    for n in range(200):
        for step in range(stride):
            here = state(n, step, step > arrival[n]) + push[n].double() * (1 - step / stride)
            expected = pull(here, state(n, step + stride, step + stride >= arrival[n]))
            torch.testing.assert_close(actions[n, step].double(), expected, atol=1e-3, rtol=1e-5)
    assert torch.equal(actions[:, stride:], before[:, stride:])


def test_without_goals_nothing_is_reached_and_without_reach_nothing_has_changed():
    data = walks([40, 12, 25])
    first = torch.arange(len(data))
    arrival = torch.minimum(torch.tensor(5), data.last_of(first) - first)
    without, given = Windows(data, 16, 4, None, pull), Windows(data, 16, 4)
    assert torch.equal(without.gather(first, arrival), given.gather(first, arrival))
    actions = Windows(data, 16, 4, PLANE).gather(first, arrival)[..., 4:].reshape(-1, 16, 2)
    for step in range(16):
        at = (first + step).clamp_max(len(data) - 1)
        there = (step >= arrival)[:, None]
        assert torch.equal(actions[:, step], torch.where(there, torch.zeros(2), data.actions[at]))


def test_gathering_leaves_the_data_alone():
    data = walks([40])
    before = data.steps.clone()
    for reach in (None, pull):
        windows = Windows(data, 16, 4, PLANE, reach)
        windows.gather(*windows.sample(100, generator()))
    assert torch.equal(data.steps, before)


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("lengths", [[400], [40, 3, 16, 1]])
def test_a_window_with_a_goal_ends_at_it(stride, lengths):
    windows = Windows(walks(lengths), 16, stride, PLANE)
    first, arrival = windows.sample(500, generator())
    assert torch.equal(windows.gather(first, arrival)[:, -1, :2], windows.goal(first, arrival))


# Refusals


@pytest.mark.parametrize(
    ("horizon", "stride", "message"),
    [
        (10, 4, "multiple of the stride, .*; got horizon=10 stride=4. Try horizon=8 stride=4"),
        (50, 8, "multiple of the stride, .*; got horizon=50 stride=8. Try horizon=24 stride=8"),
        (3, 4, "multiple of the stride, .*; got horizon=3 stride=4. Try horizon=30 stride=1"),
        (0, 1, "both 1 or more; got horizon=0 stride=1. Try horizon=30 stride=1"),
        (8, 0, "both 1 or more; got horizon=8 stride=0. Try horizon=8 stride=1"),
        (-8, -2, "both 1 or more; got horizon=-8 stride=-2. Try horizon=30 stride=1"),
        (32, 4, r"longer than every episode; got horizon=32, .* longest of 2 episodes has 30 steps. Try horizon=28"),
        (64, 32, r"longest of 2 episodes has 30 steps. Try horizon=30 stride=1"),
    ],
)
def test_a_horizon_that_does_not_fit_is_refused_with_a_remedy_that_works(horizon, stride, message):
    data = numbered_episodes([30, 20])
    with pytest.raises(UserError, match=message) as caught:
        Windows(data, horizon, stride)
    remedy = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", str(caught.value).split("Try ")[1])}
    Windows(data, **{"stride": stride} | remedy)


def test_a_horizon_as_long_as_the_longest_episode_fits():
    assert all_windows(Windows(numbered_episodes([8, 3]), 8)).shape == (11, 8, 4)


# Size


def test_a_million_steps_are_held_once_and_indexed_by_their_episodes():
    data = numbered_episodes([1000] * 1000)
    storage = data.steps.untyped_storage().data_ptr()
    for view in (data.observations, data.actions, data.to("cpu").steps):
        assert view.untyped_storage().data_ptr() == storage
    windows = Windows(data, 64, 8)
    assert len(windows) == 1_000_000
    held = [v for v in vars(windows).values() if isinstance(v, torch.Tensor)]
    assert not held  # windows are cut when they are asked for
    first = torch.tensor([0, 999, 500_500, 999_999])
    assert windows.gather(first, torch.zeros(4, dtype=torch.long))[:, -1, 0].tolist() == [0, 0, 500, 999]
