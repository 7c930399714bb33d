"""λ-returns: against a loop in float64, and what they are for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import brief_inverse, plain_normalizer

from kdp.checkpoint import load_tensors
from kdp.config import RunConfig
from kdp.domains import Domain
from kdp.errors import UserError
from kdp.networks import NetworkConfig
from kdp.parts import assemble
from kdp.runs import resume_run, start_run
from kdp.traces import fit_usual, traced
from kdp.train import MODEL
from kdp.value import ValueConfig
from kdp.windows import Episodes


def episodes_of(lengths, terminal, seed=0) -> Episodes:
    """Episodes that end with a terminal, or by a time limit."""
    random, count = np.random.default_rng(seed), sum(lengths)
    ends = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(count, bool), np.zeros(count, bool)
    terminals[ends], timeouts[ends] = terminal, ~np.array(terminal)
    states, actions = random.normal(size=(count, 3)), random.normal(size=(count, 2))
    return Episodes.from_arrays(states, actions, random.normal(size=count), terminals, timeouts)


def by_loop(episodes, usual, discount, trace):
    """The recursion as it is written."""
    out, starts = np.zeros(len(episodes)), episodes.starts.tolist()
    rewards, usual = episodes.rewards.double().tolist(), usual.double().tolist()
    for first, end in zip(starts[:-1], starts[1:], strict=True):
        last = end - 1
        out[last] = rewards[last] if episodes.terminals[last] else usual[last]
        for t in range(last - 1, first - 1, -1):
            out[t] = rewards[t] + discount * ((1 - trace) * usual[t + 1] + trace * out[t + 1])
    return out


@pytest.mark.parametrize("trace", [0.0, 0.5, 0.9, 1.0])
def test_traces_are_those_of_a_loop_with_real_ends_and_time_limits_mixed(trace):
    episodes = episodes_of([5, 1, 7, 1, 3], [True, True, False, False, True])
    usual = torch.randn(len(episodes), generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(traced(episodes, usual, 0.9, trace), by_loop(episodes, usual, 0.9, trace), atol=1e-5)


def test_traces_by_hand():
    episodes = Episodes.from_arrays(
        np.zeros((4, 1)), np.zeros((4, 1)), np.array([1.0, 2.0, 3.0, 4.0]), [0, 1, 0, 0], [0, 0, 0, 1]
    )
    found = traced(episodes, torch.tensor([10.0, 20.0, 30.0, 40.0]), 0.5, 0.5)
    # a real end: 2; before it 1 + .5 (.5 20 + .5 2); a time limit: what is usual, 40; before it 3 + .5 (.5 40 + .5 40)
    assert found.tolist() == [6.5, 2.0, 23.0, 40.0]


def test_with_a_trace_of_one_real_episodes_have_their_returns():
    episodes = episodes_of([4, 6], [True, True])
    found = traced(episodes, torch.full((10,), 99.0), 0.9, 1.0)
    np.testing.assert_allclose(found, episodes.returns_to_go(0.9), atol=1e-6)


def chances(count: int = 500, length: int = 20) -> tuple[Episodes, torch.Tensor]:
    """The first action is worth what it is; all rewards after it are chance. -> what first actions are worth."""
    random = np.random.default_rng(0)
    states = np.tile(np.arange(length)[:, None] / length, (count, 1))
    actions, rewards = random.normal(size=(count * length, 1)), random.normal(size=count * length)
    rewards[::length] = actions[::length, 0]
    ends = np.zeros(count * length, bool)
    ends[length - 1 :: length] = True
    episodes = Episodes.from_arrays(states, actions, rewards, ends, np.zeros(count * length, bool))
    return episodes, torch.from_numpy(actions[::length, 0]).float()


def test_what_comes_later_by_chance_is_taken_out():
    episodes, worth = chances()
    returns = episodes.returns_to_go(0.99)
    usual = fit_usual(episodes, plain_normalizer(1, 1), returns, seed=0, steps=100)
    errors = [float((numbers[::20] - worth).std()) for numbers in (returns, traced(episodes, usual, 0.99, 0.5))]
    assert errors[0] > 3.0 and errors[1] < 0.7


def test_what_is_usual_is_the_mean_of_the_returns_from_a_state():
    random = np.random.default_rng(0)
    states = random.uniform(-1, 1, size=(4000, 2))
    ends = np.ones(4000, bool)
    episodes = Episodes.from_arrays(states, states[:, :1], states[:, 0], ends, ~ends)
    truth = torch.from_numpy(100 + 20 * np.sin(3 * states[:, 0])).float()
    noisy = truth + 10 * torch.randn(4000, generator=torch.Generator().manual_seed(0))
    first, again = (fit_usual(episodes, plain_normalizer(2, 1), noisy, seed=3, steps=120) for _ in range(2))
    assert torch.equal(first, again)
    assert float((first - truth).square().mean().sqrt()) < 3.0


def small(**asked) -> RunConfig:
    value = ValueConfig("return", apart=0, width=16, layers=2, blend=0.0, **asked)
    network = NetworkConfig(width=16, blocks=1, noise=4)
    return RunConfig("chances", horizon=2, stride=1, steps=6, batch=16, value=value, network=network)


CHANCES = Domain("chances", "chance", episodes=lambda: chances(20)[0])


def test_the_return_model_learns_the_traces_and_no_other_scorer_does():
    episodes = CHANCES.episodes()
    with brief_inverse():
        whole, part, critic = (
            assemble(config.for_domain(CHANCES), CHANCES, episodes, "cpu").sampler.outcomes
            for config in (small(), small(trace=0.5), replace(small(), value=ValueConfig("critic", trace=0.5)))
        )
    assert float(part.returns.std()) < 0.8 * float(whole.returns.std())
    assert torch.equal(whole.returns, critic.returns) and torch.equal(whole.reward, part.reward)


def test_a_run_with_traces_goes_on_as_if_it_had_not_stopped(tmp_path):
    config = small(trace=0.5)
    with brief_inverse():
        start_run(config, tmp_path / "whole", domain=CHANCES)
        start_run(config, tmp_path / "stopped", domain=CHANCES, stop_after=3)
        resume_run(tmp_path / "stopped", domain=CHANCES)
    whole, stopped = (load_tensors(tmp_path / name / MODEL)[0] for name in ("whole", "stopped"))
    assert whole.keys() == stopped.keys() and all(torch.equal(whole[name], stopped[name]) for name in whole)


@pytest.mark.parametrize("trace", [-0.1, 1.1, float("nan")])
def test_a_trace_is_a_share(trace):
    with pytest.raises(UserError, match="value.trace must be 0 to 1"):
        small(trace=trace).check()
