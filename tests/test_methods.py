"""What every method must do, and that Diffuser and BC are what they say they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
from helpers import brief_inverse, skewed_normalizer, walks
from torch import Tensor, nn

import kdp
from kdp.checkpoint import load_tensors
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.domains.toy import TWO
from kdp.drift import DriftConfig
from kdp.keys import Clamp, Condition
from kdp.methods import METHODS, diffuser
from kdp.methods.diffuser import GRAPHS, Diffuser, DiffusionConfig, cosine_schedule, gradient, normal, transition
from kdp.methods.kdp import spread
from kdp.networks import NetworkConfig, ResidualMLP, TemporalUNet, UNetBackbone
from kdp.parts import assemble
from kdp.plan import Controller, Planner
from kdp.runs import resume_run, start_run
from kdp.sampler import Batch
from kdp.score import Arrival
from kdp.train import MODEL, TRAINING

SMALL = RunConfig(
    "toy",
    steps=3,
    batch=16,
    drift=DriftConfig(samples=4, positives=6, lambda_a=0.5),
    diffusion=DiffusionConfig(steps=5),
    network=NetworkConfig(width=32, blocks=1, channels=4, noise=4),
)
PROBLEMS = {
    "toy": DOMAINS["toy"],
    "goals": replace(DOMAINS["maze2d-umaze"], episodes=lambda: walks([60, 90])),
}


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@lru_cache
def made(name: str, problem: str, kind: str | None) -> tuple[nn.Module, Batch]:
    """A fresh method and a batch for it; goal windows have four tokens."""
    domain = PROBLEMS[problem]
    config = replace(SMALL, method=name, network=replace(SMALL.network, kind=kind))
    config = replace(config, horizon=8 if problem == "toy" else 4 * domain.stride).for_domain(domain)
    parts = assemble(config, domain, domain.episodes(), "cpu")
    return parts.learner, parts.sampler(0)


# Every method

every_method = pytest.mark.parametrize("name", METHODS)
every_problem = pytest.mark.parametrize("problem", PROBLEMS)
every_network = pytest.mark.parametrize("kind", [None, "mlp", "unet"])


@every_method
@every_problem
@every_network
def test_a_loss_is_finite_and_reaches_every_parameter(name, problem, kind):
    method, batch = made(name, problem, kind)
    method.zero_grad()
    loss, metrics = method.loss(batch, method.draws(len(batch.windows), random()))
    loss.backward()
    assert loss.isfinite() and loss.shape == () and all(torch.as_tensor(m).isfinite() for m in metrics.values())
    dead = [n for n, p in method.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not dead


@every_method
@every_problem
def test_a_loss_has_no_randomness_but_the_generators(name, problem):
    method, batch = made(name, problem, None)
    assert torch.equal(
        method.loss(batch, method.draws(len(batch.windows), random()))[0],
        method.loss(batch, method.draws(len(batch.windows), random()))[0],
    )


@every_method
@every_problem
@every_network
def test_samples_have_their_shape_and_start_and_end_exactly_where_they_must(name, problem, kind):
    method, batch = made(name, problem, kind)
    with torch.inference_mode():  # as a planner draws them
        windows = method.sample(batch.condition, 3, random())
    count, clamp = len(batch.condition), method.clamp
    assert windows.shape == (count, 3, clamp.tokens, clamp.width) and windows.isfinite().all()
    state = batch.condition.state[:, None].expand(-1, 3, -1)
    assert torch.equal(windows[:, :, 0, : clamp.state_dim], state)
    if problem == "goals":
        goal = batch.condition.goal[:, None].expand(-1, 3, -1)
        assert torch.equal(windows[:, :, -1, list(clamp.goal_dims)], goal)


@every_method
@every_problem
def test_the_seed_decides_the_sample(name, problem):
    method, batch = made(name, problem, None)
    first, again, other = (method.sample(batch.condition, 2, random(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "bc")
    assert torch.equal(first[:, 0], first[:, 1]) == (name == "bc")


@every_method
def test_a_condition_gets_its_samples_whoever_its_neighbours_are(name):
    method, batch = made(name, "goals", None)
    state, goal = batch.condition.state, batch.condition.goal
    pairs = [Condition(state[[0, other]], goal[[0, other]]) for other in (1, 2)]
    first, second = (method.sample(pair, 2, random()) for pair in pairs)
    torch.testing.assert_close(first[0], second[0], atol=1e-5, rtol=0)
    assert (first[1] - second[1]).abs().max() > 0.01


@every_method
def test_the_numbers_of_a_method_are_numbers(name):
    method, batch = made(name, "toy", None)
    assert method.samples >= 1 and method.positives >= 0 and method.nfe >= 1
    assert (batch.positives is None) == (method.positives == 0)
    assert len(batch.windows) == SMALL.batch // method.samples


@every_method
@every_problem
def test_a_run_is_saved_loaded_and_resumed_exactly(name, problem, tmp_path):
    domain = PROBLEMS[problem]
    horizon = 8 if problem == "toy" else 4 * domain.stride
    config = replace(SMALL, dataset=domain.name, method=name, horizon=horizon)
    assert start_run(config, tmp_path / "whole", domain=domain).finished
    start_run(config, tmp_path / "parts", domain=domain, stop_after=1)
    assert resume_run(tmp_path / "parts", domain=domain).finished
    for file in (MODEL, TRAINING):
        whole, parts = (load_tensors(tmp_path / run / file)[0] for run in ("whole", "parts"))
        assert whole.keys() == parts.keys() and all(torch.equal(whole[k], parts[k]) for k in whole)
    planners = [kdp.load(tmp_path / run) for run in ("whole", "parts")]
    observation, goal = np.full(planners[0].state_dim, 0.1), None if problem == "toy" else [0.5, -0.5]
    plans = [planner.plan(observation, goal, candidates=3, seed=4).candidates for planner in planners]
    np.testing.assert_array_equal(plans[0], plans[1])
    assert planners[0].nfe == (5 if name == "diffuser" else 1)
    assert (planners[0].refine is not None) == (name == "diffuser")


@pytest.mark.parametrize("name", ["bc", "diffuser"])
def test_states_and_actions_weigh_as_in_kdp(name):
    weight = made("kdp", "goals", None)[0].weight
    assert torch.equal(made(name, "goals", None)[0].weight, weight) and set(weight.unique().tolist()) == {0, 0.5, 1}


def test_the_command_names_every_method(kdp_command):
    _, out, _ = kdp_command("train", "--help")
    line = " ".join(out.split()).partition("What to train: ")[2].partition(".")[0]
    assert sorted(line.replace(" or", ",").split(", ")) == sorted(METHODS)


def test_the_network_is_the_methods_own_unless_asked_for():
    modules = {
        (name, kind): {type(m) for m in made(name, "toy", kind)[0].modules()}
        for name in METHODS
        for kind in (None, "mlp", "unet")
    }
    for name in METHODS:
        unet = UNetBackbone if name == "diffuser" else TemporalUNet
        assert unet in modules[name, "unet"] and ResidualMLP in modules[name, "mlp"]
        assert modules[name, None] == modules[name, "unet" if name == "diffuser" else "mlp"]


@pytest.mark.parametrize("flags, said", [
    (["--diffusion.steps", 0], "diffusion.steps must be more than zero; got 0"),
    (["--diffusion.sampling-steps", 0], "diffusion.sampling-steps must be more than zero; got 0"),
    (["--diffusion.sampling-steps", 21], "diffusion.sampling-steps must be diffusion.steps or less; got 21 and 20"),
    (["--network.channels", 10], "channels must be a multiple of 4; got channels=10. Try 8"),
    (["--network.channels", 0], "network.channels must be more than zero; got 0"),
    (["--network.bands", -1], "network.bands must be 0 (none) or more; got -1"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused_in_one_sentence(kdp_command, flags, said):
    code, _, err = kdp_command("train", "toy", "--method", "diffuser", *flags)
    assert code == 2 and said in " ".join(err.split()) and "Traceback" not in err


# Diffuser: the mathematics

CLAMP = Clamp(tokens=2, width=3, state_dim=1)
POINT = torch.tensor([[0.7, -1.2, 2.0], [0.3, 0.0, -2.5]])
CONDITION = Condition(POINT[:1, :1])


class Known(nn.Module):
    """A denoiser that knows E[x_0 | x_t], and says it as x_0 or as epsilon."""

    def __init__(self, method: Diffuser, expected: Callable[[Tensor, float], Tensor]):
        super().__init__()
        self.abar, self.expected = cosine_schedule(method.diffusion.steps), expected
        self.epsilon = method.diffusion.predict == "epsilon"
        self.times: list[int] = []

    def forward(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        assert (x[..., 0, :1] == condition).all()  # every step starts with the condition in its windows
        self.times.append(int(time))
        abar = float(self.abar[int(time)])
        x0 = self.expected(x, abar)
        return (x - math.sqrt(abar) * x0) / math.sqrt(1 - abar) if self.epsilon else x0


def knowing(expected: Callable[[Tensor, float], Tensor], **settings) -> Diffuser:
    method = Diffuser(CLAMP, torch.ones(2, 3), DiffusionConfig(**settings), NetworkConfig("mlp", width=8))
    method.denoiser = Known(method, expected)
    return method


def gaussian(mean: float, std: float) -> Callable[[Tensor, float], Tensor]:
    """E[x_0 | x_t] where every coordinate of the data is N(mean, std^2)."""

    def expected(x: Tensor, abar: float) -> Tensor:
        gain = math.sqrt(abar) * std**2 / (abar * std**2 + 1 - abar)
        return mean + gain * (x - math.sqrt(abar) * mean)

    return expected


samplers = pytest.mark.parametrize("sampler", ["ddpm", "ddim"])


@pytest.mark.parametrize("steps", [1, 5, 20, 1000])
def test_the_schedule_is_the_published_one(steps):
    def f(t: int) -> float:
        return math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2

    product, expected = 1.0, [1.0]
    for t in range(1, steps + 1):
        product *= 1 - min(1 - f(t) / f(t - 1), 0.999)
        expected.append(product)
    schedule = cosine_schedule(steps)
    assert schedule.dtype == torch.float64
    np.testing.assert_allclose(schedule.numpy(), expected, rtol=1e-12)
    assert (schedule.diff() < 0).all()
    method = Diffuser(CLAMP, torch.ones(2, 3), DiffusionConfig(steps), NetworkConfig("mlp", width=8))
    np.testing.assert_allclose(method.signal.double().square() + method.noise.double().square(), 1, rtol=1e-6)
    assert not {"signal", "noise", "steps", "weight"} & method.state_dict().keys()


@pytest.mark.parametrize("t, s", [(20, 19), (13, 12), (2, 1), (1, 0), (15, 3), (20, 0)])
def test_a_ddpm_step_is_the_product_of_two_gaussians(t, s):
    """q(x_s | x_t, x_0) from q(x_s | x_0), as a prior, and q(x_t | x_s), as a likelihood: precisions add."""
    abar = cosine_schedule(20).numpy()
    x0, xt = 0.8, -1.7
    of_x0, of_x, of_noise = transition(*torch.from_numpy(abar[[t, s]]), "ddpm").numpy()
    if s == 0:  # the prior is a point
        np.testing.assert_allclose([of_x0, of_x, of_noise], [1, 0, 0], atol=1e-12)
        return
    alpha = np.prod([abar[i] / abar[i - 1] for i in range(s + 1, t + 1)])
    prior_mean, prior_precision = np.sqrt(abar[s]) * x0, 1 / (1 - abar[s])
    seen_mean, seen_precision = xt / np.sqrt(alpha), alpha / (1 - alpha)
    precision = prior_precision + seen_precision
    mean = (prior_precision * prior_mean + seen_precision * seen_mean) / precision
    np.testing.assert_allclose(of_x0 * x0 + of_x * xt, mean, rtol=1e-9)
    np.testing.assert_allclose(of_noise**2, 1 / precision, rtol=1e-9)


@pytest.mark.parametrize("t, s", [(20, 19), (2, 1), (15, 3), (1, 0)])
def test_a_ddim_step_keeps_the_noise_it_finds(t, s):
    abar = cosine_schedule(20)
    x0, eps = torch.tensor([0.8, -2.0]).double(), torch.tensor([0.3, 1.1]).double()

    def at(time: int) -> Tensor:
        return abar[time].sqrt() * x0 + (1 - abar[time]).sqrt() * eps

    of_x0, of_x, of_noise = transition(abar[t], abar[s], "ddim")
    torch.testing.assert_close(of_x0 * x0 + of_x * at(t), at(s))
    assert of_noise == 0


@samplers
@pytest.mark.parametrize("predict", ["x0", "epsilon"])
@pytest.mark.parametrize("count", [None, 1, 7])
def test_who_knows_the_answer_returns_it(sampler, predict, count):
    method = knowing(lambda x, abar: POINT.expand_as(x), sampler=sampler, predict=predict, sampling_steps=count)
    windows = method.sample(CONDITION, 4, random())
    torch.testing.assert_close(windows, POINT.expand(1, 4, 2, 3), atol=1e-3 if predict == "epsilon" else 1e-6, rtol=0)


@pytest.mark.parametrize("steps, count", [(20, None), (20, 20), (20, 6), (20, 1), (7, 5)])
def test_as_many_network_calls_as_nfe_says_from_all_noise_downwards(steps, count):
    method = knowing(gaussian(0, 1), steps=steps, sampling_steps=count)
    method.sample(CONDITION, 4, random())
    times = method.denoiser.times
    assert len(times) == method.nfe == (count or steps)
    assert times[0] == steps and times[-1] >= 1 and all(a > b for a, b in zip(times, times[1:], strict=False))


@samplers
@pytest.mark.parametrize("mean, std", [(0.0, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("steps, tolerance", [(20, 0.15), (200, 0.03)])
def test_a_gaussian_keeps_its_mean_and_its_spread(sampler, mean, std, steps, tolerance):
    """The spread comes out too small by an error that goes with the number of steps: 6 to 14 % at 20."""
    windows = knowing(gaussian(mean, std), sampler=sampler, steps=steps).sample(CONDITION, 20_000, random())
    free = windows[0][:, CLAMP.mask()]
    np.testing.assert_allclose(free.mean(0), mean, atol=0.03)
    np.testing.assert_allclose(free.std(0) / std, 1, atol=tolerance)


@samplers
def test_predicting_the_window_and_predicting_the_noise_are_one_model(sampler):
    drawn = [
        knowing(gaussian(0.5, 0.8), sampler=sampler, predict=predict).sample(CONDITION, 50, random())
        for predict in ("x0", "epsilon")
    ]
    torch.testing.assert_close(*drawn, atol=2e-3, rtol=0)


def test_predictions_out_of_range_are_clipped():
    windows = knowing(lambda x, abar: torch.full_like(x, 9.0), clip=2.0).sample(CONDITION, 3, random())
    assert (windows[0][:, CLAMP.mask()] == 2).all() and (windows[..., 0, 0] == 0.7).all()


@pytest.mark.parametrize("predict", ["x0", "epsilon"])
def test_the_denoiser_sees_noisy_windows_with_the_condition_in_them(predict, monkeypatch):
    """And the loss is the error of what it should have said, on free coordinates, by their weight."""
    weight = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 1.0]])
    method = Diffuser(CLAMP, weight, DiffusionConfig(predict=predict), NetworkConfig("mlp", width=8))
    seen: list[tuple[Tensor, Tensor]] = []

    class Silent(nn.Module):
        def forward(self, x, time, condition):
            seen.append((x, time))
            return torch.zeros_like(x)

    method.denoiser = Silent()
    windows = torch.randn(5000, 2, 3, generator=random(1))
    condition = Condition(windows[:, 0, :1])
    loss, metrics = method.loss(Batch(windows, condition, condition.state), method.draws(len(windows), random()))
    (x, time), abar = seen[0], cosine_schedule(20).float()
    assert torch.equal(x[:, 0, 0, 0], windows[:, 0, 0])
    assert sorted(set(time.flatten().tolist())) == list(range(1, 21))
    scale = abar[time][..., None, None]
    eps = (x - scale.sqrt() * windows[:, None]) / (1 - scale).sqrt()
    free = eps[:, 0][:, CLAMP.mask()]
    np.testing.assert_allclose(free.mean(0), 0, atol=0.06)
    np.testing.assert_allclose(free.std(0), 1, atol=0.06)
    target = windows if predict == "x0" else eps[:, 0]
    torch.testing.assert_close(loss, (weight * target.square()).mean(), atol=1e-3, rtol=0)
    torch.testing.assert_close((metrics["error/state"] + 2 * metrics["error/action"]) / 3, loss)


@samplers
def test_a_plan_is_refined_in_fewer_calls_and_stays_near(sampler):
    method = knowing(lambda x, abar: x / math.sqrt(abar), sampler=sampler)  # believes what it sees: no other plan
    plan, free = torch.randn(1, 500, 2, 3, generator=random(1)), CLAMP.mask()
    moved = []
    for steps in (0, 2, 8):
        method.denoiser.times.clear()
        refined = method.refine(plan, CONDITION, random(), steps)
        assert method.denoiser.times == list(range(steps, 0, -1))
        assert (refined[..., 0, 0] == CONDITION.state).all()  # the plan was made somewhere else
        moved.append(float((refined - plan)[..., free].square().mean().sqrt()))
    assert moved[0] == 0 and 0 < moved[1] < moved[2] < 1
    with pytest.raises(kdp.UserError, match="0 to 20 steps; got 21"):
        method.refine(plan, CONDITION, random(), 21)


def test_a_refined_gaussian_is_that_gaussian():
    method = knowing(gaussian(0.5, 0.8))
    far = torch.full((1, 20_000, 2, 3), 3.0)
    free = method.refine(far, CONDITION, random(), 20)[0][:, CLAMP.mask()]
    np.testing.assert_allclose(free.mean(0), 0.5, atol=0.03)


@samplers
@pytest.mark.parametrize("guidance", [0.5, 1.0])
def test_a_linear_guide_tilts_a_gaussian_by_its_slope(sampler, guidance):
    """N(0,1) exp(g x) is N(g,1)."""
    slope = torch.tensor([[9.0, 1.0, -1.0], [0.5, 0.0, 0.3]])
    method = knowing(gaussian(0, 1), sampler=sampler, steps=100)
    plain = method.sample(CONDITION, 20_000, random())
    tilted = method.sample(CONDITION, 20_000, random(), guide=lambda x, condition: guidance * (slope * x).sum((-1, -2)))
    shift = (tilted.mean(1) - plain.mean(1))[0]
    assert shift[0, 0] == 0  # clamped
    np.testing.assert_allclose(shift[CLAMP.mask()], guidance * slope[CLAMP.mask()], atol=0.06)
    np.testing.assert_allclose(tilted[0][:, CLAMP.mask()].std(0), 1, atol=0.05)


def test_a_quadratic_guide_draws_samples_toward_its_best_also_in_a_planner():
    method = knowing(gaussian(0, 1))
    best = torch.tensor([2.0, -1.0, 1.0])

    def guide(x: Tensor, condition: Condition) -> Tensor:
        assert (x[..., 0, 0] == condition.state).all()  # it is shown clamped windows
        return -(x[..., 1, :] - best).square().sum(-1) / 2

    with torch.inference_mode():
        plain = method.sample(CONDITION, 500, random())
        guided = method.sample(CONDITION, 500, random(), guide)
    before, after = ((w[..., 1, :] - best).square().mean() for w in (plain, guided))
    assert after < 0.5 * before
    torch.testing.assert_close(guided[..., 0, :], plain[..., 0, :])  # the guide has no say there
    way = guided[0, :, 1].mean(0) / best  # N(0,1) exp(J) is halfway; its first order goes somewhat further
    assert ((way > 0.4) & (way < 0.8)).all(), way


def test_the_gradient_of_a_guide_is_its_gradient():
    x = torch.randn(2, 3, 2, 3, generator=random())
    condition = Condition(torch.tensor([[1.0], [2.0]]))
    slope = gradient(lambda x, c: (x.square() * c.state[:, :, None, None]).sum((-1, -2)), condition, x)
    torch.testing.assert_close(slope, 2 * x * condition.state[:, :, None, None])


def planning(method: Diffuser, **options) -> Planner:
    """The state has mean 1 and standard deviation 1/2, actions -1 and 3."""
    return Planner(method.sample, skewed_normalizer(1, 1), 2, nfe=method.nfe, refine=method.refine, **options)


def drawn(planner: Planner, candidates: int = 4) -> Tensor:
    return torch.from_numpy(planner.plan([0.7], candidates=candidates).candidates)


@samplers
@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_a_guided_planner_tilts_in_the_units_of_the_data(sampler, weight):
    """N(m,s^2) exp(w b x) is N(m + w b s^2, s^2)."""
    slope = torch.tensor([[9.0, 0.1, -0.1], [0.8, 0.0, 0.05]])
    planner = planning(knowing(gaussian(0, 1), sampler=sampler, steps=100))
    shift = drawn(planner.guided(lambda w, goals: (slope * w).sum((-1, -2)), weight)) - drawn(planner)
    expected = weight * slope * torch.tensor([0.5, 3.0, 3.0]).square()
    expected[0, 0] = 0  # clamped
    torch.testing.assert_close(shift, expected.expand_as(shift), atol=0.03, rtol=0)


@samplers
@pytest.mark.parametrize("steps", [20, 100])
def test_a_quadratic_guide_does_to_a_gaussian_what_its_recursion_says(sampler, steps):
    """Everything is linear: the mean m of x_t has x_0 = g m, moved by w (1 - abar) s^2 (best - x_0), in every step."""
    best, weight, spread = 4.0, 0.02, 3.0  # of an action, whose mean is -1
    planner = planning(knowing(gaussian(0, 1), sampler=sampler, steps=steps))
    guided = planner.guided(lambda w, goals: -(w[..., 1, 1] - best).square() / 2, weight)
    abar, mean = cosine_schedule(steps), 0.0
    for t in range(steps, 0, -1):
        x0 = math.sqrt(abar[t]) * mean
        x0 += weight * float(1 - abar[t]) * spread * (best - (spread * x0 - 1))
        of_x0, of_x, _ = transition(abar[t], abar[t - 1], sampler).tolist()
        mean = of_x0 * x0 + of_x * mean
    windows = drawn(guided, 20_000)
    assert mean > 0.2
    np.testing.assert_allclose(windows[:, 1, 1].mean(), spread * mean - 1, atol=0.06)
    np.testing.assert_allclose(windows[:, 1, 2].mean(), -1, atol=0.06)


def test_guidance_of_no_weight_changes_no_bit():
    planner = planning(knowing(gaussian(0, 1)))
    up = planner.guided(lambda windows, goals: windows[..., 1, 0])
    assert not torch.equal(drawn(up), drawn(planner))
    assert torch.equal(drawn(up.guided(lambda windows, goals: windows[..., 1, 0], 0)), drawn(planner))


def test_a_run_is_guided_by_the_arrival_scorer_also_where_a_plan_is_refined(tmp_path):
    domain = PROBLEMS["goals"]
    start_run(replace(SMALL, dataset=domain.name, method="diffuser", horizon=32), tmp_path / "run", domain=domain)
    planner = replace(kdp.load(tmp_path / "run"), scorer=Arrival((0, 1), 100.0, 8))
    guided = planner.guided(weight=5)
    here, there = [2.0, -2.0, 0.0, 0.0], [4.0, -1.0]
    before, after = (p.plan(here, there, 8) for p in (planner, guided))
    assert np.isfinite(after.candidates).all() and after.scores.mean() > before.scores.mean() + 0.002
    arguments = torch.tensor([here]), torch.tensor([there]), 8
    earlier = torch.from_numpy(before.candidates)[None]
    one, other = (p.plan_batch(*arguments, random(), earlier, 3).scores for p in (planner, guided))
    assert other.mean() > one.mean() + 0.002


def test_a_controller_that_starts_warm_makes_fewer_calls():
    method = knowing(gaussian(0, 1), steps=6)
    controller = Controller(planning(method), candidates=2, chunk=2, warm=2)
    for _ in range(6):
        controller.act(np.array([[0.7], [0.1]]), None)
    assert method.denoiser.times == [6, 5, 4, 3, 2, 1] + [2, 1] * 2


# Diffuser: speed


@samplers
def test_the_noise_of_a_plan_is_drawn_at_once(sampler, monkeypatch):
    drawn = []

    def listen(shape, generator, device):
        drawn.append(shape)
        return normal(shape, generator, device)

    monkeypatch.setattr(diffuser, "normal", listen)
    method = knowing(gaussian(0, 1), sampler=sampler, steps=6)
    windows = method.sample(CONDITION, 4, random())
    method.refine(windows, CONDITION, random(), 3)
    method.refine(windows, CONDITION, random(), 0)
    counts = (6, 3, 1) if sampler == "ddpm" else (1, 1, 1)
    assert drawn == [(count, 1, 4, 2, 3) for count in counts]


class Remembered:
    """In place of a CUDA graph: remembers that it was made."""

    made = 0

    def __init__(self, function, inputs):
        Remembered.made += 1
        self.function = function

    def __call__(self, *inputs):
        return self.function(*inputs)


def by_graph(monkeypatch, graph) -> Diffuser:
    """A method that takes the way of a GPU."""
    method = made("diffuser", "goals", None)[0].to("cpu")
    monkeypatch.setattr(diffuser, "Recorded", graph)
    monkeypatch.setattr(method, "_denoise", lambda x, *rest: Diffuser._denoise(method, OnGPU(x), *rest))
    return method


class OnGPU(Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True

    def __new__(cls, x: Tensor):
        return x.as_subclass(cls)


def test_a_graph_is_recorded_for_the_second_plan_of_a_shape(monkeypatch):
    condition = made("diffuser", "goals", None)[1].condition
    plain = made("diffuser", "goals", None)[0].sample(condition, 3, random())
    method = by_graph(monkeypatch, Remembered)
    monkeypatch.setattr(Remembered, "made", 0)
    for count in (0, 1, 1):
        assert torch.equal(method.sample(condition, 3, random()), plain)
        assert Remembered.made == count
    for _ in range(2):
        method.refine(plain, condition, random(), 2)
    assert Remembered.made == 2  # of its own number of steps
    method.sample(condition, 3, random(), guide=lambda x, c: x.sum((-1, -2)))
    assert len(method.graphs) == 2  # none with a guide
    for n in range(4, 14):
        method.sample(condition, n, random())
    assert len(method.graphs) == GRAPHS and Remembered.made == 2
    method.to("cpu")
    assert not method.graphs  # its weights may be elsewhere now


def test_steps_that_cannot_be_recorded_are_done_one_by_one(monkeypatch):
    def refuse(function, inputs):
        raise RuntimeError("not here")

    condition = made("diffuser", "goals", None)[1].condition
    plain = made("diffuser", "goals", None)[0].sample(condition, 3, random())
    method = by_graph(monkeypatch, refuse)
    method.sample(condition, 3, random())
    with pytest.warns(UserWarning, match="launched one by one: not here"):
        assert torch.equal(method.sample(condition, 3, random()), plain)
    assert torch.equal(method.sample(condition, 3, random()), plain)  # and does not try again


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@samplers
@every_problem
def test_a_graph_does_what_its_steps_do_and_waits_for_nothing(sampler, problem):
    method, batch = made("diffuser", problem, None)
    method = Diffuser(method.clamp, method.weight, DiffusionConfig(6, sampler), NetworkConfig(width=32)).to("cuda")
    here = batch.condition.to("cuda")
    others = Condition(here.state.flip(0), None if here.goal is None else here.goal.flip(0))
    earlier = torch.randn(len(here), 3, method.clamp.tokens, method.clamp.width, device="cuda")

    def compare() -> None:
        for condition in (here, others):
            for draw in (partial(method.sample, condition, 3), partial(method.refine, earlier, condition, steps=2)):
                by_steps = draw(generator=random(), guide=lambda x, c: 0 * x.sum((-1, -2)))  # a guide: no graph
                torch.testing.assert_close(draw(generator=random()), by_steps, atol=1e-4, rtol=1e-4)

    for inference in (True, False, True):  # a planner's, and outside of it
        with torch.inference_mode(inference):
            compare()
    assert [type(graph) for graph in method.graphs.values()] == [diffuser.Recorded] * 2
    method.loss(Batch(earlier[:, 0], here, here.state), method.draws(len(earlier), random()))[0].backward()
    with torch.no_grad():
        for parameter in method.parameters():  # a step of training is seen
            parameter.sub_(0.1 * parameter.grad)
    compare()
    known, told = torch.zeros_like(earlier[:, :1]), here.vector()[:, None]
    noise = torch.zeros(0 if sampler == "ddim" else 5, *earlier.shape, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.no_grad():
            method._descend(6, earlier, noise, known, told)
            method._replay(6, earlier, noise, known, told)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_the_seed_decides_the_noise_on_a_gpu():
    one, same, other = (normal((50,), random(seed), torch.device("cuda")) for seed in (1, 1, 2))
    assert one.is_cuda and torch.equal(one, same) and not torch.equal(one, other)
    generator = random(1)
    assert not torch.equal(*(normal((50,), generator, torch.device("cuda")) for _ in range(2)))


# Learning

CONTEXTS = (-0.8, 0.0, 0.8)
FAST = RunConfig("toy", batch=256, network=NetworkConfig("mlp", width=128, blocks=2))


def test_diffuser_learns_both_modes(tmp_path):
    with brief_inverse():
        start_run(replace(FAST, method="diffuser", steps=1000), tmp_path / "run")
    for context in CONTEXTS:
        plan = kdp.load(tmp_path / "run").plan(TWO.start(context), candidates=1000)
        mode = TWO.nearest_mode(plan.candidates, context)
        shares = np.array([(mode == m).mean() for m in range(2)])
        assert shares.sum() >= 0.8 and ((shares >= 0.3) & (shares <= 0.7)).all(), shares


def test_bc_learns_the_mean_which_is_no_way_to_act(tmp_path):
    with brief_inverse():
        start_run(replace(FAST, method="bc", steps=400), tmp_path / "run")
    planner = kdp.load(tmp_path / "run")
    near = []
    for context in np.linspace(-0.9, 0.9, 40):
        window = planner.plan(TWO.start(context), candidates=1).candidates
        near.append(TWO.nearest_mode(window, context)[0] >= 0)
        assert abs(window[..., 3]).max() < 0.5  # the modes go at about 1 and -1
    assert np.mean(near) < 0.05


def test_the_spread_among_samples_is_their_standard_deviation():
    x = torch.randn(5, 4, 3, 2, generator=random(0), dtype=torch.float64)
    torch.testing.assert_close(spread(x), x.std(1).mean())
