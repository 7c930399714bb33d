"""Plans, their scores, and the controller that executes them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import plain_normalizer, skewed_normalizer

from kdp.backends.whole import WholePlan
from kdp.drift import DriftConfig
from kdp.errors import UserError
from kdp.keys import Clamp
from kdp.methods.diffuser import Guide, gradient
from kdp.methods.kdp import KDP
from kdp.networks import NetworkConfig
from kdp.plan import Backend, Controller, Planner, Plans, Tracker, moved_on, state_at
from kdp.record import FAINT, followed
from kdp.score import Arrival

STATE, ACTION, STRIDE, TOKENS, GOAL_DIMS = 4, 2, 3, 5, (0, 1)
WIDTH, HORIZON = STATE + STRIDE * ACTION, TOKENS * STRIDE
OBSERVATION, GOAL = np.array([1.5, -2.0, 0.3, 4.0]), np.array([3.0, 0.5])


def method(kind: str = "mlp", goals: bool = True) -> KDP:
    """Tiny and untrained."""
    torch.manual_seed(0)
    clamp = Clamp(TOKENS, WIDTH, STATE, GOAL_DIMS if goals else ())
    return KDP(clamp, DriftConfig(), NetworkConfig(kind, width=32, blocks=1, channels=4, noise=4)).eval()


def planner(kind: str = "mlp", goals: bool = True, **options) -> Planner:
    return Planner(
        method(kind, goals).sample,
        skewed_normalizer(STATE, ACTION),
        STRIDE,
        GOAL_DIMS if goals else (),
        **options,
    )


def last_speed(windows, goals):
    """A scorer: a number of the last token."""
    return windows[..., -1, 2]


every_network = pytest.mark.parametrize("kind", ["mlp", "unet"])


# Plans


@every_network
def test_the_same_seed_makes_the_same_plan(kind):
    one, same, other = (planner(kind).plan(OBSERVATION, GOAL, 8, seed=seed).candidates for seed in (3, 3, 4))
    assert np.array_equal(one, same) and not np.allclose(one, other)


@every_network
@pytest.mark.parametrize("candidates", [1, 7])
def test_a_plan_has_its_shapes_in_the_units_of_the_data(kind, candidates):
    plan = planner(kind).plan(OBSERVATION, GOAL, candidates)
    assert plan.candidates.shape == (candidates, TOKENS, WIDTH) and plan.scores.shape == (candidates,)
    assert plan.states.shape == (TOKENS, STATE) and plan.actions.shape == (HORIZON, ACTION)
    assert np.array_equal(plan.states, plan.candidates[plan.chosen, :, :STATE])
    assert plan.latency_s > 0


def test_candidates_are_the_methods_windows_in_the_units_of_the_data():
    made = planner()
    plan = made.plan(OBSERVATION, GOAL, 4, seed=5)
    random, told = torch.Generator().manual_seed(5), []

    def listen(condition, n, generator):
        told.append(condition)
        return method().sample(condition, n, generator)

    replace(made, sample=listen).plan(OBSERVATION, GOAL, 4)
    with torch.no_grad():
        windows = method().sample(told[0], 4, random)[0]
    n = made.normalizer
    mean = torch.cat([n.state_mean, *[n.action_mean] * STRIDE])
    std = torch.cat([n.state_std, *[n.action_std] * STRIDE])
    np.testing.assert_allclose(plan.candidates, windows * std + mean, atol=1e-5)
    state = torch.tensor(OBSERVATION, dtype=torch.float32)
    torch.testing.assert_close(told[0].state[0], (state - n.state_mean) / n.state_std)


def test_the_stride_of_actions_is_undone():
    plan = planner().plan(OBSERVATION, GOAL, 3)
    for step in range(HORIZON):
        at = STATE + step % STRIDE * ACTION
        assert np.array_equal(plan.actions[step], plan.best[step // STRIDE, at : at + ACTION])


@every_network
def test_every_candidate_starts_here_and_ends_at_the_goal(kind):
    candidates = planner(kind).plan(OBSERVATION, GOAL, 6).candidates
    np.testing.assert_allclose(candidates[:, 0, :STATE], np.tile(OBSERVATION, (6, 1)), atol=1e-5)
    np.testing.assert_allclose(candidates[:, -1, list(GOAL_DIMS)], np.tile(GOAL, (6, 1)), atol=1e-5)


def test_a_plan_is_sent_to_another_process_with_all_its_candidates():
    plan = planner().plan(OBSERVATION, GOAL, 6)
    sent = pickle.loads(pickle.dumps(plan))
    assert np.array_equal(sent.candidates, plan.candidates) and np.array_equal(sent.best, plan.best)
    assert sent.chosen == plan.chosen and np.array_equal(sent.actions, plan.actions)


def test_a_backend_may_draw_the_noise_and_keep_the_candidates():
    class Short:
        def __init__(self, whole):
            self.whole = whole

        @torch.no_grad()
        def decide(self, candidates, seed, observation, goal):
            noise = self.whole.method.draw(1, candidates, torch.Generator().manual_seed(seed))
            plans = Plans(*self.whole(torch.from_numpy(observation), noise, torch.from_numpy(goal)))
            return plans.candidates, plans.brief.numpy()

    plain = planner(scorer=lambda windows, goal: windows[:, :, -1, 2])
    drawn = plain.sample.__self__
    backend = Backend("short", plain.sample, drawn.draw, lambda *parts: Short(WholePlan(drawn, *parts)))
    short = replace(plain, computed=backend)
    for candidates in (1, 5):
        one, other = (each.plan(OBSERVATION, GOAL, candidates, seed=2) for each in (plain, short))
        assert one.chosen == other.chosen and other.scores.shape == (candidates,)
        np.testing.assert_allclose(one.best, other.best, atol=1e-5)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        np.testing.assert_allclose(one.candidates, other.candidates, atol=1e-5)


def test_without_scores_a_blend_is_the_plain_mean():
    blended = replace(planner(), blend=2.0)
    plan = blended.plan(OBSERVATION, GOAL, 6)
    np.testing.assert_allclose(plan.best, plan.candidates.mean(0), atol=1e-5)


def test_candidates_differ():
    candidates = planner().plan(OBSERVATION, GOAL, 6).candidates
    assert (candidates.std(0)[1:-1] > 1e-3).all()


@every_network
def test_a_batch_of_one_equals_a_row_of_a_batch(kind):
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(5, 3, 4, generator=random)
    observations, goals = torch.randn(5, STATE, generator=random), torch.randn(5, 2, generator=random)
    made = method(kind)

    def plans(rows: slice):
        fixed = replace(planner(kind), sample=lambda c, n, g: made.decode(noise[rows], c), scorer=last_speed)
        return fixed.plan_batch(observations[rows], goals[rows], 3, random)

    together = plans(slice(None))
    for row in range(5):
        alone = plans(slice(row, row + 1))
        torch.testing.assert_close(alone.candidates[0], together.candidates[row], atol=1e-5, rtol=0)
        torch.testing.assert_close(alone.best[0], together.best[row], atol=1e-5, rtol=0)


def test_the_best_by_the_scorer_is_taken():
    chosen = set()
    for seed in range(5):
        plan = planner(scorer=last_speed).plan(OBSERVATION, GOAL, 8, seed=seed)
        np.testing.assert_allclose(plan.scores, plan.candidates[:, -1, 2])
        assert plan.chosen == plan.scores.argmax() and np.array_equal(plan.best, plan.candidates[plan.chosen])
        chosen.add(plan.chosen)
    assert len(chosen) > 1


def test_a_blend_is_the_mean_of_all_in_which_the_better_count_more():
    random = torch.Generator().manual_seed(0)
    windows = torch.randn(3, 8, 4, 5, generator=random, dtype=torch.float64)
    scores = torch.randn(3, 8, generator=random, dtype=torch.float64)
    best = Plans(windows, scores, scores.argmax(1), 1.5).best
    for row in range(3):
        worth = scores[row].numpy()
        weight = np.exp(1.5 * (worth - worth.mean()) / (worth.std() + FAINT))
        expected = sum(w * window for w, window in zip(weight / weight.sum(), windows[row].numpy(), strict=True))
        np.testing.assert_allclose(best[row], expected, atol=1e-5)
        np.testing.assert_allclose(followed(windows[row].numpy(), worth, int(worth.argmax()), 1.5), expected, atol=1e-5)
    equal = torch.zeros(3, 8, dtype=torch.float64)
    torch.testing.assert_close(Plans(windows, equal, equal.argmax(1), 1.5).best, windows.mean(1))  # no scorer, say
    torch.testing.assert_close(Plans(windows[:, :1], scores[:, :1], equal[:, 0].long(), 1.5).best, windows[:, 0])
    first = windows.take_along_dim(scores.argmax(1)[:, None, None, None], 1)[:, 0]
    torch.testing.assert_close(Plans(windows, scores, scores.argmax(1), 200.0).best, first, atol=1e-3, rtol=0)


def test_a_planner_follows_the_blend_that_it_is_given():
    plain = planner(scorer=last_speed)
    plan = plain.blended(2.0).plan(OBSERVATION, GOAL, 8)
    expected = followed(plan.candidates, plan.scores, plan.chosen, 2.0)
    np.testing.assert_allclose(plan.best, expected, atol=1e-5)
    assert not np.allclose(plan.best, plan.candidates[plan.chosen], atol=1e-3)
    np.testing.assert_array_equal(plain.plan(OBSERVATION, GOAL, 8).candidates, plan.candidates)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(UserError, match="blend must be 0"):
            plain.blended(wrong)


def test_noise_averages_out_of_a_blend_and_not_of_the_best():
    """One way to act, noise about it in every coordinate, a scorer that is mistaken about most of them."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 64, 2, 6, generator=random)
    scores = noise[:, :, 0, 0] + torch.randn(200, 64, generator=random)  # the first is truly better
    plans = Plans(noise, scores, scores.argmax(1))
    off = {blend: plans._replace(blend=blend).best.flatten(1) for blend in (0.0, 1.0)}
    assert off[1.0][:, 0].mean() > 0.4  # better than the mean, which is zero
    others = {blend: best[:, 1:].square().mean() for blend, best in off.items()}
    assert others[1.0] < 0.1 * others[0.0]


