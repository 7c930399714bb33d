"""The clamp, its mask, and the key maps."""

from __future__ import annotations

import pytest
import torch

from kdp.keys import Clamp, Clamped, Condition, ScaledKey, state_goal_key, state_key

TOKENS, WIDTH, STATE, GOAL_DIMS = 5, 6, 4, (2, 0)

CLAMPS = {
    "state": Clamp(TOKENS, WIDTH, STATE),
    "goal on the last token": Clamp(TOKENS, WIDTH, STATE, GOAL_DIMS),
    "goal on the second token": Clamp(TOKENS, WIDTH, STATE, GOAL_DIMS, goal_token=1),
    "goal on the first token": Clamp(TOKENS, WIDTH, STATE, GOAL_DIMS, goal_token=0),
}
every_clamp = pytest.mark.parametrize("clamp", CLAMPS.values(), ids=CLAMPS.keys())
every_lead = pytest.mark.parametrize("lead", [(3,), (3, 2), (3, 2, 4)])


def condition(count: int = 3) -> Condition:
    random = torch.Generator().manual_seed(1)
    return Condition(torch.randn(count, STATE, generator=random), torch.randn(count, len(GOAL_DIMS), generator=random))


def windows(*lead: int) -> torch.Tensor:
    return torch.randn(*lead, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


@every_lead
def test_the_state_is_written_on_the_first_token_and_the_goal_on_its_own(lead):
    x, c = windows(*lead), condition()
    got = Clamped(CLAMPS["goal on the second token"])(x, c)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in lead)).view(-1, len(lead)).tolist():
        window, row = got[tuple(index)], index[0]
        assert torch.equal(window[0, :STATE], c.state[row])
        assert window[1, 2] == c.goal[row, 0] and window[1, 0] == c.goal[row, 1]


def test_the_goal_is_on_the_last_token_unless_said_otherwise():
    c = condition()
    assert torch.equal(Clamped(CLAMPS["goal on the last token"])(windows(3), c)[:, -1, list(GOAL_DIMS)], c.goal)


@every_clamp
@every_lead
def test_clamping_twice_is_clamping_once(clamp, lead):
    once = Clamped(clamp)(windows(*lead), condition())
    assert torch.equal(Clamped(clamp)(once, condition()), once)


@every_clamp
@every_lead
def test_the_mask_is_false_exactly_where_the_clamp_writes(clamp, lead):
    x = windows(*lead)
    same = Clamped(clamp)(x, condition()) == x  # random numbers do not coincide
    assert torch.equal(same, clamp.mask().expand_as(same))


def test_only_the_state_and_the_goal_are_clamped():
    expected = torch.ones(TOKENS, WIDTH, dtype=torch.bool)
    expected[0, [0, 1, 2, 3]] = False
    assert torch.equal(CLAMPS["state"].mask(), expected)
    expected[4, [0, 2]] = False
    assert torch.equal(CLAMPS["goal on the last token"].mask(), expected)


@every_clamp
def test_a_condition_of_zeros_is_written_too(clamp):
    zeros = Condition(torch.zeros(3, STATE), torch.zeros(3, len(GOAL_DIMS)))
    assert not Clamped(clamp)(windows(3), zeros)[:, ~clamp.mask()].any()


def test_the_clamp_leaves_its_input_alone():
    x = windows(3)
    before = x.clone()
    Clamped(CLAMPS["state"])(x, condition())
    assert torch.equal(x, before)


@every_clamp
def test_no_gradient_flows_to_what_is_clamped(clamp):
    x = windows(3).requires_grad_()
    Clamped(clamp)(x, condition()).sum().backward()
    assert torch.equal(x.grad != 0, clamp.mask().expand_as(x))


def test_a_condition_tells_the_generator_its_state_and_then_its_goal():
    c = condition()
    assert torch.equal(c.vector(), torch.cat([c.state, c.goal], 1))
    assert torch.equal(Condition(c.state).vector(), c.state)
    assert len(c) == 3


def test_a_key_is_any_function_of_a_condition():
    c = condition()
    weights = (1.0, 0.0, 0.3, 2.0, 1.0, 0.5)
    assert torch.equal(state_key(c), c.state)
    assert torch.equal(state_goal_key(c), torch.cat([c.state, c.goal], 1))
    assert torch.equal(state_goal_key(Condition(c.state)), c.state)
    assert torch.equal(ScaledKey(weights)(c), torch.cat([c.state, c.goal], 1) * torch.tensor(weights))


def test_a_scaled_key_keeps_the_type_of_its_numbers_and_ignores_what_weighs_nothing():
    key, c = ScaledKey((1.0, 0.0, 1.0, 1.0, 1.0, 1.0)), condition()
    moved = Condition(c.state + torch.tensor([0.0, 5.0, 0.0, 0.0]), c.goal)
    assert torch.equal(key(c), key(moved))
    assert key(Condition(c.state.double(), c.goal.double())).dtype == torch.float64
