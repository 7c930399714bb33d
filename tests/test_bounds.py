"""Bounds: plans' actions stay within the range of the data's, in training as in planning, by every backend."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from helpers import brief_inverse, every_kind

import kdp
from kdp.checkpoint import load_tensors, save_tensors
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.domains.toy import TWO
from kdp.drift import DriftConfig
from kdp.export import export
from kdp.exported import load_exported
from kdp.keys import Clamp, Clamped, Condition
from kdp.methods.kdp import KDP
from kdp.networks import NetworkConfig
from kdp.normalize import Normalizer
from kdp.runs import start_run
from kdp.sampler import Batch
from kdp.stacked import train_stack
from kdp.train import MODEL

NETWORK = NetworkConfig(width=16, blocks=1, channels=4, noise=4)
PLAIN = RunConfig("toy", steps=3, batch=16, bounded=True, network=NETWORK)
SHARE = 0.02  # of the data's range, which networks that have learned nothing do not fill
RUNS = every_kind(PLAIN)
STATE = TWO.start(0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name): a run, trained for a moment, and its bounds drawn in; "free NAME": without bounds."""
    root = tmp_path_factory.mktemp("runs")

    def made(name: str):
        if not (root / name).exists():
            config = RUNS[name.removeprefix("free ")]
            with brief_inverse():
                start_run(replace(config, bounded=not name.startswith("free")), root / name)
            tensors, about = load_tensors(root / name / MODEL)
            for key in tensors:
                if key.endswith(("clamped.low", "clamped.high")):
                    tensors[key] = SHARE * tensors[key]
            save_tensors(root / name / MODEL, tensors, about)
        return root / name

    return made


def drawn(folder, backend="eager") -> np.ndarray:
    return kdp.load(folder, backend=backend).plan(STATE, candidates=64).candidates


def ends(share: float = 1.0) -> list[np.ndarray]:
    """Of the data's actions, drawn in to a share of their range."""
    actions = DOMAINS["toy"].episodes().actions
    mean = Normalizer.fit(actions, actions).action_mean
    return [(mean + share * (end - mean)).numpy() for end in (actions.amin(0), actions.amax(0))]


def test_actions_are_kept_between_the_ends_and_states_as_they_are():
    clamped = Clamped(Clamp(2, 3 + 2 * 2, 3, bounded=True))  # two actions of two numbers in a token
    clamped.bound(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 0.5]))
    x = torch.tensor([[9.0, -9.0, 0.0, 9.0, 9.0, -9.0, -9.0], [1.0, 2.0, 3.0, 0.9, 0.4, 0.0, -1.9]])
    kept = torch.tensor([[9.0, -9.0, 0.0, 1.0, 0.5, -1.0, -2.0], [1.0, 2.0, 3.0, 0.9, 0.4, 0.0, -1.9]])
    torch.testing.assert_close(clamped.within(x), kept, rtol=0, atol=0)
    near = torch.tensor([[2.0, -2.0, 0.0, 1.0, 0.5, -1.0, -2.0], [1.0, 2.0, 2.0, 0.9, 0.4, 0.0, -1.9]])
    torch.testing.assert_close(clamped.within(x, 2.0), near, rtol=0, atol=0)
    free = Clamped(Clamp(2, 7, 3))
    torch.testing.assert_close(free.within(x, 2.0), x.clamp(-2, 2), rtol=0, atol=0)
    assert free.within(x) is x and not free.state_dict() and set(clamped.state_dict()) == {"low", "high"}


def test_what_lies_outside_can_come_back():
    clamped = Clamped(Clamp(1, 2, 1, bounded=True))
    clamped.bound(torch.tensor([-1.0]), torch.tensor([1.0]))
    x = torch.tensor([[0.0, 5.0]], requires_grad=True)
    kept = clamped.within(x)
    assert kept.tolist() == [[0.0, 1.0]]
    assert torch.autograd.grad(kept.sum(), x)[0].tolist() == [[1.0, 1.0]]
    stack = torch.func.vmap(clamped.within)(x[None])  # runs that are trained as one
    assert torch.autograd.grad(stack.sum(), x)[0].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", RUNS)
