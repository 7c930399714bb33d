"""The inverse model: actions from pairs of states, as an executor and as labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import numbered_episodes, plain_normalizer, walks

import kdp
from kdp.checkpoint import load_tensors
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.inverse import InverseModel, fit_inverse, relabelled
from kdp.networks import NetworkConfig
from kdp.normalize import Normalizer
from kdp.parts import assemble
from kdp.plan import Controller
from kdp.runs import INVERSE, resume_run, start_run
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


def noisy_pushes(noise: float, seed: int = 0) -> tuple[Episodes, torch.Tensor]:
    """A mass under a force that depends on where it is; the data's actions have noise that the mass does not feel."""
    random, count, length = np.random.default_rng(seed), 100, 30
    state = random.normal(size=(count, 2))
    states, forces = [], []
    for _ in range(length):
        force = -0.1 * state[:, 0] - 0.2 * state[:, 1]
        states.append(state)
        forces.append(force)
        state = np.stack([state[:, 0] + state[:, 1], state[:, 1] + force], 1)
    observations, force = np.stack(states, 1).reshape(-1, 2), np.stack(forces, 1).reshape(-1, 1)
    end = np.tile(np.arange(length) == length - 1, count)
    actions = force + noise * random.normal(size=force.shape)
    zeros = np.zeros(len(end))
    return Episodes.from_arrays(observations, actions, zeros, zeros, end), torch.from_numpy(force).float()


def test_relabelled_actions_are_without_the_noise():
    noise = 0.5
    data, force = noisy_pushes(noise)
    normalizer = Normalizer.fit(data.observations, data.actions)
    clean = relabelled(data, fit_inverse(data, normalizer, gap=3, seed=0, steps=300))
    assert (data.actions - force).square().mean().sqrt() == pytest.approx(noise, rel=0.1)
    assert (clean.actions - force).square().mean().sqrt() < 0.2 * noise
    assert torch.equal(clean.observations, data.observations) and torch.equal(clean.starts, data.starts)


def test_relabelling_leaves_the_data_it_is_given_alone(fitted):
    data, _, model = fitted
    before = data.steps.clone()
    assert not torch.equal(relabelled(data, model).actions, before[:, 2:]) and torch.equal(data.steps, before)


def test_relabelled_actions_stay_within_the_range_of_the_data(fitted):
    data, normalizer, model = fitted
    far = torch.tensor([[0.0, 0.0]]), torch.tensor([[50.0, 50.0]])
    assert model(*far) > data.actions.max() and model.within(*far) == data.actions.max()
    assert model.within(*far[::-1]) == data.actions.min()
    short = fit_inverse(data, normalizer, gap=1, seed=0, steps=0)
    torch.nn.init.constant_(short.layers[-1].bias, 9.0)
    assert (relabelled(data, short).actions == data.actions.max()).all()


def test_relabelling_reads_states_a_gap_ahead_within_the_episode_and_never_the_next_one():
    data = numbered_episodes([5, 1, 9, 3])

    class Reads(InverseModel):
        def within(self, state, target):
            return (target[:, 2] - state[:, 2] + 100 * (target[:, 0] - state[:, 0]))[:, None]

    found = relabelled(data, Reads(plain_normalizer(3, 1), gap=3, ahead=5))
    assert found.actions.flatten().tolist() == [3, 3, 2, 1, 0, 0, 3, 3, 3, 3, 3, 3, 2, 1, 0, 2, 1, 0]


def test_blocks_of_states_get_the_same_actions_as_all_at_once(fitted, monkeypatch):
    data, _, model = fitted
    there = data.observations.roll(-1, 0)
    whole = model.within(data.observations, there)
    monkeypatch.setattr("kdp.inverse.BLOCK", 7)
    torch.testing.assert_close(model.within(data.observations, there), whole)


def test_a_run_keeps_its_inverse_model_from_its_first_step_on(tmp_path):
    domain = replace(DOMAINS["maze2d-umaze"], episodes=lambda: walks([200]), hurry=1.5)
    config = RunConfig("maze2d-umaze", steps=4, batch=16, horizon=16, network=NetworkConfig(width=8, blocks=1))
    parts = assemble(config.for_domain(domain), domain, domain.episodes(), "cpu")
    start_run(config, tmp_path / "run", domain=domain, stop_after=1)
    model = kdp.load(tmp_path / "run").inverse
    assert (model.gap, model.ahead) == (parts.inverse.gap, parts.inverse.ahead) == (8, 12)
    state, target = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    for name in ("__call__", "within"):
        assert torch.equal(getattr(model, name)(state, target), getattr(parts.inverse, name)(state, target))
    assert torch.equal(model.low, domain.episodes().actions.amin(0)) and model.high.isfinite().all()


def test_a_run_executes_by_its_inverse_model_and_one_without_it_says_so_and_gets_it_on_resuming(tmp_path):
    folder = tmp_path / "run"
    start_run(RunConfig("toy", steps=4, batch=16), folder, stop_after=2)

    def act(executor):
        return Controller(kdp.load(folder), candidates=2, executor=executor).act(np.zeros((3, 3)), None)

    actions = act("inverse")
    assert actions.shape == (3, 1) and np.isfinite(actions).all() and not np.allclose(actions, act("action"))
    resume_run(folder)
    before = load_tensors(folder / INVERSE)
    actions = act("inverse")
    (folder / INVERSE).unlink()
    with pytest.raises(kdp.UserError, match="inverse.safetensors, which this run does not have.*kdp train --resume"):
        act("inverse")
    act("action")
    assert resume_run(folder).finished
    after = load_tensors(folder / INVERSE)
    assert after[1] == before[1] and all(torch.equal(after[0][k], before[0][k]) for k in before[0])
    np.testing.assert_array_equal(act("inverse"), actions)
