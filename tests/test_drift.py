"""The drift fields against their oracles, and what is claimed of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from oracle import joint_oracle, keyed_oracle, window_oracle
from torch import Tensor

from kdp.drift import (
    EPS,
    POSITIVES,
    DriftConfig,
    Field,
    distances,
    drift_loss,
    exact,
    joint_field,
    keyed_field,
    rms,
    window_field,
)
from kdp.keys import Clamp, Condition
from kdp.methods.kdp import KDP
from kdp.networks import NetworkConfig, Sizes
from kdp.sampler import Batch

FIELDS = ["joint", "keyed", "window"]
SWITCHES = [
    dict(zip(("self_negatives", "repulsion", "normalize"), s, strict=True)) for s in product([False, True], repeat=3)
]
SHAPES = [  # B, G, P, L, D
    (1, 1, 1, 1, 1),
    (1, 4, 3, 2, 3),
    (3, 1, 4, 2, 2),
    (2, 5, 1, 3, 2),
    (3, 4, 5, 2, 3),
]

every_field = pytest.mark.parametrize("field", FIELDS)
every_switch = pytest.mark.parametrize(
    "switches", SWITCHES, ids=lambda s: "-".join(k for k, on in s.items() if on) or "none"
)


def problem(field: str, shape=(3, 4, 5, 2, 4), seed: int = 0, dtype=torch.float64) -> SimpleNamespace:
    """Random windows of one shape; half of the first token is clamped, actions weigh twice as much as states."""
    random = torch.Generator().manual_seed(seed)
    b, g, p, tokens, width = shape

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=torch.float64).to(dtype)

    weight = torch.ones(tokens, width, dtype=dtype)
    weight[:, (width + 1) // 2 :] = 2.0
    weight[0, : width // 2] = 0.0
    lead = (b, g) if field == "joint" else (b,)
    return SimpleNamespace(
        x=draw(*lead, tokens, width),
        y=draw(*((b, p) if field == "joint" else (b,)), tokens, width) + 1,
        log_weight=draw(b, p),
        x_key=draw(b, 2),
        y_key=draw(b, 2),
        weight=weight,
        free=weight > 0,
    )


def move(field: str, q: SimpleNamespace, **options) -> Field:
    config = DriftConfig(field=field, **{"temperatures": (0.3, 1.0)} | options)
    if field == "joint":
        return joint_field(q.x, q.y, q.log_weight, q.weight, config)
    if field == "keyed":
        return keyed_field(q.x, q.y, q.x_key, q.y_key, q.free, config)
    return window_field(q.x, q.y, q.free, config)


def expected(field: str, q: SimpleNamespace, temperatures=(0.3, 1.0), **switches) -> Tensor:
    n = SimpleNamespace(**{name: tensor.double().numpy() for name, tensor in vars(q).items()})
    if field == "joint":
        drift = joint_oracle(n.x, n.y, n.log_weight, n.weight, temperatures, **switches)
    elif field == "keyed":
        drift = keyed_oracle(n.x, n.y, n.x_key, n.y_key, n.free, temperatures, **switches)
    else:
        drift = window_oracle(n.x, n.y, n.free, temperatures, **switches)
    return torch.from_numpy(drift)


def changed(q: SimpleNamespace, **tensors: Tensor) -> SimpleNamespace:
    return SimpleNamespace(**vars(q) | tensors)


# Against the oracle


@every_field
@pytest.mark.parametrize("shape", SHAPES)
@every_switch
def test_a_field_equals_its_oracle(field, shape, switches):
    for seed in range(2):
        q = problem(field, shape, seed)
        got = move(field, q, **switches).drift
        torch.testing.assert_close(got, expected(field, q, **switches), atol=1e-9, rtol=0)


@every_field
@pytest.mark.parametrize("temperatures", [(0.05,), (0.1, 0.4, 2.0)])
def test_a_field_equals_its_oracle_at_any_temperatures(field, temperatures):
    q = problem(field)
    got = move(field, q, temperatures=temperatures).drift
    torch.testing.assert_close(got, expected(field, q, temperatures), atol=1e-9, rtol=0)


@every_field
def test_single_precision_is_near_the_oracle(field):
    q = problem(field, dtype=torch.float32)
    got = move(field, q).drift
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected(field, q), atol=1e-4, rtol=0)


@every_field
def test_no_temperatures_means_the_fields_own(field):
    q = problem(field)
    own = (0.05, 0.2, 1.0)
    assert DriftConfig(field=field).scale() == own
    torch.testing.assert_close(move(field, q, temperatures=()).drift, move(field, q, temperatures=own).drift)


def test_the_defaults_are_the_settled_ones():
    config = DriftConfig()
    assert (config.field, config.samples, config.bandwidth(), POSITIVES) == ("joint", 4, 0.2, 16)
    assert config.tilt is None and config.lambda_a is None and config.key_temperature is None  # the domain's own
    assert (
        config.keying and config.repulsion and config.normalize and not config.self_negatives and config.lambda_s == 1.0
    )
    assert NetworkConfig().sizes() == Sizes(width=256, blocks=3, channels=32, noise=16, bands=0)


# Distances


@pytest.mark.parametrize("shape", [(500, 3), (300, 40), (4, 60, 20)])
def test_every_row_of_many_is_at_no_distance_from_itself(shape):
    x = 100 + torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert (exact(x, x).diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (exact(x, x.clone()).diagonal(dim1=-2, dim2=-1) == 0).all()


def test_a_small_distance_between_large_numbers_is_kept():
    x = 100 + torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    y = x + 2**-10  # both are exact in single precision
    near = exact(x, y).diagonal()
    torch.testing.assert_close(near, torch.full_like(near, 8**0.5 * 2**-10), atol=0, rtol=0.01)


def test_distances_of_a_condition_have_mean_one_over_positives_and_pairs_of_siblings():
    q = problem("joint", (3, 40, 30, 2, 4))
    d_pos, d_neg = distances(q.x.flatten(2), q.y.flatten(2), torch.ones(3, 30))
    assert (d_neg.diagonal(dim1=1, dim2=2) == 0).all()
    mean = (d_pos.sum((1, 2)) + d_neg.sum((1, 2))) / (40 * 30 + 40 * 39)
    torch.testing.assert_close(mean, torch.ones_like(mean), atol=2 * EPS, rtol=0)


def test_the_window_field_sees_that_a_window_is_in_the_data():
    q = problem("window", (100, 0, 0, 2, 4), dtype=torch.float32)
    options = {"repulsion": False, "normalize": False, "temperatures": (1e-3,)}
    there = move("window", changed(q, x=q.x + 100, y=q.x + 100), **options).drift
    torch.testing.assert_close(there, (q.x + 100) * q.free)  # mu+ is the window itself


# Who is near


def with_other_futures(q: SimpleNamespace) -> SimpleNamespace:
    """The clamped coordinates stay, all others are new."""
    other = torch.randn(q.x.shape, generator=torch.Generator().manual_seed(9), dtype=q.x.dtype)
    return changed(q, x=torch.where(q.free, other, q.x))


def test_the_paper_s_attraction_does_not_see_generated_futures():
    q = problem("keyed")
    options = {"repulsion": False, "normalize": False}
    assert torch.equal(move("keyed", q, **options).drift, move("keyed", with_other_futures(q), **options).drift)
    assert not torch.allclose(move("keyed", q).drift, move("keyed", with_other_futures(q)).drift)  # repulsion does


@pytest.mark.parametrize("field", ["joint", "window"])
def test_attraction_by_windows_sees_generated_futures(field):
    q = problem(field)
    other = with_other_futures(q)

    def mean(q: SimpleNamespace) -> Tensor:  # the joint field without repulsion is a shift from x, the paper's is not
        drift = move(field, q, repulsion=False, normalize=False).drift
        return (drift + q.x if field == "joint" else drift)[..., q.free]

    assert (mean(q) - mean(other)).abs().max() > 0.1


def test_behind_one_key_the_paper_s_field_moves_every_window_alike():
    q = problem("keyed", (6, 0, 0, 2, 4))
    q = changed(q, x_key=torch.zeros_like(q.x_key), y_key=torch.zeros_like(q.y_key))
    drift = move("keyed", q, self_negatives=True, normalize=False).drift
    assert drift.abs().max() > 0.1
    torch.testing.assert_close(drift, drift[:1].expand_as(drift))


def follow(field: str) -> Tensor:
    """256 free numbers behind one key, moved by a field toward data at plus and minus one: where they end."""
    random = torch.Generator().manual_seed(0)

    def data(*size: int) -> Tensor:
        return torch.randint(2, size, generator=random) * 2 - 1 + 0.05 * torch.randn(size, generator=random)

    x, key, log_weight = 0.3 * torch.randn(256, generator=random), torch.zeros(256, 1), torch.zeros(32, 16)
    ones = torch.ones(1, 1)
    for step in range(300):
        order = torch.randperm(256, generator=random)  # siblings are new at every step, as they are in training
        x, y = x[order], data(32, 16, 1, 1) if field == "joint" else data(256, 1, 1)
        lead = y.shape[:1] + ((8,) if field == "joint" else ())
        q = SimpleNamespace(
            x=x.view(*lead, 1, 1), y=y, log_weight=log_weight, weight=ones, x_key=key, y_key=key, free=ones > 0
        )
        x = x + 0.05 * (1 - step / 300) * move(field, q, temperatures=()).drift.flatten()
    return x


def near_a_mode(x: Tensor) -> float:
    return float(((x.abs() - 1).abs() < 0.25).float().mean())


def test_two_modes_survive_one_key():
    x = follow("joint")
    assert near_a_mode(x) > 0.9
    assert 0.4 < (x > 0).float().mean() < 0.6


def test_the_paper_s_field_does_not_find_two_modes_behind_one_key():
    x = follow("keyed")
    assert near_a_mode(x) < 0.3 and abs(x.mean()) < 0.2


def test_a_weightless_positive_attracts_nothing():
    q = problem("joint")
    q.log_weight[:] = torch.tensor([0.0, -1e4, 0.0, -1e4, -1e4])
    drift = move("joint", q, repulsion=False, normalize=False, temperatures=(1e6,)).drift
    mean = q.y[:, [0, 2]].mean(1, keepdim=True)
    torch.testing.assert_close(drift, (mean - q.x) * q.free, atol=1e-5, rtol=0)


@every_switch
def test_positives_without_weight_might_as_well_not_be_there(switches):
    q = problem("joint")
    q.log_weight[:] = torch.tensor([0.3, -1e4, 0.0, -1e4, -1e4])
    fewer = changed(q, y=q.y[:, [0, 2]], log_weight=q.log_weight[:, [0, 2]])
    torch.testing.assert_close(move("joint", q, **switches).drift, move("joint", fewer, **switches).drift)


def settled_spread(far: float, config: DriftConfig) -> float:
    """Where the spread of a generator x = scale * z comes to rest; the data's is 1. Far: the other positives have a
    mean of nine and this log weight, so that a state is seen but once, and its own window has all the weight."""
    random, scale = torch.Generator().manual_seed(0), torch.tensor(0.5)
    log_weight = torch.tensor([0.0] + 15 * [far]).expand(128, -1)
    for step in range(600):
        z, y = torch.randn(128, 4, 1, 3, generator=random), torch.randn(128, 16, 1, 3, generator=random)
        y[:, 1:] += 9 * (far < 0)
        drift = joint_field(scale * z, y, log_weight, torch.ones(1, 3), config).drift
        scale = scale + 0.05 * (1 - step / 600) * (drift * z).mean()
    return float(scale)


@pytest.mark.parametrize("far", [0.0, -50.0])
def test_samples_spread_as_the_data_do_however_few_neighbours_count(far):
    """A weight that outdid the siblings' would draw the samples together."""
    assert 0.9 < settled_spread(far, DriftConfig()) < 1.1


