"""Dropout: in training some of a trunk's hidden units are left out, so that windows are not learned by heart."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import kdp
from kdp.checkpoint import load_tensors
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.domains.toy import TWO
from kdp.errors import UserError
from kdp.networks import NetworkConfig
from kdp.runs import CONFIG, resume_run, start_run
from kdp.train import MODEL
from kdp.windows import Episodes

NETWORK = NetworkConfig("mlp", width=16, blocks=1, noise=4, trunk=2, dropout=0.5)
SMALL = RunConfig("toy", steps=6, batch=16, network=NETWORK)
STATE = TWO.start(0.3)
METHODS = ("kdp", "diffuser", "bc")


def tensors(folder) -> dict[str, torch.Tensor]:
    return load_tensors(folder / MODEL)[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_leaves_out_what_it_would_have(method, tmp_path):
    config = replace(SMALL, method=method)
    start_run(config, tmp_path / "whole")
    start_run(config, tmp_path / "parts", stop_after=3)
    assert resume_run(tmp_path / "parts").finished
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("method", METHODS)
def test_what_is_learned_depends_on_it_and_what_is_saved_looks_the_same(method, tmp_path):
    config = replace(SMALL, method=method)
    start_run(config, tmp_path / "with")
    start_run(replace(config, network=replace(NETWORK, dropout=0.0)), tmp_path / "without")
    some, none = tensors(tmp_path / "with"), tensors(tmp_path / "without")
    assert {name: t.shape for name, t in some.items()} == {name: t.shape for name, t in none.items()}
    assert any(not torch.equal(t, none[name]) for name, t in some.items() if ".trunk." in name)


@pytest.mark.parametrize("method", METHODS)
def test_plans_have_all_units(method, tmp_path):
    folder = tmp_path / "run"
    start_run(replace(SMALL, method=method), folder)
    before = kdp.load(folder, backend="eager").plan(STATE, candidates=8).candidates
    about = json.loads((folder / CONFIG).read_text())
    assert about["config"]["network"]["dropout"] == 0.5
    about["config"]["network"]["dropout"] = 0.0
    (folder / CONFIG).write_text(json.dumps(about))
    np.testing.assert_array_equal(before, kdp.load(folder, backend="eager").plan(STATE, candidates=8).candidates)


def planted(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """States of six numbers; the action is the sine of their sum with noise of its own, which is chance."""
    random = np.random.default_rng(seed)
    states = random.normal(size=(count, 6))
    return states, np.sin(states.sum(1, keepdims=True)) + random.normal(size=(count, 1))


def learned(dropout: float, folder) -> tuple[float, float]:
    """Trained on 256 windows, each of them hundreds of times: how much of the noise on the data's actions is in the
    mean plan, by the slope of one on the other, and the mean square by which it misses the sine in other states."""
    states, actions = planted(0, 256)
    end = np.ones(256, bool)
    data = Episodes.from_arrays(states, actions, np.zeros(256), end, ~end)
    domain = replace(DOMAINS["hopper-medium"], episodes=lambda: data, horizon=1, bounded=False)
    config = RunConfig(
        "hopper-medium",
        steps=400,
        batch=512,
        network=NetworkConfig(width=64, dropout=dropout),
        value=kdp.value.ValueConfig("none", favour=0.0),
    )
    start_run(config, folder, domain=domain)
    planner = kdp.load(folder, backend="eager")

    def missed(asked: np.ndarray) -> np.ndarray:
        drawn = np.array([planner.plan(state, candidates=64).candidates[:, 0, -1].mean() for state in asked])
        return drawn[:, None] - np.sin(asked.sum(1, keepdims=True))

    noise = actions - np.sin(states.sum(1, keepdims=True))
    return float((missed(states) * noise).mean() / (noise * noise).mean()), float(
        (missed(planted(1, 256)[0]) ** 2).mean()
    )


def test_windows_that_are_seen_often_are_known_less_by_heart_and_others_better(tmp_path):
    (known, missed), (known_less, missed_less) = (learned(share, tmp_path / str(share)) for share in (0.0, 0.5))
    assert known > 0.6 and known_less < 0.7 * known
    assert missed_less < 0.75 * missed


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UserError, match=f"network.dropout must be 0 .none. or more, and less than 1; got {share}"):
        replace(SMALL, network=replace(NETWORK, dropout=share)).check()


def test_locomotion_has_it_and_no_other_domain():
    for name, domain in DOMAINS.items():
        share = RunConfig(name).for_domain(domain).network.dropout
        assert share == (0.1 if domain.value == "return" else 0.0)
