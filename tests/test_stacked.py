"""Runs that are trained together: each learns what it would learn alone, and is a run like any other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers import brief_inverse, walks

import kdp
from kdp.bench.jobs import Training, is_finished
from kdp.checkpoint import load_tensors
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.drift import DriftConfig
from kdp.errors import UserError
from kdp.methods.kdp import KDP
from kdp.networks import NetworkConfig
from kdp.runs import CONFIG, SCORER, read_config, start_run
from kdp.sampler import Batch
from kdp.stacked import apart, stacked, train_stack
from kdp.train import METRICS, MODEL, TRAINING, LoopConfig, Update
from kdp.value import ValueConfig

SMALL = RunConfig("toy", steps=4, batch=16, network=NetworkConfig(width=8, blocks=1, channels=4, noise=2))
CRITIC = ValueConfig("critic", apart=0, targets="generator", ascent=0.3, tilt=1.0, width=8, layers=2)
WALKS = replace(DOMAINS["hopper-medium"], episodes=lambda: walks([60, 50]), horizon=4)
KINDS = {
    "joint field, critic in it": {"value": CRITIC},
    "published field, its scorer": {
        "drift": DriftConfig(field="keyed"),
        "value": ValueConfig("return", apart=0, width=8, smooth=0.0),
    },
    "regression": {"method": "bc", "value": ValueConfig("none")},
    "a wish": {"value": ValueConfig("return", apart=0, width=8, wish=0.8, smooth=0.0)},
    "regression with a wish": {"method": "bc", "value": ValueConfig("none", wish=0.8)},
}


def seeds(config: RunConfig, count: int) -> list[RunConfig]:
    return [replace(config, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_a_stack_learns_what_it_would_learn_alone(kind, monkeypatch):
    """Given the same noise; the gradients are so much larger than the limit that all are shortened, each by its own."""
    noise = partial(torch.linspace, -1, 1)
    monkeypatch.setattr(KDP, "draw", lambda self, b, n, _: noise(n * self.noise).view(1, n, -1).expand(b, -1, -1))
    configs = [c.for_domain(WALKS) for c in seeds(replace(SMALL, dataset="hopper-medium", **KINDS[kind]), 3)]
    loop = LoopConfig(clip=1e-3)
    with brief_inverse():
        learners, parts = apart(configs, WALKS, WALKS.episodes(), "cpu")
    together, alone = Update(stacked(learners), loop), [Update(learner, loop) for learner in learners]
    for step in range(3):
        batch = parts.sampler(step)
        together(batch, 0.01, step)
        for number, update in enumerate(alone):
            part = [None if t is None else t.chunk(3)[number] for t in batch.tensors()]
            update(Batch.of(*part), 0.01, step)
    state = together.method.state_dict()
    assert all(state[name].shape[0] == 3 for name in state)
    for number, learner in enumerate(learners):
        for name, tensor in learner.state_dict().items():
            torch.testing.assert_close(state[name][number], tensor, rtol=1e-4, atol=1e-6)
    first = next(name for name in state if name.endswith("from_condition.1.weight"))
    assert not torch.allclose(state[first][0], state[first][1])


def test_a_stack_ends_as_ordinary_runs(tmp_path):
    configs, folders = seeds(SMALL, 2), [tmp_path / "a", tmp_path / "b"]
    assert train_stack(configs, folders).finished
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    plans = []
    for config, folder in zip(configs, folders, strict=True):
        assert is_finished(Training(config, folder, "cpu")) and (folder / METRICS).exists()
        assert read_config(folder)["config"]["seed"] == config.seed and read_config(folder)["stacked"] == 2
        planner = kdp.load(folder)
        plans.append(planner.plan([0.0] * planner.state_dim, seed=1))
    assert plans[0].best.shape == plans[1].best.shape and (plans[0].best != plans[1].best).any()
    start_run(configs[0], tmp_path / "alone")
    for file in (MODEL, TRAINING):
        mine, its = (load_tensors(folder / file)[0] for folder in (folders[0], tmp_path / "alone"))
        assert {name: t.shape for name, t in mine.items()} == {name: t.shape for name, t in its.items()}


def test_a_stack_with_a_smooth_scorer_ends_as_ordinary_runs(tmp_path):
    value = ValueConfig("return", apart=0, width=8, smooth=0.5, wish=0.5)
    with brief_inverse():
        configs = seeds(replace(SMALL, dataset="hopper-medium", value=value), 2)
        assert train_stack(configs, [tmp_path / "a", tmp_path / "b"], domain=WALKS).finished
    planners = [kdp.load(tmp_path / name) for name in "ab"]
    one, two = (planner.plan([0.1] * planner.state_dim, candidates=4) for planner in planners)
    assert (one.scores != two.scores).all()


def test_a_stack_whose_scorers_learn_apart_ends_as_ordinary_runs(tmp_path):
    value = ValueConfig("critic", width=8, layers=2, apart=70, batch=4, blend=1.0)
    configs, names = seeds(replace(SMALL, dataset="hopper-medium", value=value), 2), [tmp_path / "a", tmp_path / "b"]
    with brief_inverse():
        assert not train_stack(configs, names, domain=WALKS, stop_after=20).finished
        assert train_stack(configs, names, domain=WALKS).finished
        start_run(configs[0], tmp_path / "alone", domain=WALKS)
    planners = [kdp.load(folder) for folder in names]
    one, two = (planner.plan([0.1] * planner.state_dim, candidates=4) for planner in planners)
    assert (one.scores != two.scores).all()
    for file in (MODEL, TRAINING, f"{SCORER}/{MODEL}", f"{SCORER}/{TRAINING}"):
        mine, its = (load_tensors(folder / file)[0] for folder in (names[0], tmp_path / "alone"))
        assert {name: t.shape for name, t in mine.items()} == {name: t.shape for name, t in its.items()}
    whole, scored = (load_tensors(names[1] / file)[0] for file in (MODEL, f"{SCORER}/{MODEL}"))
    for name in (name for name in whole if name.startswith("weights.")):  # the plans that it learned of are the run's
        assert torch.equal(whole[name], scored[name.replace("weights.", "weights.method.", 1)])


def test_a_stopped_stack_goes_on_and_ends_the_same(tmp_path):
    whole, halves = ([tmp_path / f"{name}{seed}" for seed in range(2)] for name in ("whole", "half"))
    train_stack(seeds(SMALL, 2), whole)
    stopped = train_stack(seeds(SMALL, 2), halves, stop_after=2)
    assert (stopped.step, stopped.finished) == (2, False) and not (halves[0] / CONFIG).exists()
    with pytest.raises(UserError, match="holds runs with other settings"):
        train_stack(seeds(replace(SMALL, batch=8), 2), halves)
    assert train_stack(seeds(SMALL, 2), halves).step == 4
    for one, other in zip(whole, halves, strict=True):
        mine, its = (load_tensors(folder / MODEL)[0] for folder in (one, other))
        assert all(torch.equal(mine[name], its[name]) for name in mine)


def test_only_seeds_may_differ(tmp_path):
    with pytest.raises(UserError, match="the same settings but for their seeds"):
        train_stack([SMALL, replace(SMALL, batch=8)], [tmp_path / "a", tmp_path / "b"])


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_fused_steps_of_a_stack_are_the_plain_ones(recwarn, device):
    configs = [c.for_domain(WALKS) for c in seeds(replace(SMALL, dataset="hopper-medium", value=CRITIC), 2)]
    with brief_inverse():
        learners, parts = apart(configs, WALKS, WALKS.episodes(), device)
    plain, fused = (Update(stacked(learners), LoopConfig(fuse=fuse)) for fuse in (False, True))
    for step in range(5):
        rows = [update(parts.sampler(step), 0.01, step) for update in (plain, fused)]
        assert float(rows[0]["loss"]) == pytest.approx(float(rows[1]["loss"]), rel=1e-4 if device == "cpu" else 0.02)
    assert not [warning for warning in recwarn if "one by one" in str(warning.message)]
    for name, tensor in fused.method.state_dict().items() if device == "cpu" else ():  # a GPU rounds to TF32
        torch.testing.assert_close(tensor, plain.method.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_every_run_of_a_stack_keeps_both_modes(tmp_path, recwarn, device):
    config = replace(SMALL, steps=300, value=ValueConfig("none"))
    folders = [tmp_path / "a", tmp_path / "b"]
    assert train_stack(seeds(config, 2), folders, device=device).finished
    assert not [warning for warning in recwarn if "one by one" in str(warning.message)]  # on a GPU, graphs
    for folder in folders:
        planner = kdp.load(folder, device)
        ends = planner.plan([0.5, 0.0, 0.0], candidates=64).candidates[:, -1, 1]
        assert (ends > 0.2).mean() > 0.1 and (ends < -0.2).mean() > 0.1
