"""Standardised units and back."""

from __future__ import annotations

import pytest
import torch
from helpers import skewed_normalizer, walks

from kdp.normalize import Normalizer
from kdp.windows import Windows


def fitted() -> tuple[Normalizer, torch.Tensor, torch.Tensor]:
    data = walks([500])
    observations, actions = data.observations * torch.tensor([1.0, 10.0, 0.01, 100.0]), data.actions * 5 + 7
    return Normalizer.fit(observations, actions), observations, actions


def test_standardised_data_have_mean_zero_and_size_one():
    normalizer, observations, _ = fitted()
    s = normalizer.state(observations)
    torch.testing.assert_close(s.mean(0), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(s.std(0, correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_there_and_back_is_where_it_was():
    normalizer, observations, actions = fitted()
    torch.testing.assert_close(normalizer.unstate(normalizer.state(observations)), observations)
    tokens = torch.cat([observations, actions, actions], 1).view(10, 50, 8)
    torch.testing.assert_close(normalizer.untokens(normalizer.tokens(tokens)), tokens)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
def test_a_constant_column_is_only_centred(value):
    varied = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    normalizer = Normalizer.fit(torch.cat([varied, torch.full((1000, 1), value)], 1), varied)
    assert normalizer.state_std[1] == 1 and normalizer.state_std[0] != 1
    assert normalizer.state(torch.tensor([[0.0, value + 2]]))[0, 1] == pytest.approx(2, rel=1e-3)


def test_a_small_column_is_not_taken_for_a_constant():
    small = 1e-4 * torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    assert Normalizer.fit(small, small).state(small).std() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("stride", [1, 3])
def test_a_token_is_standardised_as_its_state_and_its_actions_are(stride):
    normalizer = skewed_normalizer(3, 2)
    state, actions = torch.randn(4, 3), torch.randn(4, stride, 2)
    token = normalizer.tokens(torch.cat([state, actions.flatten(1)], 1))
    torch.testing.assert_close(token[:, :3], normalizer.state(state))
    for n in range(stride):
        expected = (actions[:, n] - normalizer.action_mean) / normalizer.action_std
        torch.testing.assert_close(token[:, 3 + 2 * n : 5 + 2 * n], expected)


@pytest.mark.parametrize("dims", [(0, 1), (2, 0)])
def test_a_goal_is_standardised_as_the_coordinates_it_is_made_of(dims):
    normalizer = skewed_normalizer(3, 2)
    state = torch.randn(5, 3)
    assert torch.equal(normalizer.goal(state[:, list(dims)], dims), normalizer.state(state)[:, list(dims)])


def test_the_tokens_of_windows_start_with_the_standardised_state():
    data = walks([50])
    normalizer, windows = Normalizer.fit(data.observations, data.actions), Windows(data, 8, 4)
    first = torch.arange(20)
    tokens = normalizer.tokens(windows.gather(first, torch.zeros_like(first)))
    torch.testing.assert_close(tokens[:, 0, :4], normalizer.state(data.observations[:20]))


def test_the_tensors_to_save_make_the_same_normalizer_again():
    normalizer = skewed_normalizer(3, 2)
    again = Normalizer(**normalizer.tensors()).to("cpu")
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in normalizer.tensors().items())