@pytest.mark.parametrize("far", [0.0, -50.0])
@pytest.mark.parametrize("broken", [{"repulsion": False}, {"self_negatives": True}], ids=str)
def test_with_attraction_only_or_self_negatives_samples_spread_less_than_the_data(far, broken):
    assert settled_spread(far, DriftConfig(**broken)) < 0.8


def equally_far(group: int = 3, dtype=torch.float64) -> SimpleNamespace:
    """Positives one step along the first and along the second of three axes, samples on the third: no sample is nearer
    to one of them, and how much each attracts is read off its axis."""
    x, axes = torch.zeros(1, group, 1, 3, dtype=dtype), torch.eye(3, dtype=dtype)
    x[0, :, 0, 2] = torch.linspace(-0.5, 1.0, group, dtype=dtype)
    return SimpleNamespace(
        x=x, y=axes[None, :2, None], log_weight=torch.zeros(1, 2, dtype=dtype), weight=torch.ones(1, 3, dtype=dtype)
    )


@every_switch
@pytest.mark.parametrize("group", [1, 3])
def test_a_log_weight_of_one_attracts_e_times_as_much(group, switches):
    q = equally_far(group)
    for gap in (0.0, 1.0, -2.5):
        q.log_weight[:] = torch.tensor([gap, 0.0])
        drift = move("joint", q, **switches).drift
        assert (drift[..., :2] > 1e-6).all()
        torch.testing.assert_close(drift[..., 0], drift[..., 1] * math.exp(gap), atol=1e-12, rtol=1e-9)