def test_no_plan_leaves_the_range_of_the_datas_actions(folder, name):
    low, high = ends(SHARE)
    made, free = (drawn(folder(kind))[..., len(STATE) :] for kind in (name, f"free {name}"))
    assert (made >= low - 1e-5).all() and (made <= high + 1e-5).all()
    assert (free < low - 1e-3).any() or (free > high + 1e-3).any()
    assert np.isclose(made, low, atol=1e-5).any() or np.isclose(made, high, atol=1e-5).any()


KINDS = ("kdp", "kdp-unet", "kdp-trunk", "ddpm")


@pytest.mark.parametrize(("backend", "name"), [*product(("onnx", "openvino"), KINDS), ("compiled", "kdp")])
def test_every_backend_knows_them(folder, backend, name):
    np.testing.assert_allclose(drawn(folder(name), backend), drawn(folder(name)), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("int8", [False, True])
def test_so_does_an_exported_planner(folder, tmp_path, int8):
    low, high = ends(SHARE)
    export(folder("kdp"), "onnx", tmp_path / "out", int8=int8)
    made = load_exported(tmp_path / "out").plan(STATE, candidates=64, seed=0).candidates[..., len(STATE) :]
    assert (made >= low - 1e-5).all() and (made <= high + 1e-5).all() and len(np.unique(made)) > 2


def test_a_run_and_a_stack_of_runs_keep_the_datas(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    with brief_inverse():
        train_stack([replace(PLAIN, seed=seed) for seed in (0, 1)], folders)
    low, high = ends()
    with brief_inverse():
        start_run(PLAIN, tmp_path / "alone")
    for run in (tmp_path / "alone", *folders):
        tensors, _ = load_tensors(run / MODEL)
        mean, std = tensors["normalizer.action_mean"], tensors["normalizer.action_std"]
        for name, end in (("low", low), ("high", high)):
            kept = tensors[f"weights.clamped.{name}"]
            assert kept[:, : len(STATE)].isinf().all()
            torch.testing.assert_close(kept[:, len(STATE) :] * std + mean, torch.as_tensor(end).expand(len(kept), -1))


def clipped(count: int, random: torch.Generator) -> torch.Tensor:
    """(count,1,2): a state of zero and an action that is cut off at -1 and 1, as a noisy policy's is."""
    actions = (0.5 + torch.randn(count, 1, 1, generator=random)).clamp(-1, 1)
    return torch.cat([torch.zeros_like(actions), actions], -1)


@pytest.mark.parametrize("bounded", [True, False])
def test_actions_that_pile_up_at_an_end_do_so_in_plans_with_bounds_and_not_without(bounded):
    torch.manual_seed(0)
    network = NetworkConfig("mlp", width=32, blocks=1, noise=2)
    method, random = KDP(Clamp(1, 2, 1, bounded=bounded), DriftConfig(positives=1), network), torch.Generator()
    if bounded:
        method.clamped.bound(torch.tensor([-1.0]), torch.tensor([1.0]))
    optimizer = torch.optim.Adam(method.parameters(), 3e-3)
    for step in range(500):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / 500)
        windows, state = clipped(256, random.manual_seed(step)), torch.zeros(256, 1)
        batch = Batch(windows, Condition(state), state, windows[:, None], torch.zeros(256, 1))
        loss, _ = method.loss(batch, method.draws(256, random))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        made = method.sample(Condition(torch.zeros(1, 1)), 4096, random)[0, :, 0, 1]
    data = clipped(4096, random)[:, 0, 1]
    assert abs(float(made.mean() - data.mean())) < 0.1
    at_the_ends = [float((made == end).float().mean()) for end in (-1, 1)]
    if bounded:
        assert at_the_ends == pytest.approx([float((data == end).float().mean()) for end in (-1, 1)], abs=0.08)
    else:
        assert at_the_ends == [0.0, 0.0] and float((made.abs() > 1).float().mean()) > 0.1


def test_locomotion_has_them_and_goal_problems_do_not():
    for name, domain in DOMAINS.items():
        assert RunConfig(name).for_domain(domain).bounded == (domain.value != "none")
