"""What a run is told, what it is not told, and where the rest comes from."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from helpers import numbered_episodes, walks

import kdp.parts
from kdp.config import CPU_BATCH, GPU_BATCH, RunConfig
from kdp.domains import DOMAINS, Domain
from kdp.domains.maze2d import custom_maze
from kdp.drift import DriftConfig
from kdp.errors import UserError
from kdp.methods import METHODS
from kdp.networks import NetworkConfig, Sizes
from kdp.parts import assemble
from kdp.runs import start_run
from kdp.sampler import FAR

MAZE = replace(DOMAINS["maze2d-umaze"], episodes=lambda: walks([200]))
SMALL = RunConfig("maze2d-umaze", steps=2, batch=16, horizon=16, network=NetworkConfig(width=8, blocks=1, noise=2))


@pytest.mark.parametrize("method", METHODS)
def test_the_batch_is_the_devices_own_unless_chosen(method):
    config = RunConfig("toy", method=method)
    sizes = {device: config.for_domain(DOMAINS["toy"], device).batch for device in ("cpu", "cuda", "cuda:1")}
    assert sizes == {"cpu": CPU_BATCH[method], "cuda": GPU_BATCH[method], "cuda:1": GPU_BATCH[method]}
    assert sizes["cpu"] == 512 < sizes["cuda"]
    assert replace(config, batch=7).for_domain(DOMAINS["toy"], "cuda").batch == 7


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_with_a_trunk_kdp_has_as_many_conditions_as_regression_has_windows(device):
    def batch(method="kdp", kind="mlp", **drift):
        config = RunConfig("toy", method=method, network=NetworkConfig(kind, trunk=1), drift=DriftConfig(**drift))
        return config.for_domain(DOMAINS["toy"], device).batch

    assert batch() == 4 * batch("bc") and batch(samples=2) == 2 * batch("bc")
    usual = {"cpu": CPU_BATCH, "cuda": GPU_BATCH}[device]["kdp"]
    assert batch(kind="unet") == batch(field="keyed") == usual


def test_what_a_domain_has_of_its_own_is_taken_where_nothing_was_chosen():
    own = Domain(
        "x",
        "",
        lambda: numbered_episodes([40]),
        horizon=24,
        stride=3,
        tilt=7.0,
        lambda_a=0.3,
        network=Sizes(8, 1, 4, 2, 5, 6),
        relabel=True,
        steps=11,
    )
    told = RunConfig("x").for_domain(own)
    assert (told.horizon, told.stride, told.steps, told.relabel) == (24, 3, 11, True)
    assert (told.drift.tilt, told.drift.lambda_a) == (7.0, 0.3)
    assert told.network == NetworkConfig(None, 8, 1, 4, 2, 5, 6) and told.for_domain(own) == told
    chosen = RunConfig(
        "x",
        relabel=False,
        minutes=1.0,
        drift=DriftConfig(tilt=0.0, lambda_a=0.0),
        network=NetworkConfig("unet", bands=0, noise=3),
    ).for_domain(own)
    assert chosen.relabel is False and chosen.steps is None
    assert (chosen.drift.tilt, chosen.drift.lambda_a) == (0.0, 0.0)
    assert chosen.network == NetworkConfig("unet", 8, 1, 4, 3, 0, 6)


@pytest.mark.parametrize("name", DOMAINS)
def test_every_domains_own_settings_can_be(name):
    domain = DOMAINS[name]
    config = RunConfig(name).for_domain(domain)
    config.check()
    assert config.horizon % config.stride == 0 and config.network.channels % 4 == 0


def test_a_maps_network_goes_with_the_length_of_its_ways():
    ring = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
    small, large = custom_maze(ring).network, custom_maze(DOMAINS["maze2d-large"].walls).network
    assert small.width < large.width


def test_the_config_of_a_run_says_all_that_was_decided(tmp_path):
    start_run(SMALL, tmp_path / "run", domain=MAZE)
    written = json.loads((tmp_path / "run/config.json").read_text())["config"]
    sizes = MAZE.network._replace(width=8, blocks=1, noise=2)
    assert written["network"] == {"kind": None} | sizes._asdict()
    assert written["relabel"] is True and written["batch"] == 16 and written["stride"] == MAZE.stride
    assert RunConfig.from_json(written) == SMALL.for_domain(MAZE)
    assert RunConfig.from_json(json.loads(json.dumps(asdict(RunConfig("toy"))))) == RunConfig("toy")


def test_a_size_that_is_asked_for_wins_and_the_others_are_the_domains(kdp_command, tmp_path):
    assert kdp_command("data", "make", "maze2d-umaze", "--steps", 1000)[0] == 0
    words = ("--steps", 1, "--batch", 16, "--horizon", 32, "--network.width", 16, "--relabel", False)
    code, _, err = kdp_command("train", "maze2d-umaze", *words, "--run", "r")
    assert code == 0, err
    written = json.loads((tmp_path / "r/config.json").read_text())["config"]
    sizes = DOMAINS["maze2d-umaze"].network
    assert sizes.bands > 0 and written["network"] == {"kind": None} | sizes._replace(width=16)._asdict()
    assert written["relabel"] is False and written["horizon"] == 32


def test_parts_are_relabelled_where_asked_and_only_there():
    data = MAZE.episodes()
    plain, clean = (
        assemble(replace(SMALL, relabel=relabel).for_domain(MAZE), MAZE, data, "cpu") for relabel in (False, True)
    )
    windows = plain.sampler.windows
    assert windows.reach is None and torch.equal(windows.episodes.actions, data.actions)
    windows = clean.sampler.windows
    assert windows.reach is not None and not torch.equal(windows.episodes.actions, data.actions)
    assert torch.equal(windows.episodes.observations, data.observations)
    assert torch.equal(clean.normalizer.action_std, plain.normalizer.action_std)


def test_without_keying_positives_are_drawn_at_random():
    config = replace(SMALL, drift=DriftConfig(keying=False, positives=5)).for_domain(MAZE)
    parts = assemble(config, MAZE, MAZE.episodes(), "cpu")
    batch = parts.sampler(0)
    assert not parts.sampler.keyed and not batch.key_distance.any() and batch.positives.shape[1] == 5
    draws = parts.learner.draws(len(batch.windows), torch.Generator().manual_seed(0))
    assert parts.learner.loss(batch, draws)[0].isfinite()


def test_positives_behind_a_wall_count_for_nothing_unless_asked_to():
    walled, open_ = (
        assemble(replace(SMALL, drift=DriftConfig(sight=sight)).for_domain(MAZE), MAZE, MAZE.episodes(), "cpu")
        for sight in (True, False)
    )
    assert open_.sampler.sight is None and (open_.sampler(0).key_distance < FAR).all()
    batch = walled.sampler(0)
    out = batch.key_distance >= FAR
    raw = walled.normalizer.untokens(batch.positives)[:, :, :, :2]
    straight = walled.support.between(raw[:, 0, 0], raw[:, :, 0]) & walled.support.between(raw[:, 0, -1], raw[:, :, -1])
    assert torch.equal(out[:, 1:], ~straight[:, 1:]) and not out[:, 0].any() and out.any()
    weight = walled.learner.log_weight(batch).softmax(1)
    draws = walled.learner.draws(len(batch.windows), torch.Generator().manual_seed(0))
    assert (weight[out] == 0).all() and walled.learner.loss(batch, draws)[0].isfinite()


def test_a_horizon_that_does_not_fit_is_refused_before_anything_is_fitted(monkeypatch, tmp_path):
    def late(*_):
        raise AssertionError("fitted first")

    monkeypatch.setattr(kdp.parts, "fit_inverse", late)
    with pytest.raises(UserError, match="horizon must not be longer"):
        start_run(replace(SMALL, horizon=400), tmp_path / "run", domain=MAZE)


def test_neighbours_come_from_all_the_data_where_that_is_less_work_than_table_after_table(monkeypatch):
    monkeypatch.setattr("kdp.parts.CPU_TABLE", 50)
    monkeypatch.setattr("kdp.parts.SMALL_TABLE", 10)
    free = replace(DOMAINS["hopper-medium"], episodes=lambda: walks([60, 50]), horizon=4)
    config = replace(SMALL, dataset="hopper-medium", horizon=16, stride=8)
    sizes = {}
    for domain in (free, MAZE):
        for steps in (10, 100):  # 4 conditions each
            parts = assemble(replace(config, steps=steps).for_domain(domain), domain, walks([60, 50]), "cpu")
            sizes[domain.name, steps] = parts.sampler.size
    assert list(sizes.values()) == [40, 110, 40, 50]  # goals are drawn anew with every table
