"""The generators and the critics: shapes, broadcasting, independent rows and heads, and that they learn."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kdp.errors import UserError
from kdp.networks import Bands, Critic, NetworkConfig, ResidualMLP, Sizes, TemporalUNet, UNetBackbone, build_generator

NOISE, CONDITION, WIDTH = 6, 5, 3


def make(name: str, tokens: int) -> nn.Module:
    torch.manual_seed(0)
    if name == "mlp":
        return ResidualMLP(NOISE, CONDITION, tokens * WIDTH, width=32, blocks=2)
    if name == "trunk":
        return ResidualMLP(NOISE, CONDITION, tokens * WIDTH, width=32, blocks=1, trunk=2)
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


generators = pytest.mark.parametrize("name", ["mlp", "trunk", "unet"])
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


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_bands_are_sines_and_cosines_at_doubling_frequencies(count: int, lead: tuple[int, ...]):
    x = torch.randn(*lead, CONDITION, generator=torch.Generator().manual_seed(0))
    got = Bands(count)(x)
    assert got.shape == (*lead, CONDITION * (1 + 2 * count)) and not Bands(count).state_dict()
    for row, told in zip(x.reshape(-1, CONDITION).tolist(), got.reshape(-1, got.shape[-1]).tolist(), strict=True):
        angles = [value * 2**band for value in row for band in range(count)]
        assert told == pytest.approx([*row, *map(math.sin, angles), *map(math.cos, angles)], abs=1e-5)


def test_sizes_are_what_was_chosen_and_the_default_for_the_rest():
    default = Sizes(width=512, blocks=4, channels=64, noise=8, bands=4, trunk=1)
    assert NetworkConfig().sizes() == Sizes()
    assert NetworkConfig("unet").sizes(default) == default
    assert NetworkConfig(width=16, bands=0).sizes(default) == default._replace(width=16, bands=0)


def test_a_trunk_is_computed_once_for_all_candidates_and_before_the_noise_enters():
    network, rows = make("trunk", 4), []
    for block in network.trunk:
        block.register_forward_hook(lambda module, given, made: rows.append(given[0].shape[:-1].numel()))
    noise, condition = inputs(2, 7)
    network(noise, condition[:, :1])
    assert rows == [2, 2]
    told = network.from_condition(condition[0, 0])
    for block in network.trunk:
        told = told + block(told)
    h = told + network.from_noise(noise[0, 3])
    h = h + network.blocks[0](h)
    torch.testing.assert_close(network(noise[0, 3], condition[0, 0]), network.head(h), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_a_generator_is_built_with_the_sizes_that_were_chosen(name: str):
    def parts(**sizes: int) -> dict[str, torch.Size]:
        config = NetworkConfig(name, **({"width": 32, "blocks": 2, "channels": 8, "bands": 1} | sizes))
        return {key: p.shape for key, p in build_generator(config, NOISE, CONDITION, 8, WIDTH).named_parameters()}

    usual, banded = parts(), parts(bands=3)
    assert {key for key in usual if usual[key] != banded[key]} == {"from_condition.1.weight"}
    assert usual["from_condition.1.weight"][1] == 3 * CONDITION
    assert banded["from_condition.1.weight"][1] == 7 * CONDITION
    assert (parts(channels=12) == usual) == (name == "mlp")
    assert (parts(width=64) == usual) == (parts(blocks=3) == usual) == (parts(trunk=1) == usual) == (name == "unet")


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
