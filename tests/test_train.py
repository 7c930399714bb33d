"""The loop: exact resume, determinism, what a run folder holds."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import brief_inverse

import kdp.train
from kdp.checkpoint import load_tensors, save_tensors
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.drift import DriftConfig
from kdp.errors import UserError
from kdp.keys import Condition
from kdp.methods import METHODS
from kdp.networks import NetworkConfig
from kdp.runs import resume_run, start_run
from kdp.sampler import Batch, Sampler
from kdp.train import METRICS, MODEL, TRAINING, LoopConfig, Update, has_bf16

SMALL = RunConfig(
    "toy",
    steps=30,
    batch=32,
    drift=DriftConfig(samples=4, positives=8),
    network=NetworkConfig(width=32, blocks=1, noise=4),
    loop=LoopConfig(log_every=5),
)


def tensors(folder, name=TRAINING):
    return load_tensors(folder / name)[0]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("field", ["joint", "keyed", "window"])
def test_a_resumed_run_ends_with_the_same_weights_bit_for_bit(tmp_path, field):
    config = replace(SMALL, drift=replace(SMALL.drift, field=field))
    start_run(config, tmp_path / "whole")
    start_run(config, tmp_path / "parts", stop_after=7)
    assert not same(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    resume_run(tmp_path / "parts", stop_after=19)
    outcome = resume_run(tmp_path / "parts")
    assert outcome.finished and outcome.step == 30
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    assert same(tensors(tmp_path / "whole", MODEL), tensors(tmp_path / "parts", MODEL))


@pytest.mark.parametrize(("domains", "asked", "found"), [(None, None, 1e-4), (0.5, None, 0.5), (0.5, 1e-3, 1e-3)])
def test_weights_shrink_by_the_domains_decay_unless_another_is_asked_for(tmp_path, domains, asked, found):
    """Twice the same step, without decay and with it: it takes off the rate's share of the weights, and no more."""
    domain = replace(DOMAINS["toy"], weight_decay=domains)
    weights = []
    for name, decay in (("none", 0.0), ("asked", asked)):
        config = replace(SMALL, steps=1, loop=replace(SMALL.loop, warmup=1, weight_decay=decay))
        start_run(config, tmp_path / name, domain=domain)
        weights.append(tensors(tmp_path / name)["weights.generator.blocks.0.1.weight"])
    shrunk = (weights[0] - weights[1]).norm() / weights[0].norm()
    assert shrunk == pytest.approx(SMALL.loop.lr * found, rel=0.05, abs=1e-8)


def test_a_part_of_a_method_may_have_a_rate_and_a_decay_of_its_own():
    """One step with no slope: all that happens is decay, each part by its own rate times its own decay."""

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rest, self.part = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
            self.pace = {"part": (1e-2, 0.5)}

        def draws(self, count, generator):
            return ()

        def loss(self, batch, draws):
            return 0 * (self.rest.weight.sum() + self.part.weight.sum()), {}

    method = Two()
    before = {name: weight.item() for name, weight in method.named_parameters() if "weight" in name}
    update = Update(method, LoopConfig(lr=1e-3, weight_decay=0.1))
    windows = torch.zeros(2, 1, 2)
    update(Batch(windows, Condition(windows[:, 0, :1]), windows[:, 0, :1]), rate=1e-3, seed=0)
    after = {name: weight.item() for name, weight in method.named_parameters() if "weight" in name}
    assert after["rest.weight"] == pytest.approx(before["rest.weight"] * (1 - 1e-3 * 0.1), rel=1e-6)
    assert after["part.weight"] == pytest.approx(before["part.weight"] * (1 - 1e-2 * 0.5), rel=1e-6)


@pytest.mark.parametrize("part", ["loop", "value"])
def test_a_decay_below_zero_is_refused(tmp_path, part):
    with pytest.raises(UserError, match=f"{part}.weight-decay must be 0"):
        start_run(replace(SMALL, **{part: replace(getattr(SMALL, part), weight_decay=-1.0)}), tmp_path / "run")