def test_the_scorer_is_told_windows_and_goals_in_the_units_of_the_data():
    heard = []

    def scorer(windows, goals):
        heard.append((windows, goals))
        return windows[..., 0, 0]

    plan = planner(scorer=scorer).plan(OBSERVATION, GOAL, 2)
    np.testing.assert_allclose(heard[0][0][0], plan.candidates)
    np.testing.assert_allclose(heard[0][1], GOAL[None])


def test_without_a_scorer_the_first_is_taken():
    plan = planner().plan(OBSERVATION, GOAL, 8)
    assert plan.chosen == 0 and not plan.scores.any()


def test_a_plan_without_goals_needs_none():
    plan = planner(goals=False).plan(OBSERVATION, candidates=2)
    np.testing.assert_allclose(plan.states[0], OBSERVATION, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "goals", "message"),
    [
        ((OBSERVATION[:3], GOAL), True, r"observation must be 4 numbers; got shape \(3,\)"),
        ((OBSERVATION[None], GOAL), True, r"observation must be 4 numbers; got shape \(1, 4\)"),
        ((OBSERVATION * np.nan, GOAL), True, "observation must be finite"),
        ((OBSERVATION, GOAL * np.inf), True, "goal must be finite"),
        ((OBSERVATION, OBSERVATION), True, r"goal must be 2 numbers; got shape \(4,\)"),
        ((OBSERVATION, 1.0), True, r"goal must be 2 numbers; got shape \(\)"),
        ((OBSERVATION,), True, "toward a goal of 2 numbers; got none"),
        ((OBSERVATION, GOAL), False, "trained without goals; leave the goal out"),
        ((OBSERVATION, GOAL, 0), True, "candidates must be 1 or more; got 0"),
        ((OBSERVATION, GOAL, -3), True, "candidates must be 1 or more; got -3"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(arguments, goals, message):
    with pytest.raises(UserError, match=message):
        planner(goals=goals).plan(*arguments)


# The controller


def counting_planner(tracker: Tracker | None = None) -> tuple[Planner, list[int]]:
    """The n-th plan, of two tokens of three steps: positions 10n and 10n + 6, velocities 1, actions 100n + step."""
    calls: list[int] = []

    def sample(condition, n, generator):
        call = len(calls)
        calls.append(n)
        position, velocity = 10 * call + torch.tensor([[0.0], [6.0]]), torch.ones(2, 1)
        actions = 100 * call + torch.arange(6.0).view(2, 3)
        return torch.cat([position, velocity, actions], 1).expand(len(condition), n, 2, 5)

    return Planner(sample, plain_normalizer(2, 1), 3, tracker=tracker), calls


@pytest.mark.parametrize(
    ("chunk", "actions", "plans"),
    [
        (1, [0, 100, 200, 300, 400, 500, 600, 700], 8),
        (3, [0, 1, 2, 100, 101, 102, 200, 201], 3),
        (8, [0, 1, 2, 3, 4, 5, 5, 5], 1),  # past the end of the plan its last action is held
        (0, [0, 1, 2, 3, 4, 5, 5, 5], 1),  # open loop
    ],
)
def test_a_controller_plans_once_a_chunk_and_acts_it_out(chunk, actions, plans):
    made, calls = counting_planner()
    controller = Controller(made, candidates=4, chunk=chunk)
    taken = [controller.act(np.zeros((3, 2)), None) for _ in range(8)]
    assert all(action.shape == (3, 1) for action in taken)
    assert [float(action[0, 0]) for action in taken] == actions
    assert calls == [4] * plans


def test_the_track_executor_steers_at_the_state_ahead():
    tracker = Tracker(position=(0,), velocity=(1,), kp=2.0, kd=0.5, lookahead=2, low=-100, high=100)
    made, calls = counting_planner(tracker)
    controller = Controller(made, executor="track", chunk=3)
    for step, position in enumerate([0.0, 0.5, 1.5, 2.0, 9.0]):
        state = np.array([[position, 0.25]])
        plan, age = divmod(step, 3)
        target = 10 * plan + min(2.0 * (age + 2), 6)  # two positions a step, until the last token
        velocity = 1 if age + 2 <= 3 else 0  # beyond the last token, after three steps, it is held
        expected = 2 * (target - position) + 0.5 * (velocity - 0.25)
        assert controller.act(state, None) == pytest.approx(np.array([[expected]]), abs=1e-5)
    assert len(calls) == 2


def test_in_open_loop_there_is_one_plan_and_its_last_state_is_held():
    tracker = Tracker(position=(0,), velocity=(1,), kp=2.0, kd=0.5, lookahead=1, low=-100, high=100)
    made, calls = counting_planner(tracker)
    seen: list[float] = []

    class Aims:
        ahead = 2

        def __call__(self, state, target):
            seen.append(float(target[0, 0]))
            return target[:, :1]

    steering = [Controller(replace(made, inverse=Aims()), 1, executor, 0) for executor in ("track", "inverse")]
    state = np.array([[1.0, 0.0]])
    tracked = [float(steering[0].act(state, None)[0, 0]) for _ in range(20)]
    for _ in range(20):
        steering[1].act(state, None)
    assert calls == [1, 1]
    along = [2 * (position - 1) + 0.5 for position in (2.0, 4.0, 6.0)]
    assert tracked == pytest.approx(along + [2 * (6.0 - 1)] * 17, abs=1e-5)
    assert seen == pytest.approx([14.0] + [16.0] * 19, abs=1e-5)  # the second plan begins at 10


def refining_planner() -> tuple[Planner, list[tuple[int, torch.Tensor]]]:
    """The counting planner with three network calls, whose refinement adds 1000 to what it is given."""
    made, _ = counting_planner()
    heard: list[tuple[int, torch.Tensor]] = []

    def refine(windows, condition, generator, steps):
        heard.append((steps, windows))
        return windows + 1000

    return replace(made, refine=refine, nfe=3, normalizer=plain_normalizer(2, 1)), heard


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_a_warm_start_refines_the_last_candidates_moved_on_by_what_was_executed(chunk):
    made, heard = refining_planner()
    controller = Controller(made, candidates=4, chunk=chunk, warm=2)
    last = None
    for step in range(3 * chunk):
        action = controller.act(np.zeros((5, 2)), None)
        if step % chunk == 0 and last is not None:
            steps, given = heard[-1]
            assert steps == 2 and given.shape == (5, 4, 2, 5)
            torch.testing.assert_close(given, moved_on(last, chunk, 3, 2))
            torch.testing.assert_close(controller.plans.candidates, given + 1000)
        last = controller.plans.candidates
        assert action[0, 0] == last[0, 0].flatten(0)[[2, 3, 4, 7, 8, 9][step % chunk]]
    assert len(heard) == 2


def test_a_refined_plan_is_refined_in_the_methods_units_and_scored_as_any_other():
    made, heard = refining_planner()
    made = replace(made, normalizer=skewed_normalizer(2, 1), scorer=lambda windows, goals: windows[..., 1, 0])
    earlier = torch.randn(1, 7, 2, 5)
    plans = made.plan_batch(torch.zeros(1, 2), None, 7, torch.Generator(), earlier, 1)
    torch.testing.assert_close(heard[0][1], made.normalizer.tokens(earlier))
    torch.testing.assert_close(plans.candidates, made.normalizer.untokens(heard[0][1] + 1000))
    assert int(plans.chosen) == int(earlier[0, :, 1, 0].argmax())


@pytest.mark.parametrize(
    ("steps", "states", "actions"),
    [
        (0, [0, 2, 8], [0, 1, 2, 3, 4, 5]),
        (1, [1, 5, 8], [1, 2, 3, 4, 5, 5]),
        (2, [2, 8, 8], [2, 3, 4, 5, 5, 5]),
        (3, [5, 8, 8], [3, 4, 5, 5, 5, 5]),
        (9, [8, 8, 8], [5, 5, 5, 5, 5, 5]),
    ],
)
def test_a_window_moved_on_begins_later_and_repeats_its_end(steps, states, actions):
    def window(states, actions):
        return torch.cat([torch.tensor(states).view(3, 1), torch.tensor(actions).view(3, 2)], 1).float()

    first = window([0, 2, 8], list(range(6)))
    expected = window(states, actions)
    moved = moved_on(torch.stack([first, -first])[None], steps, 2, 1)
    torch.testing.assert_close(moved, torch.stack([expected, -expected])[None])


def test_the_tracker_keeps_within_its_bounds():
    tracker = Tracker(position=(0,), velocity=(1,), kp=10.0, kd=1.0, lookahead=1)
    target = torch.tensor([[5.0, 0.0], [-5.0, 0.0], [0.01, 0.0]])
    assert tracker(target, torch.zeros(3, 2)).flatten().tolist() == pytest.approx([1, -1, 0.1])


def test_two_controllers_with_one_seed_do_the_same():
    observations, goals = np.tile(OBSERVATION, (3, 1)), np.tile(GOAL, (3, 1))

    def three_actions(seed: int) -> np.ndarray:
        controller = Controller(planner(), candidates=2, seed=seed)
        return np.stack([controller.act(observations, goals) for _ in range(3)])

    one, same, other = (three_actions(seed) for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.allclose(one, other)
    assert not np.allclose(one[0], one[1])  # every plan has noise of its own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "jump"}, "executor must be one of action, track, inverse; got 'jump'"),
        ({"executor": "track"}, "needs a domain with a tracking law"),
        ({"candidates": 0}, "candidates must be 1 or more, .*; got candidates=0 chunk=1"),
        ({"chunk": -1}, "chunk too, or 0 to plan only once; got candidates=16 chunk=-1"),
        ({"warm": 2}, r"this run's plans come in one call. Leave warm at 0; got 2"),
        ({"warm": -1}, "Leave warm at 0; got -1"),
    ],
)
def test_a_controller_refuses_what_it_cannot_do(options, message):
    with pytest.raises(UserError, match=message):
        Controller(planner(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warm": 4}, r"warm must be 0 \(off\) to 3, .*; got 4"),
        ({"warm": -1}, "got -1"),
        ({"warm": 1, "chunk": 0}, "no second plan to start warm; got warm=1"),
    ],
)
def test_a_warm_start_has_its_bounds(options, message):
    with pytest.raises(UserError, match=message):
        Controller(refining_planner()[0], **options)


# Guidance


def pulled_planner(**options) -> Planner:
    """Its windows are zeros, standardised, moved once up the guide's gradient."""

    def refine(windows, condition, generator, steps, guide: Guide | None = None):
        return windows if guide is None else windows + gradient(guide, condition, windows)

    def sample(condition, n, generator, guide: Guide | None = None):
        return refine(torch.zeros(len(condition), n, TOKENS, WIDTH), condition, generator, 1, guide)

    return Planner(sample, skewed_normalizer(STATE, ACTION), STRIDE, GOAL_DIMS, refine=refine, **options)


def test_a_guide_speaks_the_units_of_the_data():
    """J in data units has slope std * dJ/dx in standard ones, and what it moves is std times as far again."""
    heard = []

    def far_along(windows, goals):
        heard.append((windows.detach().clone(), goals.clone()))
        return 3 * windows[..., 2, 3] + windows[..., 1, STATE + ACTION + 1]

    made = pulled_planner()
    guided = made.guided(far_along, 0.5).plan(OBSERVATION, GOAL, 2).candidates
    plain = made.plan(OBSERVATION, GOAL, 2).candidates
    windows, goals = heard[0]
    np.testing.assert_allclose(windows[0], plain, atol=1e-5)
    np.testing.assert_allclose(goals, GOAL[None], atol=1e-5)
    expected = np.zeros_like(plain)
    expected[:, 2, 3] = 0.5 * 3 * 2.0**2  # the fourth coordinate has a standard deviation of 2
    expected[:, 1, STATE + ACTION + 1] = 0.5 * 6.0**2  # the second action's is 6
    np.testing.assert_allclose(guided - plain, expected, atol=1e-4)


def test_the_runs_own_scorer_guides_unless_another_is_given_and_weight_0_takes_it_off():
    made = pulled_planner(scorer=last_speed)
    plain, own, given, off = (
        p.plan(OBSERVATION, GOAL, 2).candidates
        for p in (made, made.guided(), made.guided(lambda w, g: -last_speed(w, g)), made.guided().guided(weight=0))
    )
    assert (own[:, -1, 2] > plain[:, -1, 2]).all() and (given[:, -1, 2] < plain[:, -1, 2]).all()
    assert np.array_equal(off, plain)


@pytest.mark.parametrize(
    ("objective", "weight", "message"),
    [
        (None, 1.0, "this run has none. Leave guidance at 0"),
        (last_speed, -1.0, r"must be 0 \(off\) or more, and finite; got -1.0"),
        (last_speed, float("nan"), "got nan"),
        (lambda windows, goals: windows[..., 0], 1.0, r"one number a window, of shape \(1, 2\).*got shape \(1, 2, 5\)"),
        (lambda windows, goals: last_speed(windows, goals).detach(), 1.0, "have a gradient"),
    ],
)
def test_a_guide_that_cannot_be_is_refused(objective, weight, message):
    with pytest.raises(UserError, match=message):
        pulled_planner().guided(objective, weight).plan(OBSERVATION, GOAL, 2)


def test_what_draws_plans_in_one_call_cannot_be_guided():
    with pytest.raises(UserError, match="this run's plans come in one call"):
        planner().guided(last_speed)


@pytest.mark.parametrize(("token", "expected"), [(0, 0), (0.5, 1), (1, 2), (1.25, 3.5), (2, 8), (2.7, 8), (5.5, 8)])
def test_a_state_between_two_tokens_lies_on_a_straight_line(token, expected):
    states = torch.tensor([[[0.0], [2.0], [8.0]], [[0.0], [-2.0], [-8.0]]])
    assert state_at(states, token).flatten().tolist() == pytest.approx([expected, -expected])


# The arrival scorer


def path(*distances: float) -> torch.Tensor:
    """A window whose tokens are that far from the goal (1, 2), in different directions."""
    angles = torch.arange(len(distances)) * 2.0
    offset = torch.tensor(distances)[:, None] * torch.stack([angles.cos(), angles.sin()], 1)
    return torch.cat([offset + torch.tensor([1.0, 2.0]), torch.randn(len(distances), 3)], 1)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ((9, 0, 0, 0), (9, 9, 0, 0)),  # sooner
        ((9, 0, 0, 0), (9, 0, 0, 9)),  # staying
        ((9, 9, 9, 0), (9, 9, 9, 9)),  # late rather than never
        ((9, 0.1, 0.1, 0.1), (9, 0.4, 0.4, 0.4)),  # nearer, once within the radius
    ],
)
def test_the_arrival_scorer_prefers_to_be_there_soon_and_to_stay(better, worse):
    scores = Arrival((0, 1), 0.5, 4)(torch.stack([path(*worse), path(*better)])[None], torch.tensor([[1.0, 2.0]]))
    assert scores.shape == (1, 2) and scores[0, 1] > scores[0, 0]


def test_the_arrival_score_counts_steps_away():
    windows = torch.stack([path(9, 7, 0, 0), path(3, 0.25, 0, 0), path(0, 0, 0, 0)])[None]
    score = Arrival((0, 1), 0.5, 4)(windows, torch.tensor([[1.0, 2.0]]))
    assert score[0].tolist() == pytest.approx([-8, -6, 0], abs=1e-4)


def test_every_environment_is_scored_by_its_own_goal():
    goals = torch.tensor([[1.0, 2.0], [-4.0, 2.0]])
    window = path(0, 0, 0)
    score = Arrival((0, 1), 0.5, 1)(window.expand(2, 1, -1, -1), goals)
    assert score.flatten().tolist() == pytest.approx([0, -3], abs=1e-4)
