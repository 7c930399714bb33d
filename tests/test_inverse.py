"""The learned executor: actions from pairs of states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kdp
from kdp.inverse import fit_inverse
from kdp.normalize import Normalizer
from kdp.plan import Controller
from kdp.runs import RunConfig, start_run
from kdp.windows import Episodes


def pushes(count=200, length=30, seed=0):
    """A mass on a line, pushed at random: position' = position + velocity, velocity' = velocity + action."""
    random = np.random.default_rng(seed)
    action = random.uniform(-1, 1, (count, length, 1))
    velocity = np.concatenate([np.zeros((count, 1, 1)), action.cumsum(1)[:, :-1]], 1)
    position = np.concatenate([np.zeros((count, 1, 1)), velocity.cumsum(1)[:, :-1]], 1)
    states = np.concatenate([position, velocity], 2).reshape(-1, 2)
    end = np.tile(np.arange(length) == length - 1, count)
    return Episodes.from_arrays(states, action.reshape(-1, 1), np.zeros(len(end)), np.zeros_like(end), end)


@pytest.fixture(scope="module")
def fitted():
    data = pushes()
    normalizer = Normalizer.fit(data.observations, data.actions)
    return data, normalizer, fit_inverse(data, normalizer, gap=1, seed=0, steps=400)


def test_the_action_between_two_states_is_found(fitted):
    _, _, model = fitted
    state = torch.tensor([[0.0, 0.5], [3.0, -1.0], [-2.0, 0.0]])
    action = torch.tensor([[0.4], [-0.7], [0.0]])
    target = torch.cat([state[:, :1] + state[:, 1:], state[:, 1:] + action], 1)
    torch.testing.assert_close(model(state, target), action, atol=0.1, rtol=0)


def test_the_same_seed_fits_the_same_model_and_another_seed_another(fitted):
    data, normalizer, _ = fitted
    models = [fit_inverse(data, normalizer, 1, seed, steps=5).state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(models[0][k], models[1][k]) for k in models[0])
    assert not all(torch.equal(models[0][k], models[2][k]) for k in models[0])


def test_pairs_of_states_lie_in_one_episode(fitted, monkeypatch):
    data, normalizer, _ = fitted
    seen = []
    last_of = Episodes.last_of

    def spy(self, index):
        seen.append((index, last_of(self, index)))
        return seen[-1][1]

    monkeypatch.setattr(Episodes, "last_of", spy)
    fit_inverse(data, normalizer, gap=7, seed=0, steps=3)
    for first, last in seen:
        later = (first + 7).minimum(last)
        assert torch.equal(
            torch.searchsorted(data.starts, later, right=True), torch.searchsorted(data.starts, first, right=True)
        )
    assert len(seen) == 3


def test_a_finished_run_executes_by_its_inverse_model_and_an_unfinished_one_says_why_not(tmp_path):
    config = RunConfig("toy", steps=4, batch=16)
    start_run(config, tmp_path / "part", stop_after=2)
    with pytest.raises(kdp.UserError, match="has not ended"):
        Controller(kdp.load(tmp_path / "part"), executor="inverse")
    start_run(config, tmp_path / "whole")
    planner = kdp.load(tmp_path / "whole")
    actions = Controller(planner, candidates=2, executor="inverse").act(np.zeros((3, 3)), None)
    assert actions.shape == (3, 1) and np.isfinite(actions).all()
    other = Controller(planner, candidates=2, executor="action").act(np.zeros((3, 3)), None)
    assert not np.allclose(actions, other)
