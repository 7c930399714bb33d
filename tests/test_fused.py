"""The fused kernels give the eager plan, under Triton's interpreter and on a GPU; what they do not cover is left to the
cuda backend, which is then named."""

from __future__ import annotations

import ctypes
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
from interpreted import CASES, VARIANTS, drawn, whole_plan
from test_backends import NETWORK, PLAIN, RUNS, asked, assert_same

import kdp
from kdp import backends
from kdp.backends import cuda, fused, mapped
from kdp.backends.whole import WholePlan
from kdp.errors import UserError
from kdp.methods.diffuser import DiffusionConfig
from kdp.runs import _computed, start_run
from kdp.value import ValueConfig

CLOSE = 1e-4
KERNELS = ("kdp-free", "kdp-critic", "kdp-blend", "kdp-return", "kdp-trunk", "ddpm-free", "ddpm-trunk")
UNET = replace(NETWORK, kind="unet")
BY_LIBRARIES = {
    "kdp-bands": (replace(PLAIN, network=replace(NETWORK, bands=2)), None),
    "kdp-free-unet": (replace(PLAIN, network=UNET, value=ValueConfig("return", width=16, heads=2)), None),
    "ddpm-free-unet": (replace(PLAIN, method="diffuser", diffusion=DiffusionConfig(steps=3), network=UNET), None),
}
COVERED = (*KERNELS, *BY_LIBRARIES)
LEFT = {name: run for name, run in RUNS.items() if name not in COVERED} | {
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
            config, domain = (RUNS | LEFT | BY_LIBRARIES)[name]
            with brief_inverse():
                start_run(config, root / name, domain=domain)
        return root / name

    return made


@pytest.fixture(scope="module")
def interpreted():
    """Largest errors and noise, from a process in which Triton interprets its kernels."""
    script = Path(__file__).with_name("interpreted.py")
    path = os.pathsep.join([str(script.parent.parent), *filter(None, sys.path)])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_triton
@pytest.mark.parametrize("case", [*CASES, *VARIANTS, *(f"{name}, decided" for name in VARIANTS)])
def test_the_kernels_interpreted_give_the_eager_plan(interpreted, case):
    candidates, scores, chosen, brief = interpreted["errors"][case]
    close = 5e-5 if "of the noise" in case else 2e-5  # x_0 has 64 times the noise's error, in its first step
    assert max(candidates, scores, brief) < close and chosen == 0


@needs_triton
@pytest.mark.parametrize("which", ["noise", "steps"])
def test_the_noise_is_standard_normal_and_every_number_of_its_own(interpreted, which):
    noise = np.array(list(interpreted["noise"].values()) if which == "noise" else interpreted["steps"])
    count = noise.size
    assert abs(noise.mean()) < 4 / count**0.5 and abs(noise.var() - 1) < 4 * (2 / count) ** 0.5
    assert abs((noise**4).mean() - 3) < 4 * (96 / count) ** 0.5 and len(np.unique(noise)) > 0.999 * count
    for axis in range(noise.ndim):  # seeds or steps, plans, candidates, numbers
        for step in (1, 2, 4):
            if step < noise.shape[axis]:
                one, other = (
                    np.take(noise, range(noise.shape[axis])[part], axis) for part in (np.s_[step:], np.s_[:-step])
                )
                assert abs((one * other).mean()) < 4 / one.size**0.5
                assert abs((one**2 * other**2).mean() - 1) < 4 * (8 / one.size) ** 0.5  # nor do their sizes depend


@needs_triton
def test_a_candidates_noise_does_not_depend_on_how_many_there_are(interpreted):
    assert interpreted["one"][0] == interpreted["noise"]["1"][0][:1]


@needs_triton
@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("most", [16, 64, 1024])
def test_an_answer_that_blends_compiles_for_a_gpu_whatever_the_number_of_candidates(most, heads):
    """The interpreter does not mind a variable that changes its shape in a loop; a compiler does."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from kdp.backends import ends

    names, places = ends.answer.arg_names, {"windows": "*i64", "chosen": "*i64", "rows": "i32", "candidates": "i32"}
    sizes = {"SIZE": 92, "HEADS": heads, "PADDED": max(heads, 1), "ALL": most, "SOME": 64, "COLUMNS": 64}
    sizes |= {"CAUTION": 1.0, "BLEND": 2.0, "PLACED": True, "EARLY": False}
    signature = {name: "constexpr" if name in sizes else places.get(name, "*fp32") for name in names}
    given = {(at,): sizes[name] for at, name in enumerate(names) if name in sizes}
    made = compile(ASTSource(ends.answer, signature, given), target=GPUTarget("cuda", 90, 32))
    assert made.asm["ptx"]


# What is covered


@pytest.mark.parametrize(
    ("settings", "covered"),
    [
        ({}, True),
        ({"scorer": "none"}, True),
        ({"scorer": "return", "blend": 2.0}, True),
        ({"network": {"width": 24}}, True),
        ({"network": {"width": 2048}}, True),
        ({"network": {"noise": 2048}}, False),
        ({"value": {"width": 2048}}, False),
        ({"network": {"kind": "unet"}}, True),
        ({"network": {"bands": 1}}, True),
        ({"diffusion": {}}, True),
        ({"diffusion": {"sampler": "ddim", "sampling_steps": 5}, "scorer": "none"}, True),
        ({"diffusion": {}, "network": {"kind": "unet"}}, True),
        ({"diffusion": {}, "network": {"bands": 1}}, True),
        ({"diffusion": {}, "network": {"width": 2048}, "value": {"width": 2048}}, False),
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


# Told and answering in the CPU's memory, with a stand-in for the GPU


@pytest.fixture
def stub(folder, monkeypatch):
    """A planner whose launches are plain calls, and what has happened."""
    happened = []

    class Recorded:
        def __init__(self, function, inputs):
            self.graph, self.replay = self, lambda: function(*inputs)
            self.replay()

        def synchronize(self):
            happened.append("waited")

    def deciding(words, told, answer, candidates):
        seed, address = words.tolist()
        happened.append(seed)
        noise = whole.method.draw(len(told), candidates, torch.Generator().manual_seed(seed))
        windows, *_, brief = cuda.answering(whole)(told, noise)
        ctypes.memmove(address, windows.data_ptr(), 4 * windows.numel())
        answer.copy_(brief)

    monkeypatch.setattr(mapped, "Recorded", Recorded)
    monkeypatch.setattr(mapped, "pinned", lambda *shape, dtype=torch.float32: torch.zeros(shape, dtype=dtype))
    planner = kdp.load(folder("kdp-critic"), backend="eager")
    whole = planner.whole
    launched = mapped.Mapped(whole, cuda.answering(whole), deciding, "fused")
    return planner, replace(planner, computed=replace(planner.computed, build=lambda *parts: launched)), happened


@pytest.mark.parametrize("poll", [True, False])
def test_a_launch_is_told_and_answers_in_the_cpus_memory(stub, poll, monkeypatch):
    monkeypatch.setattr(mapped, "POLL", poll)
    eager, fast, happened = stub
    kept = []
    for seed in (5, 2**63 - 1, 5, 2**40):
        for candidates in (1, 6):
            observation = asked(eager, seed % 97)[0]
            kept.append([planner.plan(observation, candidates=candidates, seed=seed) for planner in (eager, fast)])
    assert fast.backend == "fused" and {5, 2**63 - 1, 2**40} < set(happened)
    assert happened.count("waited") == (2 if poll else 2 + len(kept))  # once for each that is recorded
    for one, other in kept:  # later plans did not write over earlier ones
        assert_same(one, other, eager, 1e-6)


def test_an_answer_that_is_no_number_is_waited_for(stub):
    eager, fast, happened = stub
    with torch.no_grad():
        eager.whole.token_mean += torch.nan
    plan = fast.plan(asked(eager)[0], candidates=3)
    assert np.isnan(plan.best).all() and happened.count("waited") == 2


def test_where_a_launch_cannot_be_recorded_the_cuda_backend_plans(stub, monkeypatch):
    eager, fast, happened = stub

    def refused(*told):
        raise RuntimeError("no pointers to the CPU's memory")

    answer = (torch.zeros(1, 3, 2, 2), np.zeros((1, 4 + 3 + 1), np.float32))
    fast.whole.deciding = refused
    monkeypatch.setattr(cuda.Captured, "decide", lambda self, candidates, seed, *told: answer)
    with pytest.warns(UserWarning, match="no pointers to the CPU's memory"):
        assert fast.plan(asked(eager)[0], candidates=3).candidates.shape == (3, 2, 2)
    assert fast.plan(asked(eager)[0], candidates=3).chosen == 0 and not happened  # nor is it tried again


# On a GPU


@pytest.fixture
def in_full():
    """Products on a GPU, and a U-Net's convolutions, in full float32 from here on: `kdp.load` rounds them to TF32."""
    before, monkeypatch = torch.get_float32_matmul_precision(), pytest.MonkeyPatch()

    def exactly():
        torch.set_float32_matmul_precision("highest")
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    yield exactly
    torch.set_float32_matmul_precision(before)
    monkeypatch.undo()


@needs_gpu
@pytest.mark.parametrize("candidates", [1, 64, 1024])
@pytest.mark.parametrize("name", COVERED)
def test_a_fused_plan_is_the_eager_plan(folder, name, candidates, in_full):
    fast = kdp.load(folder(name), "cuda", backend="fused")
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
    here, kept = torch.tensor(observation, dtype=torch.float32)[None].cuda(), []
    for seed in (1, 2, 1, 2**63 - 1):
        plan = fast.plan(observation, candidates=candidates, seed=seed)
        windows, scores, chosen, brief = cuda.answering(whole)(here, drawn(whole, seed, candidates))
        kept.append((plan, windows[0].cpu().numpy()))
        np.testing.assert_allclose(plan.scores, scores[0].cpu(), atol=CLOSE, rtol=CLOSE)
        if plan.chosen == chosen[0] or fast.blend:  # there may be two as good as each other
            best = brief[0, : plan.best.size].cpu().numpy().reshape(plan.best.shape)
            np.testing.assert_allclose(plan.best / std, best / std, atol=10 * CLOSE, rtol=CLOSE)
    for _ in range(5):
        fast.plan(observation, candidates=candidates, seed=7)
    for plan, windows in kept:  # later plans did not write over earlier ones
        np.testing.assert_allclose(plan.candidates / std, windows / std, atol=CLOSE, rtol=CLOSE)
    assert np.array_equal(kept[0][0].candidates, kept[2][0].candidates)
    alone = fast.plan(observation, candidates=1, seed=1)
    np.testing.assert_allclose(alone.candidates[0] / std, kept[0][0].candidates[0] / std, atol=CLOSE, rtol=CLOSE)


@needs_gpu
@pytest.mark.parametrize(
    "settings",
    [
        *(
            {},
            {"scorer": "return", "blend": 2.0},
            {"scorer": "none"},
            {"diffusion": {}},
            {"diffusion": {"sampler": "ddim"}},
        ),
        *({"bounded": True, "scorer": "return", "blend": 3.0}, {"bounded": True, "diffusion": {}}),
    ],
)
@pytest.mark.parametrize(("candidates", "count"), [(1, 1), (64, 1), (1024, 1), (7, 3)])
@pytest.mark.parametrize("blocks", [{"blocks": 3}, {"trunk": 2, "blocks": 1}])
def test_the_usual_sizes_are_as_exact(settings, candidates, count, blocks, in_full):
    in_full()
    sizes = {"tokens": 32, "state": 17, "action": 6, "network": {"width": 256} | blocks, "value": {"width": 256}}
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
