"""What plans are worth: outcomes by hand, the field against its oracle, and scorers that learn what was planted."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from helpers import brief_inverse

import kdp
from kdp.backends.runtimes import ranked as without_torch
from kdp.checkpoint import load_tensors
from kdp.config import RunConfig
from kdp.domains import Domain
from kdp.drift import EPS, Field, ascend
from kdp.errors import UserError
from kdp.keys import Clamp, Condition
from kdp.methods import METHODS
from kdp.methods.kdp import tilted
from kdp.networks import NetworkConfig
from kdp.runs import SCORER, resume_run, spent, start_run
from kdp.sampler import Batch, Followed, generator
from kdp.train import TRAINING
from kdp.value import Scored, Value, ValueConfig, ranked
from kdp.windows import Episodes, Outcomes

# What followed


def episodes(rewards: list[list[float]], terminal: list[bool]) -> Episodes:
    """One state and action number a step, the step's own number; ends are real ones or time limits."""
    count = sum(map(len, rewards))
    last = np.cumsum([len(part) for part in rewards]) - 1
    terminals, timeouts = np.zeros(count, bool), np.zeros(count, bool)
    terminals[last[terminal]], timeouts[last[~np.array(terminal)]] = True, True
    number = np.arange(count, dtype=float)[:, None]
    return Episodes.from_arrays(number, number, np.concatenate(rewards), terminals, timeouts)


MIXED = episodes([[1, 2, 4], [8, 16], [32]], [True, False, True])  # steps 0-2, 3-4, 5


def test_one_step_is_followed_by_the_next_or_by_nothing():
    found = Outcomes.of(MIXED, 0.5)
    assert found.reward.tolist() == [1, 2, 4, 8, 0, 32]
    assert found.later.tolist() == [1, 2, 2, 4, 4, 5]
    assert found.discount.tolist() == [0.5, 0.5, 0, 0.5, 1, 0]  # nothing is gained after a real end
    assert found.known.tolist() == [1, 1, 1, 1, 0, 1]  # a time limit's last step: its reward leads nowhere known


def test_several_steps_stop_at_the_end_of_the_episode():
    found = Outcomes.of(MIXED, 0.5, steps=2)
    assert found.reward.tolist() == [2, 4, 4, 8, 0, 32]  # 1 + 2/2, 2 + 4/2, 4, 8 up to the last known state
    assert found.later.tolist() == [2, 2, 2, 4, 4, 5]
    assert found.discount.tolist() == [0.25, 0, 0, 0.5, 1, 0]
    assert found.known.tolist() == [1, 1, 1, 1, 0, 1]


def test_returns_end_at_a_real_end_and_go_on_after_a_time_limit():
    found = Outcomes.of(MIXED, 0.5)
    beyond = 12 / (1 - 0.5)  # the second episode's mean reward, for ever
    expected = [1 + 2 / 2 + 4 / 4, 2 + 4 / 2, 4, 8 + 16 / 2 + beyond / 4, 16 + beyond / 2, 32]
    assert found.returns.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_an_episode_that_never_ends_is_worth_the_same_everywhere(steps):
    """With a constant reward the returns, and a target built on them, are reward / (1 - discount) at every step."""
    data = episodes([[2.0] * 7, [2.0] * 4], [False, False])
    found = Outcomes.of(data, 0.9, steps)
    torch.testing.assert_close(found.returns, torch.full((11,), 20.0))
    target = found.reward + found.discount * found.returns[found.later]
    torch.testing.assert_close(target, torch.full((11,), 20.0))


# The field


@pytest.mark.parametrize("share", [0.0, 0.3, 2.0])
def test_the_field_goes_up_as_its_oracle_does(share):
    random = np.random.default_rng(0)
    drift, slope = random.normal(size=(2, 3, 4, 5)), random.normal(size=(2, 3, 4, 5))
    where = random.random((4, 5)) < 0.5
    count = 2 * 3 * where.sum()
    own, size = 0.0, 0.0
    for b, g, t, d in np.ndindex(*drift.shape):
        if where[t, d]:
            own, size = own + drift[b, g, t, d] ** 2 / count, size + slope[b, g, t, d] ** 2 / count
    expected = drift.copy()
    for b, g, t, d in np.ndindex(*drift.shape):
        if where[t, d]:
            expected[b, g, t, d] += share * own**0.5 * slope[b, g, t, d] / (size**0.5 + EPS)
    field = Field(torch.from_numpy(drift), {})
    found = ascend(field, torch.from_numpy(slope), torch.tensor(size**0.5), torch.from_numpy(where), share)
    np.testing.assert_allclose(found.drift.numpy(), expected, rtol=1e-12)