def method(**options) -> KDP:
    return KDP(Clamp(2, 3, 2), replace(DriftConfig(), **options), NetworkConfig(width=8, blocks=1))


def batch_of_two_positives(key_distance: list[float], arrival: list[float] | None = None) -> Batch:
    zeros = torch.zeros(1, 2)
    arrived = None if arrival is None else torch.tensor([arrival])
    return Batch(
        torch.zeros(1, 2, 3), Condition(zeros), zeros, torch.zeros(1, 2, 2, 3), torch.tensor([key_distance]), arrived
    )


@pytest.mark.parametrize(
    ("options", "batch", "ratio"),
    [
        ({}, batch_of_two_positives([0.1, 0.3]), math.e),  # the key temperature is 0.2
        ({"key_temperature": 0.1}, batch_of_two_positives([0.1, 0.3]), math.e**2),
        ({"tilt": 60.0}, batch_of_two_positives([0.0, 0.0], [10.0, 70.0]), math.e),
        ({"tilt": 0.0}, batch_of_two_positives([0.0, 0.0], [10.0, 70.0]), 1.0),
        ({"tilt": None}, batch_of_two_positives([0.0, 0.0], [10.0, 70.0]), 1.0),
        ({"tilt": 60.0}, batch_of_two_positives([0.0, 0.0]), 1.0),  # no goals
        ({"tilt": 30.0}, batch_of_two_positives([0.2, 0.0], [0.0, 60.0]), math.e),
    ],
)
def test_nearer_keys_and_sooner_arrivals_attract_e_times_as_much_a_temperature_or_a_tilt(options, batch, ratio):
    q = equally_far()
    q.log_weight = method(**options).log_weight(batch).double()
    drift = move("joint", q).drift
    torch.testing.assert_close(drift[..., 0], drift[..., 1] * ratio, atol=0, rtol=1e-5)