def test_metrics_of_a_resumed_run_have_each_step_once(tmp_path):
    start_run(SMALL, tmp_path / "run", stop_after=12)
    resume_run(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 5, 10, 15, 20, 25, 30]
    assert {"loss", "lr", "drift/rms", "drift/attract", "drift/repel", "sample/spread", "grad/norm"} <= rows[0].keys()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        start_run(replace(SMALL, seed=seed), tmp_path / name)
    assert same(tensors(tmp_path / "a"), tensors(tmp_path / "b"))
    assert not same(tensors(tmp_path / "a"), tensors(tmp_path / "c"))


def test_an_interrupt_saves_between_two_steps_and_the_run_goes_on_exactly(tmp_path, monkeypatch):
    start_run(SMALL, tmp_path / "whole")
    draw = Sampler.__call__

    def draw_and_interrupt(self, step):
        if step == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(self, step)

    monkeypatch.setattr(Sampler, "__call__", draw_and_interrupt)
    outcome = start_run(SMALL, tmp_path / "interrupted")
    assert outcome.interrupted and not outcome.finished and outcome.step == 10  # the step under way is finished
    monkeypatch.undo()
    resume_run(tmp_path / "interrupted")
    assert same(tensors(tmp_path / "whole"), tensors(tmp_path / "interrupted"))


def test_minutes_end_a_run(tmp_path):
    with brief_inverse():
        outcome = start_run(replace(SMALL, steps=None, minutes=0.02), tmp_path / "run")
    assert outcome.finished and outcome.step > 0


def test_a_loaded_run_plans_as_often_as_asked_and_always_the_same(tmp_path):
    start_run(SMALL, tmp_path / "run")
    plans = [kdp.load(tmp_path / "run").plan([0.1, 0.0, 0.0], candidates=5, seed=3) for _ in range(2)]
    np.testing.assert_array_equal(plans[0].candidates, plans[1].candidates)
    assert plans[0].candidates.shape == (5, 8, 4)


def test_other_data_are_noticed_on_resuming(tmp_path, monkeypatch):
    start_run(SMALL, tmp_path / "run", stop_after=5)
    from kdp.domains.toy import TWO

    other = replace(DOMAINS["toy"], episodes=lambda: TWO.episodes(seed=1))
    with pytest.raises(kdp.UserError, match="not those"):
        resume_run(tmp_path / "run", domain=other)


def test_nothing_temporary_is_left_in_a_run_folder(tmp_path):
    start_run(SMALL, tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.is_file()) == sorted(
        ["config.json", "metrics.jsonl", "inverse.safetensors", MODEL, TRAINING]
    )


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"a": torch.ones(2)}, {"step": 1})

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kdp.checkpoint.save_file", full)
    with pytest.raises(kdp.UserError, match="No space left"):
        save_tensors(path, {"a": torch.zeros(2)}, {"step": 2})
    assert load_tensors(path)[1] == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_loss_that_is_not_finite_stops_the_run_with_a_remedy(tmp_path):
    wild = replace(SMALL, loop=LoopConfig(lr=1e30, warmup=1, clip=1e30, log_every=1))
    with pytest.raises(kdp.UserError, match="not finite.*loop.lr"):
        start_run(wild, tmp_path / "run")


def test_the_unet_generator_trains_and_plans(tmp_path):
    start_run(replace(SMALL, steps=3, network=NetworkConfig(kind="unet", channels=8, noise=4)), tmp_path / "run")
    assert np.isfinite(kdp.load(tmp_path / "run").plan([0.0, 0.0, 0.0], candidates=2).actions).all()


