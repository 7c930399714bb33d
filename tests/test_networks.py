"""The generators and the critics: shapes, broadcasting, independent rows and heads, and that they learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kdp.errors import UserError
from kdp.networks import Critic, ResidualMLP, TemporalUNet, UNetBackbone

NOISE, CONDITION, WIDTH = 6, 5, 3


def make(name: str, tokens: int) -> nn.Module:
    torch.manual_seed(0)
    if name == "mlp":
        return ResidualMLP(NOISE, CONDITION, tokens * WIDTH, width=32, blocks=2)
    return TemporalUNet(NOISE, CONDITION, tokens, WIDTH, channels=8)


def inputs(*lead: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(*lead, NOISE, generator=generator),
        torch.randn(*lead, CONDITION, generator=generator),
    )


def assert_gradient_everywhere(network: nn.Module) -> None:
    dead = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not dead


generators = pytest.mark.parametrize("name", ["mlp", "unet"])
token_counts = pytest.mark.parametrize("tokens", [1, 3, 8, 33])


@generators
@token_counts
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_a_plan_has_its_tokens_whatever_their_number(name: str, tokens: int, lead: tuple[int, ...]):
    assert make(name, tokens)(*inputs(*lead)).shape == (*lead, tokens * WIDTH)


@pytest.mark.parametrize("multipliers", [(1,), (1, 2), (1, 2, 4, 8)])
@token_counts
def test_the_u_net_takes_any_number_of_levels(multipliers: tuple[int, ...], tokens: int):
    backbone = UNetBackbone(4, WIDTH, 5, channels=4, multipliers=multipliers)
    assert backbone(torch.randn(2, tokens, 4), torch.randn(2, 5)).shape == (2, tokens, WIDTH)


@generators
@token_counts
def test_broadcast_equals_explicit_expansion(name: str, tokens: int):
    network = make(name, tokens)
    noise, condition = inputs(2, 4)
    condition = condition[:, :1]
    torch.testing.assert_close(
        network(noise, condition), network(noise, condition.expand(-1, 4, -1)), atol=1e-5, rtol=0
    )
    shared = noise[:1, :, :]  # the same noise for every condition broadcasts as well
    torch.testing.assert_close(
        network(shared, condition),
        network(shared.expand(2, -1, -1), condition.expand(-1, 4, -1)),
        atol=1e-5,
        rtol=0,
    )


@generators
@token_counts
def test_a_row_of_a_batch_equals_a_batch_of_one(name: str, tokens: int):
    network = make(name, tokens)
    noise, condition = inputs(5)
    batch = network(noise, condition)
    for row in range(5):
        alone = network(noise[row : row + 1], condition[row : row + 1])
        torch.testing.assert_close(batch[row : row + 1], alone, atol=1e-5, rtol=0)


@generators
@token_counts
def test_gradient_reaches_every_generator_parameter(name: str, tokens: int):
    network = make(name, tokens)
    network(*inputs(4)).square().sum().backward()
    assert_gradient_everywhere(network)


@generators
def test_noise_and_condition_both_move_every_token(name: str):
    network = make(name, 33)
    (noise, condition), (other_noise, other_condition) = inputs(1), inputs(1, seed=2)
    plan = network(noise, condition).reshape(33, WIDTH)
    for other in (network(other_noise, condition), network(noise, other_condition)):
        assert ((plan - other.reshape(33, WIDTH)).abs().amax(-1) > 1e-5).all()


@generators
def test_a_generator_overfits_a_tiny_regression(name: str):
    network = make(name, 6)
    noise, condition = inputs(8)
    target = torch.randn(8, 6 * WIDTH, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(150):
        loss = functional.mse_loss(network(noise, condition), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02 * target.var()


def test_channels_that_cannot_be_grouped_are_refused_with_a_remedy():
    with pytest.raises(UserError, match="multiple of 4; got channels=10. Try 8"):
        TemporalUNet(NOISE, CONDITION, 4, WIDTH, channels=10)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_a_critic_gives_one_value_per_head_and_row(lead: tuple[int, ...], heads: int):
    assert Critic(7, width=16, heads=heads)(torch.randn(*lead, 7)).shape == (heads, *lead)


def test_critic_heads_differ_at_initialisation():
    torch.manual_seed(0)
    first, second = Critic(7, width=16)(torch.randn(10, 7))
    assert ((first - second).abs() > 1e-4).all()


def test_each_critic_head_equals_a_plain_network():
    torch.manual_seed(0)
    critic = Critic(7, width=16, layers=3, heads=3)
    for parameter in critic.parameters():  # so that scales and shifts are not ones and zeros
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(4, 5, 7)
    values = critic(x)
    for head in range(3):
        weights = [p[head] for p in critic.parameters()]  # weight, bias, scale, shift; ...; weight, bias
        h = x
        for layer in range(3):
            weight, bias, scale, shift = weights[4 * layer : 4 * layer + 4]
            h = functional.linear(h, weight.T, bias[0])
            h = functional.silu(functional.layer_norm(h, (16,), scale[0], shift[0]))
        plain = functional.linear(h, weights[-2].T, weights[-1][0]).squeeze(-1)
        torch.testing.assert_close(values[head], plain, atol=1e-5, rtol=0)


def test_a_row_of_a_critic_batch_equals_a_batch_of_one():
    critic = Critic(7, width=16)
    x = torch.randn(5, 7)
    torch.testing.assert_close(critic(x)[:, 2], critic(x[2]), atol=1e-5, rtol=0)


def test_gradient_reaches_every_critic_parameter_and_no_other_head():
    critic = Critic(7, width=16)
    x = torch.randn(4, 7)
    critic(x).square().sum().backward()
    assert_gradient_everywhere(critic)
    critic.zero_grad()
    critic(x)[0].square().sum().backward()
    assert all(not p.grad[1].any() for p in critic.parameters() if p.grad is not None)