@lru_cache
def value(scorer: str, heads: int = 3) -> Value:
    torch.manual_seed(0)
    return Value(Clamp(2, 5, 3), 2, ValueConfig(scorer, heads=heads, width=16, layers=2)).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("scorer", ["return", "critic"])
def test_the_slope_is_that_of_finite_differences_less_where_heads_disagree(scorer):
    made, x = value(scorer), torch.randn(2, 3, 2, 5, dtype=torch.float64, generator=generator(1))
    slopes = torch.zeros(3, *x.shape, dtype=torch.float64)
    for place in np.ndindex(*x.shape):
        step = torch.zeros_like(x)
        step[place] = 1e-5
        slopes[(slice(None), *place)] = ((made.each(x + step) - made.each(x - step)) / 2e-5).sum((1, 2)).detach()
    where = torch.ones(2, 5, dtype=torch.bool)
    where[0, :3] = False  # clamped
    if scorer == "critic":
        where[1] = False  # it looks at the first action alone
    mean = slopes.mean(0) * where
    found, size, looked = made.slope(x)
    assert torch.equal(looked, where)
    torch.testing.assert_close(size, (mean.square().sum() / (6 * where.sum())).sqrt(), atol=1e-8, rtol=1e-6)
    trust = (mean.square() / (mean.square() + slopes.var(0))).nan_to_num()
    torch.testing.assert_close(found, mean * trust, atol=1e-6, rtol=1e-4)
    assert (found.abs() <= mean.abs()).all() and found.abs().sum() < 0.9 * mean.abs().sum()


def test_what_all_candidates_share_does_not_count_and_disagreement_does(monkeypatch):
    made = value("critic")
    says = torch.tensor([[[0.0, 1.0, 1.2]], [[10.0, 11.0, 9.2]], [[20.0, 21.0, 23.6]]])  # heads apart by ten each
    monkeypatch.setattr(made, "each", lambda windows: says)
    score = made.score(torch.zeros(1, 3, 2, 5))  # three plans with the same action
    assert score.argmax(1).item() == 1 and says.mean(0).argmax(1).item() == 2  # the mean's favourite is disputed
    torch.testing.assert_close(score[:, 1] - score[:, 0], torch.ones(1), atol=0.7, rtol=0)


@pytest.mark.parametrize(("heads", "caution"), [(5, 1.0), (5, 0.0), (1, 1.0)])
def test_votes_are_counted_alike_with_and_without_torch(heads, caution):
    votes = torch.randn(heads, 2, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.from_numpy(without_torch(votes.numpy(), caution)), ranked(votes, caution))


# What is learned