def test_actions_weigh_what_the_config_says_and_one_where_it_says_nothing():
    weight = torch.tensor([[0.0, 0.0, 0.1], [1.0, 1.0, 0.1]])  # two clamped states, then their action
    assert torch.equal(method(lambda_a=0.1).weight, weight)
    assert torch.equal(method(lambda_a=0.0).weight, torch.where(weight == 1, 1.0, 0.0))
    assert torch.equal(method().weight, torch.where(weight > 0, 1.0, 0.0))
    assert torch.equal(method(lambda_s=3.0).weight, torch.tensor([[0.0, 0.0, 1.0], [3.0, 3.0, 1.0]]))


def test_only_the_differences_of_log_weights_count():
    q = problem("joint")
    torch.testing.assert_close(move("joint", q).drift, move("joint", changed(q, log_weight=q.log_weight + 700)).drift)


def test_only_the_ratios_of_distances_count_in_the_joint_field():
    q = problem("joint")
    once, scaled = move("joint", q).drift, move("joint", changed(q, x=50 * q.x, y=50 * q.y)).drift
    torch.testing.assert_close(once, scaled, atol=1e-4, rtol=0)  # but for the epsilon


# Order does not matter


@every_field
def test_a_field_moves_windows_wherever_they_stand_in_the_batch(field):
    q, order = problem(field), torch.tensor([2, 0, 1])
    names = ("x", "y", "log_weight", "x_key", "y_key")
    turned = changed(q, **{name: getattr(q, name)[order] for name in names})
    torch.testing.assert_close(move(field, turned).drift, move(field, q).drift[order])


