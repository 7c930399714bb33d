"""The fused kernels give the eager plan, under Triton's interpreter and on a GPU; what they do not cover is left to the
cuda backend, which is then named."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import brief_inverse
from interpreted import CASES, whole_plan
from test_backends import NETWORK, PLAIN, RUNS, asked

import kdp
from kdp import backends
from kdp.backends import cuda, fused
from kdp.backends.whole import WholePlan
from kdp.errors import UserError
from kdp.runs import _computed, start_run
from kdp.value import ValueConfig

CLOSE = 1e-4
COVERED = ("kdp-free", "kdp-critic", "kdp-blend", "kdp-return")
LEFT = {name: run for name, run in RUNS.items() if name not in COVERED} | {
    "kdp-bands": (replace(PLAIN, network=replace(NETWORK, bands=2)), None),
    "kdp-wish": (replace(PLAIN, value=ValueConfig("critic", width=16, wish=0.9)), None),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="needs triton, which PyTorch for a CPU does not bring; CI has none",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name): a run, trained for a moment."""
    root = tmp_path_factory.mktemp("runs")

    def made(name: str):
        if not (root / name).exists():
            config, domain = (RUNS | LEFT)[name]
            with brief_inverse():
                start_run(config, root / name, domain=domain)
        return root / name

    return made


@pytest.fixture(scope="module")
def interpreted():
    """{case: largest errors}, from a process in which Triton interprets its kernels."""
    script = Path(__file__).with_name("interpreted.py")
    path = os.pathsep.join([str(script.parent.parent), *filter(None, sys.path)])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_triton
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_give_the_eager_plan(interpreted, case):
    candidates, scores, chosen, brief = interpreted[case]
    assert max(candidates, scores, brief) < 2e-5 and chosen == 0


# What is covered


@pytest.mark.parametrize(
    ("settings", "covered"),
    [
        ({}, True),
        ({"scorer": "none"}, True),
        ({"scorer": "return", "blend": 2.0}, True),
        ({"network": {"width": 24}}, True),
        ({"network": {"width": 2048}}, False),
        ({"value": {"width": 2048}}, False),
        ({"network": {"kind": "unet"}}, False),
        ({"network": {"bands": 1}}, False),
    ],
)
def test_what_is_covered(settings, covered):
    whole = whole_plan(**settings)
    assert fused.covers(whole) == covered
    if not covered:
        assert fused.fused(whole).backend == "cuda"
    assert not fused.covers(whole.double())


@pytest.mark.parametrize("name", [*COVERED, *LEFT])
def test_a_run_that_is_not_covered_is_left_to_the_cuda_backend_which_is_named(folder, name):
    planner = kdp.load(folder(name), backend="eager")
    assert isinstance(planner.whole, WholePlan) and fused.covers(planner.whole) == (name in COVERED)
    if name in LEFT:
        method = planner.sample.__self__
        asked_for = replace(planner, computed=_computed("fused", method, planner.sample, planner.device))
        assert asked_for.computed.name == "fused" and asked_for.backend == "cuda" and asked_for.computed.largest == 1


@needs_triton
def test_a_run_that_is_covered_is_named_so(folder):
    planner = kdp.load(folder("kdp-critic"), backend="eager")
    computed = _computed("fused", planner.sample.__self__, planner.sample, planner.device)
    assert replace(planner, computed=computed).backend == "fused"
    mine = replace(planner, computed=computed, scorer=lambda windows, goals: windows[..., -1, 0])
    assert mine.backend == "eager"


def test_without_a_gpu_or_triton_it_is_refused_in_a_sentence(folder, monkeypatch):
    with pytest.raises(UserError, match="the fused backend plans on a GPU; got device 'cpu'. Give device='cuda'"):
        kdp.load(folder("kdp-free"), backend="fused")
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fused backend needs the package triton, .*`pip install 'kdp\[fused\]'`"):
        backends.choose("fused", "cuda")


# On a GPU


@pytest.fixture
def in_full():
    """Products on a GPU in full float32 from here on: `kdp.load` rounds them to TF32."""
    before = torch.get_float32_matmul_precision()
    yield lambda: torch.set_float32_matmul_precision("highest")
    torch.set_float32_matmul_precision(before)


@needs_gpu
@pytest.mark.parametrize("candidates", [1, 64, 1024])
@pytest.mark.parametrize("name", COVERED)
def test_a_fused_plan_is_the_eager_plan(folder, name, candidates, in_full):
    eager, fast = (kdp.load(folder(name), "cuda", backend=backend) for backend in ("eager", "fused"))
    assert fast.backend == "fused"
    in_full()
    whole = fast.whole.whole
    told = whole.example(candidates)
    made, right = fast.whole(*told), cuda.answering(whole)(*told)
    torch.testing.assert_close(made[0] / whole.token_std, right[0] / whole.token_std, atol=CLOSE, rtol=CLOSE)
    torch.testing.assert_close(made[1], right[1], atol=CLOSE, rtol=CLOSE)
    assert right[1][0, made[2][0]] >= right[1].max() - CLOSE
    std = whole.token_std.cpu().numpy()
    observation = asked(replace(fast, normalizer=fast.normalizer.to("cpu"), computed=None))[0]
    for seed in (1, 2, 1):
        one, other = (planner.plan(observation, candidates=candidates, seed=seed) for planner in (eager, fast))
        np.testing.assert_allclose(one.candidates / std, other.candidates / std, atol=CLOSE, rtol=CLOSE)
        np.testing.assert_allclose(one.scores, other.scores, atol=CLOSE, rtol=CLOSE)
        if one.chosen == other.chosen or fast.blend:  # there may be two as good as each other
            np.testing.assert_allclose(one.best / std, other.best / std, atol=10 * CLOSE, rtol=CLOSE)


@needs_gpu
@pytest.mark.parametrize("settings", [{}, {"scorer": "return", "blend": 2.0}, {"scorer": "none"}])
@pytest.mark.parametrize(("candidates", "count"), [(1, 1), (64, 1), (1024, 1), (7, 3)])
def test_the_usual_sizes_are_as_exact(settings, candidates, count, in_full):
    in_full()
    sizes = {"tokens": 32, "state": 17, "action": 6, "network": {"width": 256, "blocks": 3}, "value": {"width": 256}}
    whole = whole_plan(**sizes, **settings).cuda()
    told = whole.example(candidates, count=count)
    made, right = fused.answering(whole)(*told), cuda.answering(whole)(*told)
    torch.testing.assert_close(made[0] / whole.token_std, right[0] / whole.token_std, atol=CLOSE, rtol=CLOSE)
    torch.testing.assert_close(made[1], right[1], atol=CLOSE, rtol=CLOSE)
    assert torch.equal(made[3][:, -1], made[2].float()) and torch.equal(made[3][:, -1 - candidates : -1], made[1])
    if torch.equal(made[2], right[2]):
        torch.testing.assert_close(made[3], right[3], atol=10 * CLOSE, rtol=CLOSE)


@needs_gpu
def test_what_is_not_covered_is_planned_by_the_cuda_backend(folder):
    planner = kdp.load(folder("kdp"), "cuda", backend="fused")
    state, goal = asked(replace(planner, normalizer=planner.normalizer.to("cpu"), computed=None))
    assert planner.backend == "cuda" and planner.plan(state, goal, candidates=5).candidates.shape[0] == 5