def bandit(spread: float, count: int = 6000, seed: int = 0) -> Episodes:
    """A state s in [-1, 1] that comes and goes; the best reward, zero, is for the action s / 2. Actions are
    drawn around zero with this spread; every other episode of ten steps ends for good."""
    random = np.random.default_rng(seed)
    state, action = random.uniform(-1, 1, (count, 1)), np.clip(random.normal(0, spread, (count, 1)), -1, 1)
    last = np.arange(count) % 10 == 9
    real = last & (np.arange(count) // 10 % 2 == 0)
    reward = -((action - state / 2) ** 2)[:, 0]
    return Episodes.from_arrays(state, action, reward, real, last & ~real)


SMALL = RunConfig("bandit", steps=300, batch=256, network=NetworkConfig(width=64, blocks=2, noise=4))


@lru_cache
def trained(folder, spread: float, method: str = "kdp", bandwidth: float = 0.2, **asked) -> kdp.Planner:
    domain = Domain("bandit", "", episodes=lambda: bandit(spread), horizon=2, key_temperature=bandwidth)
    config = replace(SMALL, method=method, value=ValueConfig(width=64, layers=2, rate=2e-3, discount=0.5, **asked))
    run = folder / f"{spread}-{method}-{bandwidth}-{'-'.join(map(str, asked.values()))}"
    with brief_inverse():
        start_run(config, run, domain=domain)
    return kdp.load(run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("value")


def windows(actions: list[float], state: float) -> torch.Tensor:
    """Candidates (1,K,2,2) that begin with these actions."""
    rows = torch.tensor([[[state, action], [state, 0.0]] for action in actions])
    return rows[None]


@pytest.mark.parametrize("apart", [0, 500])
@pytest.mark.parametrize("scorer", ["return", "critic"])
@pytest.mark.parametrize("state", [-0.8, 0.0, 0.8])
def test_a_scorer_ranks_the_planted_window_first(folder, scorer, state, apart):
    planner = trained(folder, 0.5, scorer=scorer, apart=apart)
    actions = [-0.9, -0.4, 0.0, 0.4, 0.9]
    score = planner.scorer(windows(actions, state), None)
    assert actions[int(score.argmax())] == min(actions, key=lambda action: abs(action - state / 2))
    assert planner.plan([state], candidates=64).actions[0, 0] == pytest.approx(state / 2, abs=0.2)


@pytest.mark.parametrize("smooth", [0.0, 1.0])
def test_a_smooth_return_model_changes_slowly(smooth):
    """What is known of u from u with noise of size s added is u / (1 + s^2), for u as standard normal as the noise."""
    random = torch.Generator().manual_seed(0)
    config = ValueConfig("return", heads=1, width=64, layers=2, smooth=smooth)
    clamp = Clamp(2, 2, 1)
    learner = Scored(METHODS["bc"](clamp, SMALL), Value(clamp, 1, config))
    optimizer = torch.optim.Adam(learner.value.parameters(), 3e-3)
    for _ in range(400):
        seen = torch.randn(512, 2, 2, generator=random)
        followed = Followed(*torch.zeros(4, 512), seen[:, 1, 1])  # type: ignore[arg-type]
        batch = Batch(seen, Condition(seen[:, 0, :1]), seen[:, 0, :1], followed=followed)
        loss, _ = learner.loss(batch, learner.draws(512, random))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    plans = torch.zeros(1, 3, 2, 2)
    plans[0, :, 1, 1] = torch.tensor([-1.0, 0.0, 1.0])
    low, middle, high = learner.value.score(plans)[0].tolist()
    assert [low, middle, high] == pytest.approx([-1 / (1 + smooth**2), 0, 1 / (1 + smooth**2)], abs=0.2)


def test_a_larger_ensemble_says_the_same_of_plans_whatever_its_seed():
    """A return is mostly what the state is worth and chance, and a little what the action is: what one network makes of
    the actions is half chance too, which differs from seed to seed."""
    clamp, random = Clamp(2, 8, 6), torch.Generator().manual_seed(0)
    seen = torch.randn(1000, 2, 8, generator=random)
    gained = seen[:, 0, 0] + 0.1 * seen[:, 0, 6] + 0.3 * torch.randn(1000, generator=random)
    plans = torch.randn(50, 1, 2, 8, generator=random).repeat(1, 32, 1, 1)
    plans[:, :, 0, 6:] = torch.randn(50, 32, 2, generator=random)

    def said(heads: int, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        value = Value(clamp, 2, ValueConfig("return", heads=heads, width=32, layers=2, caution=0.0))
        optimizer = torch.optim.AdamW(value.parameters(), 3e-3)
        for _ in range(200):
            some = torch.randint(1000, (256,))
            followed = Followed(*torch.zeros(4, 256), gained[some])  # type: ignore[arg-type]
            loss, _ = value.loss(Batch(seen[some], Condition(seen[some, 0, :6]), seen[some, 0, :6], followed=followed))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            scores = value.score(plans)
        return (scores - scores.mean(1, keepdim=True)).flatten()

    few, many = (torch.corrcoef(torch.stack([said(heads, 1), said(heads, 2)]))[0, 1] for heads in (1, 8))
    assert few < 0.8 < 0.9 < many


@pytest.mark.parametrize("sees", ["actions", "window"])
def test_a_scorer_that_sees_actions_is_not_swayed_by_what_a_plan_says_will_follow(sees):
    """The next state is the first and the action, and all that is gained. Plans may say otherwise."""
    random, clamp = torch.Generator().manual_seed(0), Clamp(2, 2, 1)
    config = ValueConfig("return", width=64, layers=2, sees=sees)
    value = Value(clamp, 1, config)
    optimizer = torch.optim.AdamW(value.parameters(), 3e-3)
    for _ in range(400):
        seen = torch.randn(512, 2, 2, generator=random)
        seen[:, 1, 0] = seen[:, 0].sum(1)
        followed = Followed(*torch.zeros(4, 512), seen[:, 1, 0])  # type: ignore[arg-type]
        loss, _ = value.loss(Batch(seen, Condition(seen[:, 0, :1]), seen[:, 0, :1], followed=followed))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    plans = torch.zeros(1, 4, 2, 2)
    plans[0, :, 0, 1], plans[0, :, 1, 0] = torch.tensor([[-1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, 1.0, -1.0]])
    low, boasting, high, modest = value.score(plans)[0].tolist()
    assert [low, high] == pytest.approx([-1, 1], abs=0.2)
    if sees == "actions":
        assert (boasting, modest) == (low, high)
        assert not value.slope(plans).where[1, 0] and not value.slope(plans).slope[..., 1, 0].any()
    else:
        assert boasting > low + 0.3 and modest < high - 0.3


def error(planner: kdp.Planner) -> float:
    """The mean square of how far single plans' first actions are from the best ones."""
    states = np.linspace(-0.9, 0.9, 7)
    plans = [planner.plan([state], candidates=200).candidates[:, 0, 1] - state / 2 for state in states]
    return float(np.mean(np.square(plans)))


@pytest.mark.parametrize("targets", ["data", "generator"])
@pytest.mark.parametrize(("tilt", "ascent"), [(2.0, 0.0), (0.0, 0.5)])
def test_value_in_the_field_moves_plans_to_better_actions(folder, tilt, ascent, targets):
    """Without it plans are spread as the data are."""
    plain = error(trained(folder, 0.5, scorer="critic", apart=0))
    valued = error(trained(folder, 0.5, scorer="critic", targets=targets, tilt=tilt, ascent=ascent))
    assert plain > 0.2 and valued < 0.6 * plain


@pytest.mark.parametrize("scorer", ["critic", "return"])
def test_tilt_moves_plans_also_where_no_neighbour_is_near_enough_to_count(folder, scorer):
    plain = error(trained(folder, 0.5, bandwidth=1e-4, scorer="critic"))  # a scorer only looks on
    valued = error(trained(folder, 0.5, bandwidth=1e-4, scorer=scorer, tilt=2.0))
    assert plain > 0.2 and valued < 0.6 * plain


def test_targets_from_the_generator_are_those_of_the_mean_plan(folder):
    """Rewards are -(a - s/2)^2 and actions noise about 0: the mean plan acts 0, gets -s^2/4 at once and, with discount
    1/2, about -E[s^2]/4 = -1/12 in all after that; whoever drew actions as the data do would get 0.25 a step less."""
    planner = trained(folder, 0.5, scorer="critic", targets="generator", apart=2000)
    value = planner.scorer.value
    state = torch.linspace(-0.9, 0.9, 19)
    seen = torch.stack([state, torch.zeros(19)], -1).view(1, 19, 1, 2).expand(1, 19, 2, 2)
    got = value.each(planner.normalizer.tokens(seen)).mean(0)[0] * value.spread + value.mean
    torch.testing.assert_close(got, -state.square() / 4 - 1 / 12, rtol=0, atol=0.06)


def test_better_positives_count_more_and_so_do_conditions_that_have_them():
    log_weight = torch.tensor([[0.0, 0.0], [0.0, -50.0], [0.0, -50.0]])
    advantage = torch.tensor([[1.0, -1.0], [1.0, 7.0], [-1.0, 7.0]])
    size = float(advantage.square().mean().sqrt())
    better, mass = tilted(log_weight, advantage, 2.0)
    torch.testing.assert_close(better, log_weight + 2 * advantage / size, rtol=1e-5, atol=1e-5)
    won = torch.tensor([math.cosh(2 / size), math.exp(2 / size), math.exp(-2 / size)])
    torch.testing.assert_close(mass, 3 * won / won.sum(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ascent", [0.3])
def test_where_the_data_are_narrow_plans_stay_with_them(folder, ascent):
    planner = trained(folder, 0.02, scorer="critic", ascent=ascent)
    first = np.concatenate([planner.plan([s], candidates=100).candidates[:, 0, 1] for s in (-0.8, 0.0, 0.8)])
    assert np.abs(first).max() < 0.2


@pytest.mark.parametrize("apart", [0, 70])
@pytest.mark.parametrize("scorer", ["return", "critic"])
@pytest.mark.parametrize("method", METHODS)
def test_any_method_with_a_scorer_is_saved_loaded_and_resumed_exactly(tmp_path, method, scorer, apart):
    domain = Domain("bandit", "", episodes=lambda: bandit(0.5, 400), horizon=2)
    value = ValueConfig(scorer, width=16, layers=2, smooth=0.3, apart=apart, batch=4)
    config = replace(SMALL, method=method, steps=9, batch=16, value=value)
    with brief_inverse():
        assert start_run(config, tmp_path / "whole", domain=domain).step == 9 + apart
        start_run(config, tmp_path / "parts", domain=domain, stop_after=4)
        assert not spent(tmp_path / "parts", config)[2]
        if apart:
            assert kdp.load(tmp_path / "parts").scorer is None
            assert not resume_run(tmp_path / "parts", domain=domain, stop_after=14).finished
        resume_run(tmp_path / "parts", domain=domain)
    steps, _, finished = spent(tmp_path / "parts", config)
    assert steps == 9 and finished
    for part in (".", SCORER) if apart else (".",):
        whole, parts = (load_tensors(tmp_path / name / part / TRAINING)[0] for name in ("whole", "parts"))
        assert whole.keys() == parts.keys() and all(torch.equal(whole[k], parts[k]) for k in whole)
    one, two = (kdp.load(tmp_path / name).plan([0.3], candidates=8) for name in ("whole", "parts"))
    assert np.array_equal(one.scores, two.scores) and len(set(one.scores)) == (1 if method == "bc" else 8)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"scorer": "none", "tilt": 1.0}, "needs a scorer"),
        ({"scorer": "none", "ascent": 1.0}, "needs a scorer"),
        ({"scorer": "critic", "discount": 1.0}, "value.discount must be between 0 and 1"),
        ({"scorer": "critic", "ascent": -1.0}, "value.ascent must be 0 (off) or more"),
        ({"scorer": "return", "smooth": -1.0}, "value.smooth must be 0 (off) or more"),
        ({"scorer": "critic", "heads": 0}, "value.heads must be more than zero"),
        ({"scorer": "critic", "apart": -1}, "value.apart must be 0 (off) or more"),
        ({"scorer": "critic", "apart": 9, "tilt": 1.0}, "a scorer that learns beside the generator"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, asked, said):
    domain = Domain("bandit", "", episodes=lambda: bandit(0.5, 400), horizon=2)
    with pytest.raises(UserError) as error:
        start_run(replace(SMALL, value=ValueConfig(**asked)), tmp_path / "run", domain=domain)
    assert said in str(error.value) and not (tmp_path / "run").exists()


def test_minutes_are_shared_with_a_scorer_apart_and_its_steps_follow_the_generators():
    domain = Domain("bandit", "", episodes=lambda: bandit(0.5, 400), value="critic", apart=5.0)
    assert [budget.steps for budget in RunConfig("bandit", steps=30).for_domain(domain).budgets()] == [30, 150]
    timed = RunConfig("bandit", minutes=3.0)
    assert [budget.minutes for budget in timed.for_domain(domain).budgets()] == [1.5, 1.5]
    alone = replace(timed, value=ValueConfig("critic", apart=0)).for_domain(domain)
    assert alone.budgets()[0].minutes == 3.0 and not alone.value.apart
    assert RunConfig("bandit", value=ValueConfig("none")).for_domain(domain).value.apart == 0


def test_goal_problems_and_other_methods_targets_are_refused(tmp_path):
    with pytest.raises(UserError, match="none where plans have goals"):
        start_run(RunConfig("maze2d-umaze", steps=5, value=ValueConfig("critic")), tmp_path / "run")
    domain = Domain("bandit", "", episodes=lambda: bandit(0.5, 400), horizon=2)
    asked = replace(SMALL, method="diffuser", value=ValueConfig("critic", targets="generator"))
    with pytest.raises(UserError, match="only kdp draws its actions in one call"):
        start_run(asked, tmp_path / "run", domain=domain)