def test_siblings_can_change_places():
    q, order = problem("joint"), torch.tensor([3, 1, 0, 2])
    torch.testing.assert_close(move("joint", changed(q, x=q.x[:, order])).drift, move("joint", q).drift[:, order])


def test_positives_can_change_places_with_their_weights():
    q, order = problem("joint"), torch.tensor([4, 2, 0, 1, 3])
    both = changed(q, y=q.y[:, order], log_weight=q.log_weight[:, order])
    torch.testing.assert_close(move("joint", both).drift, move("joint", q).drift)
    assert not torch.allclose(move("joint", changed(q, y=q.y[:, order])).drift, move("joint", q).drift)


@pytest.mark.parametrize("field", ["keyed", "window"])
def test_data_windows_can_change_places_with_their_keys(field):
    q, order = problem(field), torch.tensor([1, 2, 0])
    torch.testing.assert_close(move(field, changed(q, y=q.y[order], y_key=q.y_key[order])).drift, move(field, q).drift)


def test_conditions_of_the_joint_field_do_not_see_each_other():
    q = problem("joint")
    alone = changed(q, x=q.x[1:2], y=q.y[1:2], log_weight=q.log_weight[1:2])
    torch.testing.assert_close(
        move("joint", alone, normalize=False).drift, move("joint", q, normalize=False).drift[1:2]
    )


# Always finite


@every_field
@pytest.mark.parametrize("tau", [1e-6, 1e6])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2, 3), (2, 1, 4, 2, 3), (3, 6, 32, 2, 3)])
@every_switch
def test_a_field_is_finite_at_extreme_temperatures(field, tau, shape, switches):
    q = problem(field, shape, dtype=torch.float32)
    got = move(field, q, temperatures=(tau,), **switches)
    assert got.drift.isfinite().all()
    assert all(value.isfinite() for value in got.metrics.values())


def identical(field: str, shape=(30, 6, 32, 2, 3), dtype=torch.float32) -> SimpleNamespace:
    """All windows are one window and all keys one key: there is nowhere to go, and what is left is rounding."""
    q, key = problem(field, shape, dtype=dtype), torch.zeros(shape[0], 2, dtype=dtype)
    one = torch.randn(shape[-2:], generator=torch.Generator().manual_seed(0)).to(dtype)
    return changed(q, x=one.expand_as(q.x).clone(), y=one.expand_as(q.y).clone(), x_key=key, y_key=key)


