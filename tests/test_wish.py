"""Wishes: quantiles are learned, a wish picks the better of two ways to act, and every backend plans with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import brief_inverse

from kdp.config import RunConfig
from kdp.domains import Domain
from kdp.errors import UserError
from kdp.keys import Condition, ReturnKey, state_key
from kdp.methods import METHODS
from kdp.networks import NetworkConfig
from kdp.parts import build_method
from kdp.runs import load, start_run
from kdp.train import LoopConfig
from kdp.value import ValueConfig
from kdp.windows import Episodes
from kdp.wish import LEVELS, Wishing, mixed, pinball

SMALL = RunConfig("two ways", steps=300, batch=128, network=NetworkConfig("mlp", width=32), loop=LoopConfig(lr=5e-3))


def two_ways(count: int = 4000) -> Episodes:
    """Episodes of one step, from states in -1..1: a third act 0.5 and are paid 1, the others act -0.5 and are not."""
    random = np.random.default_rng(0)
    state, good = random.uniform(-1, 1, (count, 1)), random.random(count) < 1 / 3
    action = np.where(good, 0.5, -0.5)[:, None] + 0.02 * random.normal(size=(count, 1))
    end = np.ones(count, bool)
    return Episodes.from_arrays(state, action, good.astype(float), end, ~end, "two ways")


DOMAIN = Domain("two ways", "a choice", episodes=two_ways, horizon=1)


def first_actions(run: Path) -> torch.Tensor:
    """(9,32) of plans from nine states."""
    state = torch.linspace(-0.8, 0.8, 9)[:, None]
    plans = load(run, backend="eager").plan_batch(state, None, 32, torch.Generator().manual_seed(0))
    return plans.candidates[..., 0, 1]


@pytest.mark.parametrize("level", [0.1, 0.25, 0.5, 0.93, 0.95])
def test_a_level_lies_between_its_neighbours(level):
    assert float(torch.tensor(LEVELS) @ mixed(level)) == pytest.approx(level)
    assert float(mixed(level).sum()) == pytest.approx(1) and (mixed(level) > 0).sum() <= 2


def test_beyond_the_outermost_level_it_is_taken():
    assert torch.equal(mixed(0.99), mixed(LEVELS[-1])) and torch.equal(mixed(0.01), mixed(LEVELS[0]))


def test_the_pinball_loss_is_least_at_the_quantile():
    seen, levels = torch.arange(1000.0)[:, None] / 1000, torch.tensor([0.2, 0.9])

    def loss(low, high):
        return float(pinball(torch.tensor([[low, high]]).expand(1000, 2), seen, levels))

    assert loss(0.2, 0.9) < min(loss(0.25, 0.9), loss(0.15, 0.9), loss(0.2, 0.95), loss(0.2, 0.85))


def test_the_key_has_the_return_too():
    condition = Condition(torch.randn(5, 3), torch.randn(5, 1))
    assert torch.equal(ReturnKey(state_key)(condition), condition.vector())


@pytest.mark.parametrize("method", METHODS)
def test_a_wish_picks_the_better_of_two_ways_to_act(method, tmp_path):
    """Without one, two thirds of the plans are of the worse, and the mean is neither."""
    asked = ValueConfig("none", wish=0.9)
    with brief_inverse():
        for name, value in (("wish", asked), ("none", replace(asked, wish=0.0))):
            start_run(replace(SMALL, method=method, value=value), tmp_path / name, domain=DOMAIN)
    wishing, plain = (first_actions(tmp_path / name) for name in ("wish", "none"))
    assert (wishing > 0.3).float().mean() > 0.9
    assert (plain > 0.3).float().mean() < 0.5


def test_a_plan_is_the_same_by_every_backend_and_after_loading(tmp_path):
    start_run(replace(SMALL, steps=20, value=ValueConfig("return", wish=0.7, blend=1.0)), tmp_path, domain=DOMAIN)
    plans = [load(tmp_path, backend=name).plan([0.3], candidates=8, seed=1) for name in ("eager", "onnx")]
    np.testing.assert_allclose(plans[0].candidates, plans[1].candidates, atol=1e-4)


def test_a_return_that_is_told_is_not_wished_over():
    config = replace(SMALL, value=ValueConfig("none", wish=0.9)).for_domain(DOMAIN)
    method = build_method(config, 1, 1, ())
    assert isinstance(method, Wishing)
    told = Condition(torch.randn(4, 1), torch.randn(4, 1))
    assert method.wished(told) is told and method.wished(Condition(told.state)).goal.shape == (4, 1)


def test_where_plans_have_goals_there_is_no_wish(tmp_path):
    with pytest.raises(UserError, match="value.wish must be 0 where plans have goals"):
        start_run(RunConfig("maze2d-umaze", steps=5, value=ValueConfig("none", wish=0.5)), tmp_path / "run")


@pytest.mark.parametrize("wish", [-0.1, 1.0, float("nan")])
def test_a_wish_is_a_share(wish, tmp_path):
    with pytest.raises(UserError, match="value.wish must be 0"):
        start_run(replace(SMALL, value=ValueConfig("none", wish=wish)), tmp_path / "run", domain=DOMAIN)
