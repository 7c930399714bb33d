"""Favour: windows of better episodes are learned from more often, by the episodes' ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import brief_inverse
from test_wish import DOMAIN, SMALL, first_actions

from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.errors import UserError
from kdp.keys import state_key
from kdp.methods import METHODS
from kdp.normalize import Normalizer
from kdp.runs import start_run
from kdp.sampler import Sampler
from kdp.value import ValueConfig
from kdp.windows import Episodes, Windows, favoured


def episodes(lengths: list[int], rewards: list[float], ended: list[bool]) -> Episodes:
    """Each with one reward for every step; the state says which it is."""
    which, last = np.repeat(np.arange(len(lengths)), lengths), np.cumsum(lengths) - 1
    end, cut = np.zeros(len(which), bool), np.zeros(len(which), bool)
    end[last], cut[last] = ended, ~np.array(ended)
    states = which[:, None].astype(float)
    return Episodes.from_arrays(states, np.zeros((len(which), 1)), np.array(rewards)[which], end, cut)


def chances(data: Episodes, favour: float) -> np.ndarray:
    """Of each step, in units of the first one's."""
    sums = favoured(data, favour).numpy()
    assert sums[-1] == 1 and (np.diff(sums) > 0).all()
    chance = np.diff(sums, prepend=0)
    return chance / chance[0]


def test_chances_go_by_the_share_of_steps_that_are_worse():
    """Returns 4, 2 and 6 of episodes with 4, 1 and 3 steps: ranks (1 + 2) / 8, 0.5 / 8 and (5 + 1.5) / 8."""
    data = episodes([4, 1, 3], [1.0, 2.0, 2.0], [True] * 3)
    expected = [1.0] * 4 + [math.exp(3 * (0.5 - 3) / 8)] + [math.exp(3 * (6.5 - 3) / 8)] * 3
    np.testing.assert_allclose(chances(data, 3.0), expected, rtol=1e-9)


def test_only_the_order_of_returns_counts():
    one, two = (episodes([5, 5, 5], rewards, [True] * 3) for rewards in ([1.0, 2.0, 3.0], [-50.0, 0.0, 9000.0]))
    np.testing.assert_allclose(chances(one, 8.0), chances(two, 8.0))


def test_equal_episodes_have_equal_chances():
    np.testing.assert_allclose(chances(episodes([3, 7, 2], [0.0] * 3, [True] * 3), 8.0), 1.0)


def test_an_episode_that_was_cut_short_is_not_worse_for_it():
    """One of 2 steps that earned 3 each and was cut is as good as one of 10; one that fell after 2 is not."""
    cut, fell = (chances(episodes([10, 10, 2], [1.0, 3.0, 3.0], [True, True, end]), 4.0) for end in (False, True))
    assert cut[-1] == pytest.approx(cut[10]) and fell[-1] < 1 < fell[10]


@pytest.mark.parametrize("favour", [2.0, 8.0])
def test_whatever_the_returns_are_about_two_over_favour_of_the_data_count(favour):
    lengths = [10] * 400
    for rewards in (np.random.default_rng(0).normal(size=400), np.exp(np.random.default_rng(1).normal(size=400) * 3)):
        chance = chances(episodes(lengths, rewards.tolist(), [True] * 400), favour)
        share = chance.sum() ** 2 / (chance**2).sum() / len(chance)
        assert share == pytest.approx(2 / favour * math.tanh(favour / 2), rel=0.01)


@pytest.mark.parametrize("positives", [0, 1, 4])
def test_batches_hold_each_episode_as_often_as_its_chance_says(positives):
    data = episodes([6, 2, 4], [1.0, 1.0, 1.0], [True] * 3)  # returns 6, 2 and 4
    units = Normalizer(torch.zeros(1), torch.ones(1), torch.zeros(1), torch.ones(1))
    drawn = Sampler(Windows(data, 1), units, state_key, 20_000, positives, table=20_000, share=favoured(data, 3.0))(0)
    found = torch.bincount(drawn.condition.state[:, 0].long(), minlength=3) / 20_000
    share = np.diff(favoured(data, 3.0).numpy(), prepend=0)
    expected = [share[:6].sum(), share[6:8].sum(), share[8:].sum()]
    np.testing.assert_allclose(found.numpy(), expected, atol=0.015)


@pytest.mark.parametrize("method", METHODS)
def test_the_better_of_two_ways_to_act_is_learned(method, tmp_path):
    """A third of the data are of the better way: plain, most plans are of the worse, or of neither."""
    asked = ValueConfig("none", favour=12.0)
    with brief_inverse():
        for name, value in (("favour", asked), ("plain", replace(asked, favour=0.0))):
            start_run(replace(SMALL, method=method, value=value), tmp_path / name, domain=DOMAIN)
    good, plain = (first_actions(tmp_path / name) for name in ("favour", "plain"))
    assert (good > 0.3).float().mean() > 0.9
    assert (plain > 0.3).float().mean() < 0.5


def test_a_domain_has_its_own_unless_it_is_chosen():
    domain = DOMAINS["hopper-medium"]
    assert RunConfig("hopper-medium").for_domain(domain).value.favour == domain.favour > 0
    assert RunConfig("hopper-medium", value=ValueConfig(favour=0.0)).for_domain(domain).value.favour == 0
    assert DOMAINS["maze2d-umaze"].favour == 0


@pytest.mark.parametrize("favour", [-1.0, float("nan"), float("inf")])
def test_what_is_no_favour_is_refused(favour, tmp_path):
    with pytest.raises(UserError, match=r"value.favour must be 0 \(off\) or more"):
        start_run(replace(SMALL, value=ValueConfig("none", favour=favour)), tmp_path / "run", domain=DOMAIN)