def test_a_file_that_is_called_like_a_domain_is_still_a_file(tmp_path):
    data = {"observations": np.random.default_rng(0).normal(size=(40, 3)), "actions": np.zeros((40, 1))}
    np.savez(tmp_path / "toy.npz", **data, terminals=np.arange(40) % 20 == 19)
    start_run(replace(SMALL, dataset=str(tmp_path / "toy.npz"), horizon=8, stride=1, steps=2), tmp_path / "run")
    assert json.loads((tmp_path / "run/config.json").read_text())["domain"] is None


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("method", METHODS)
def test_steps_by_graph_are_those_launched_one_by_one(tmp_path, monkeypatch, method):
    config = replace(SMALL, method=method)
    start_run(config, tmp_path / "graph", device="cuda")
    start_run(config, tmp_path / "parts", device="cuda", stop_after=7)
    resume_run(tmp_path / "parts", device="cuda")
    monkeypatch.setattr(kdp.train, "GRAPH_AFTER", 1000)
    start_run(config, tmp_path / "steps", device="cuda")
    expected = tensors(tmp_path / "steps")
    for other in ("graph", "parts"):
        ends = [json.loads((tmp_path / run / METRICS).read_text().splitlines()[-1]) for run in (other, "steps")]
        assert ends[0]["loss"] == pytest.approx(ends[1]["loss"], rel=1e-3)
        if method == "diffuser":  # a bias before a norm has no slope but rounding, and goes where that leads
            continue
        for name, tensor in tensors(tmp_path / other).items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
    assert json.loads((tmp_path / "graph/metrics.jsonl").read_text().splitlines()[-1])["step"] == 30


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("method", METHODS)
def test_networks_may_compute_in_half_the_bits(tmp_path, monkeypatch, recwarn, method, device):
    monkeypatch.setattr("kdp.parts.has_bf16", lambda device: True)  # without instructions for it, slowly
    for bf16 in (False, True):
        loop = replace(SMALL.loop, bf16=bf16)
        start_run(replace(SMALL, method=method, loop=loop), tmp_path / str(bf16), device=device)
    full, half = (
        [json.loads(line)["loss"] for line in (tmp_path / run / METRICS).read_text().splitlines()]
        for run in ("False", "True")
    )
    assert half != full and half == pytest.approx(full, rel=0.1)
    assert {t.dtype for t in tensors(tmp_path / "True").values()} == {torch.float32}
    assert not [warning for warning in recwarn if "one by one" in str(warning.message)]  # graphs all the same


def test_half_the_bits_are_refused_where_they_would_be_slow(tmp_path, monkeypatch):
    able = {"avx512_bf16": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert not has_bf16("cpu") and has_bf16("cuda")
    with pytest.raises(UserError, match="loop.bf16 needs a GPU, or a CPU with instructions for it"):
        start_run(replace(SMALL, loop=replace(SMALL.loop, bf16=True)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("goal", [None, torch.ones(2, 1)])
def test_a_batch_is_the_same_after_being_taken_apart(goal):
    batch = Batch(torch.ones(2, 3, 4), Condition(torch.zeros(2, 3), goal), torch.ones(2, 3))
    again = Batch.of(*batch.tensors())
    assert all(a is b for a, b in zip(batch.tensors(), again.tensors(), strict=True)) and again.positives is None


def test_a_step_that_cannot_be_recorded_is_done_as_it_stands(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("not here")

    monkeypatch.setattr(kdp.train, "Recorded", refuse)
    update = Update(Quadratic(), LoopConfig(warmup=1))
    update.graphed = True  # as on a GPU
    batch = Batch(torch.ones(2, 1, 1), Condition(torch.zeros(2, 1)), torch.zeros(2, 1))
    with pytest.warns(UserWarning, match="one by one: not here"):
        losses = [float(update(batch, 0.1, step)["loss"]) for step in range(6)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]


class Quadratic(torch.nn.Module):
    """A method with one number to learn."""

    def __init__(self):
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(()))

    def draws(self, count, generator):
        return ()

    def loss(self, batch, draws):
        return (batch.windows - self.value).square().mean(), {}
