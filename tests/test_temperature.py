"""Temperature: how much of the noise of training plans are drawn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import brief_inverse, every_kind

import kdp
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.domains.toy import TWO
from kdp.errors import UserError
from kdp.export import export
from kdp.exported import load_exported
from kdp.networks import NetworkConfig
from kdp.runs import start_run

NETWORK = NetworkConfig(width=16, blocks=1, channels=4, noise=4)
PLAIN = RunConfig("toy", steps=3, batch=16, temperature=0.5, network=NETWORK)
RUNS = every_kind(PLAIN)
STATE = TWO.start(0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name): a run, trained for a moment."""
    root = tmp_path_factory.mktemp("runs")

    def made(name: str):
        if not (root / name).exists():
            with brief_inverse():
                start_run(RUNS[name], root / name)
        return root / name

    return made


def drawn(folder, temperature=None, backend="eager", candidates=64) -> np.ndarray:
    return kdp.load(folder, backend=backend, temperature=temperature).plan(STATE, candidates=candidates).candidates


@pytest.mark.parametrize("name", RUNS)
def test_plans_differ_less_the_lower_it_is_and_not_at_all_at_zero(folder, name):
    spread = [float(drawn(folder(name), t).std(0).mean()) for t in (0.0, 0.1, 0.5, 1.0)]
    if name == "bc":
        assert max(spread) < 1e-6
    else:
        assert spread[0] < 1e-6 < spread[1] < spread[2] < spread[3]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_its_own(folder, name):
    np.testing.assert_array_equal(drawn(folder(name)), drawn(folder(name), 0.5))


def test_a_plan_of_half_the_noise_is_that_of_noise_half_as_large(folder):
    usual, cool = (kdp.load(folder("kdp"), backend="eager", temperature=t) for t in (1.0, 0.5))
    noise = torch.randn(1, 5, 4)
    method, cooled = usual.sample.__self__, cool.sample.__self__
    condition = kdp.keys.Condition(torch.zeros(1, len(STATE)))
    torch.testing.assert_close(method.decode(noise / 2, condition), cooled.decode(noise, condition))


@pytest.mark.parametrize("name", ["kdp", "ddpm", "ddim"])
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_every_backend_knows_it(folder, name, backend):
    np.testing.assert_allclose(drawn(folder(name)), drawn(folder(name), backend=backend), atol=1e-3)


@pytest.mark.parametrize("name", ["kdp", "ddpm"])
def test_so_does_an_exported_planner(folder, name, tmp_path):
    export(folder(name), "onnx", tmp_path / "out")
    planner, kept = kdp.load(folder(name), backend="eager"), load_exported(tmp_path / "out")
    noise = planner.computed.draw(1, 8, torch.Generator().manual_seed(0)).numpy()
    told = planner.plan(STATE, candidates=8, seed=0).candidates
    np.testing.assert_allclose(kept.plan(STATE, noise=noise).candidates, told, atol=1e-3)


def test_training_does_not_depend_on_it(folder, tmp_path):
    with brief_inverse():
        start_run(replace(RUNS["kdp"], temperature=1.0), tmp_path / "run")
    np.testing.assert_array_equal(drawn(tmp_path / "run", 0.3), drawn(folder("kdp"), 0.3))


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_what_is_no_temperature_is_refused(folder, temperature):
    for refused in (
        lambda: kdp.load(folder("kdp"), temperature=temperature),
        replace(PLAIN, temperature=temperature).check,
    ):
        with pytest.raises(UserError, match=f"temperature must be 0 .no noise. or more; got {temperature}"):
            refused()


def test_a_domain_has_its_own_and_one_everywhere_but_in_locomotion():
    for name, domain in DOMAINS.items():
        temperature = RunConfig(name).for_domain(domain).temperature
        assert temperature == domain.temperature and (temperature == 1) == (domain.value == "none")
        assert RunConfig(name, temperature=0.0).for_domain(domain).temperature == 0