@every_field
@pytest.mark.parametrize("tau", [1e-6, 0.1, 1e6])
@pytest.mark.parametrize(("dtype", "small"), [(torch.float32, 0.2), (torch.float64, 1e-7)])
def test_identical_windows_stay_where_they_are(field, tau, dtype, small):
    got = move(field, identical(field, dtype=dtype), temperatures=(tau,))
    assert got.drift.isfinite().all()
    assert got.metrics["drift/rms"] < small * EPS  # under the epsilon,
    assert rms(got.drift) < small  # so that rounding does not become a drift of size one


def test_identical_windows_of_a_whole_training_batch_stay_where_they_are_in_the_joint_field():
    assert rms(move("joint", identical("joint", (256, 8, 16, 8, 6)), temperatures=()).drift) < 0.1


@pytest.mark.parametrize("gap", [-1e4, -torch.inf])
def test_the_joint_field_is_finite_for_huge_gaps_of_log_weights(gap):
    q = problem("joint", dtype=torch.float32)
    q.log_weight[:, 1:] += gap
    for tau in (1e-6, 0.1, 1e6):
        assert move("joint", q, temperatures=(tau,)).drift.isfinite().all()


# The loss and the clamp


@every_field
def test_the_gradient_of_the_loss_is_the_drift_and_nothing_else(field):
    q = problem(field)
    q.x.requires_grad_()
    attached = move(field, q)
    loss, _ = drift_loss(q.x, attached, q.weight)
    (gradient,) = torch.autograd.grad(loss, q.x)
    drift = attached.drift.detach()
    torch.testing.assert_close(gradient, -2 * q.weight * drift / drift.numel(), atol=1e-15, rtol=0)
    torch.testing.assert_close(loss, (q.weight * drift.square()).mean())


@every_field
@every_switch
def test_clamped_coordinates_never_move(field, switches):
    q = problem(field)
    drift = move(field, q, **switches).drift
    assert (drift[..., ~q.free] == 0).all()
    assert (drift[..., q.free] != 0).all()


def test_clamped_coordinates_do_not_decide_who_is_near_in_the_joint_field():
    q = problem("joint")
    other = changed(q, x=torch.where(q.free, q.x, 7.0))
    assert torch.equal(move("joint", q).drift, move("joint", other).drift)


# Ablations


def test_without_repulsion_the_paper_s_field_is_mu_plus_itself():
    q = problem("keyed")
    far = changed(q, x_key=q.y_key)  # at a small temperature, mu+ is the window with the same key
    drift = move("keyed", far, repulsion=False, normalize=False, temperatures=(1e-4,)).drift
    torch.testing.assert_close(drift, q.y * q.free)


def test_without_repulsion_the_joint_field_leads_between_the_data():
    q = problem("joint")
    there = q.x + move("joint", q, repulsion=False, normalize=False).drift
    low, high = q.y.amin(1, keepdim=True) - 1e-9, q.y.amax(1, keepdim=True) + 1e-9
    inside = (low <= there) & (there <= high)
    assert inside[..., q.free].all()
    assert not ((low <= q.x) & (q.x <= high))[..., q.free].all()


def test_without_repulsion_far_siblings_do_not_weaken_the_attraction():
    x, y = (torch.tensor(v, dtype=torch.float64).view(1, 2, 1, 1) for v in ([0.0, 10.0], [0.5, 10.5]))
    q = SimpleNamespace(x=x, y=y, log_weight=torch.zeros(1, 2), weight=torch.ones(1, 1))
    drift = move("joint", q, repulsion=False, normalize=False, temperatures=(0.02,)).drift
    torch.testing.assert_close(drift, y - x, atol=1e-9, rtol=0)


@pytest.mark.parametrize("repulsion", [True, False])
def test_a_lone_sample_shifts_to_the_weighted_mean_of_its_positives(repulsion):
    q = problem("joint", (3, 1, 5, 2, 4))
    drift = move("joint", q, repulsion=repulsion, normalize=False, temperatures=(1e9,)).drift  # weights decide alone
    mean = (q.log_weight.softmax(1)[..., None, None] * q.y).sum(1, keepdim=True)
    torch.testing.assert_close(drift, (mean - q.x) * q.free, atol=1e-7, rtol=0)


@pytest.mark.parametrize("field", ["keyed", "window"])
def test_self_negatives_weaken_the_repulsion_of_every_window(field):
    q = problem(field, (6, 0, 0, 2, 4))
    q.free[:] = True

    def to_kin(**options) -> Tensor:  # |mu- - x|, from mu+ alone and mu+ - mu-
        options |= {"normalize": False, "temperatures": (0.5,)}
        mu_neg = move(field, q, repulsion=False, **options).drift - move(field, q, **options).drift
        return (mu_neg - q.x).flatten(1).norm(dim=1)

    assert (to_kin(self_negatives=True) < to_kin()).all()


def test_self_negatives_change_the_joint_field():
    q = problem("joint")
    with_self, without = (move("joint", q, self_negatives=s).metrics["drift/repel"] for s in (True, False))
    assert with_self < without


def test_the_normalised_joint_drift_has_size_one_over_the_batch():
    got = move("joint", problem("joint"), temperatures=(0.3,))
    raw = got.metrics["drift/rms"]
    torch.testing.assert_close(rms(got.drift), raw / (raw + EPS), atol=1e-9, rtol=0)
    assert raw > 1e3 * EPS  # so that this is nearly one


@pytest.mark.parametrize("field", ["keyed", "window"])
def test_the_normalised_drift_of_the_paper_has_size_one_for_each_window(field):
    size = move(field, problem(field)).drift.square().mean((1, 2)).sqrt()
    torch.testing.assert_close(size, torch.ones_like(size), atol=1e-6, rtol=0)


@every_field
def test_the_logged_size_is_the_raw_one(field):
    q = problem(field)
    on, off = (move(field, q, temperatures=(0.3,), normalize=n) for n in (True, False))
    assert on.metrics["drift/rms"] == off.metrics["drift/rms"] == pytest.approx(float(rms(off.drift)))
    assert off.metrics["drift/rms"] != pytest.approx(1, abs=0.01)


@every_field
def test_one_temperature_twice_is_that_temperature(field):
    q = problem(field)
    once, twice = (move(field, q, temperatures=t) for t in ((0.3,), (0.3, 0.3)))
    torch.testing.assert_close(once.drift, twice.drift)
    for name, value in once.metrics.items():
        torch.testing.assert_close(value, twice.metrics[name])


# At rest where generated windows are distributed as the data


def drift_by_place(repulsion: bool) -> Tensor:
    """Mean drift, over its size, of samples in four places of a lopsided mixture that the data come from too."""
    random = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        mode = torch.where(torch.rand(*size, generator=random) < 0.3, -2.0, 1.0)
        return mode + 0.3 * torch.randn(*size, generator=random)

    q = SimpleNamespace(
        x=draw(8000, 8, 1, 1), y=draw(8000, 8, 1, 1), log_weight=torch.zeros(8000, 8), weight=torch.ones(1, 1)
    )
    drift = move("joint", q, temperatures=(), repulsion=repulsion).drift
    place = torch.bucketize(q.x, torch.tensor([-2.0, -0.5, 1.0]))
    return torch.stack([drift[place == n].mean() for n in range(4)]) / rms(drift)


def test_where_samples_are_distributed_as_data_the_expected_drift_is_small():
    assert drift_by_place(repulsion=True).abs().max() < 0.1
    assert drift_by_place(repulsion=False).abs().max() > 0.5  # attraction alone draws everything inward
