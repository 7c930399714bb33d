"""Locomotion: behaviour policies, data collected with them, D4RL's files, and the domains that all of them share."""

from __future__ import annotations

import json
import math
import shutil
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import minari
import numpy as np
import pytest
from helpers import write_hdf5

import kdp
from kdp.bench import locomotion, opponents, peers
from kdp.bench.evaluate import evaluate, roll
from kdp.bench.locomotion import BEST, FOLLOWED, MEAN, RANKED, UNRANKED, VARIANTS, judgings_of, locomotion_runs, ways_of
from kdp.bench.locomotion_page import locomotion_summary
from kdp.bench.results import COLUMNS, read
from kdp.bench.tables import ablations_page
from kdp.config import RunConfig
from kdp.datasets import collect as collecting
from kdp.datasets import d4rl, open_file
from kdp.datasets.collect import LABEL, collect, play
from kdp.datasets.minari_sets import read_folder
from kdp.datasets.policies import read_policy
from kdp.domains import DOMAINS, find_domain
from kdp.domains import locomotion as bodies
from kdp.domains.locomotion import BODIES, LOCOMOTION, GymEnvironments, Task
from kdp.errors import UserError
from kdp.networks import NetworkConfig
from kdp.runs import fingerprint, start_run
from kdp.train import WEIGHT_DECAY

SHARED = Path(__file__).resolve().parents[2] / "shared" / "policies"
ID = "regenerated/hopper-medium-v0"
SMALL = ("--steps", 3, "--batch", 16, "--horizon", 8, "--network.width", 8, "--network.blocks", 1)


def weights(inputs=11, outputs=3, hidden=(8, 5), seed=0, spread="vector", **changes):
    """The arrays of a policy that does nothing sensible; None removes one."""
    random = np.random.default_rng(seed)
    sizes, arrays = [inputs, *hidden, outputs], {}
    for i, (one, other) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        arrays |= {f"W{i}": random.normal(size=(other, one)) / math.sqrt(one), f"b{i}": random.normal(size=other) / 3}
    arrays |= {
        "activation": np.array("relu"),
        "squash": np.array("tanh"),
        "obs_mean": random.normal(size=inputs) / 5,
        "obs_std": random.uniform(0.5, 2, inputs),
        "obs_clip": np.array(1.5),
        "out_scale": random.uniform(0.5, 1.5, outputs),
        "out_shift": random.normal(size=outputs) / 5,
    }
    if spread == "vector":
        arrays["log_std"] = random.uniform(-2, -1, outputs)
    elif spread == "layer":
        arrays |= {"log_std_W": random.normal(size=(outputs, sizes[-2])) * 9, "log_std_b": random.normal(size=outputs)}
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def saved(path, **options):
    np.savez(path, **weights(**options))
    return path


def always(path, action, log_std=-20.0, inputs=11, outputs=3):
    """A policy that does one thing, whatever it sees."""
    shift = {"out_scale": np.zeros(outputs), "out_shift": np.full(outputs, action)}
    return saved(
        path, inputs=inputs, outputs=outputs, **shift, log_std=np.full(outputs, log_std), squash=np.array("clip")
    )


def refusal(call, *arguments, **options):
    """The sentence a call is refused with: it has no line breaks and ends with a full stop."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


# Policies


def by_hand(arrays, observation, noise):
    """One action, number by number."""
    x = []
    for value, mean, std in zip(observation, arrays["obs_mean"], arrays["obs_std"], strict=True):
        x.append(max(-float(arrays["obs_clip"]), min(float(arrays["obs_clip"]), (value - mean) / std)))

    def layer(weight, bias):
        return [
            sum(float(w) * v for w, v in zip(row, x, strict=True)) + float(b)
            for row, b in zip(weight, bias, strict=True)
        ]

    depth = sum(key[0] == "W" and key[1:].isdigit() for key in arrays)
    for i in range(depth - 1):
        squeeze = math.tanh if arrays["activation"] == "tanh" else lambda v: max(v, 0.0)
        x = [squeeze(v) for v in layer(arrays[f"W{i}"], arrays[f"b{i}"])]
    mean = layer(arrays[f"W{depth - 1}"], arrays[f"b{depth - 1}"])
    spread = layer(arrays["log_std_W"], arrays["log_std_b"]) if "log_std_W" in arrays else arrays["log_std"]
    action = []
    for m, scale, shift, log_std, z in zip(mean, arrays["out_scale"], arrays["out_shift"], spread, noise, strict=True):
        drawn = m * scale + shift + math.exp(max(-20, min(2, log_std))) * z
        action.append(math.tanh(drawn) if arrays["squash"] == "tanh" else max(-1, min(1, drawn)))
    return action


@pytest.mark.parametrize("hidden", [(), (8, 5)])
@pytest.mark.parametrize("spread", ["vector", "layer"])
@pytest.mark.parametrize("squash", ["tanh", "clip"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_policy_acts_as_the_format_says(tmp_path, activation, squash, spread, hidden):
    arrays = weights(spread=spread, hidden=hidden, activation=np.array(activation), squash=np.array(squash))
    np.savez(tmp_path / "p.npz", **arrays)
    policy, random = read_policy(tmp_path / "p.npz"), np.random.default_rng(1)
    states, noise = 2 * random.normal(size=(6, 11)), random.normal(size=(6, 3))
    for z in (noise, np.zeros_like(noise)):
        expected = [by_hand(arrays, s, n) for s, n in zip(states, z, strict=True)]
        np.testing.assert_allclose(policy.act(states, z), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(policy.act(states), policy.act(states, np.zeros_like(noise)))
    assert (policy.name, policy.state_dim, policy.action_dim) == ("p.npz", 11, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"W0": None}, "it has no W0"),
        ({"b1": None, "obs_std": None}, "it has no b1, obs_std"),
        ({"log_std_W": np.zeros((3, 5))}, "it has no log_std_b"),
        ({"W1": np.zeros((5, 9))}, r"W1 must have the shape \(any, 8\) to fit the other arrays; it has \(5, 9\)"),
        ({"b0": np.zeros(7)}, r"b0 must have the shape \(8\)"),
        ({"obs_mean": np.zeros(10)}, r"obs_mean must have the shape \(11\)"),
        ({"log_std": np.zeros(4)}, r"log_std must have the shape \(3\)"),
        ({"obs_clip": np.zeros(2)}, r"obs_clip must have the shape \(\)"),
        ({"W0": np.full((8, 11), np.nan)}, "W0 must be finite; 88 of its 88"),
        ({"W0": np.full((8, 11), "x")}, "W0 must hold numbers"),
        ({"obs_std": np.zeros(11)}, "obs_std must be more than zero"),
        ({"activation": np.array("gelu")}, "activation must be relu or tanh; got 'gelu'"),
        ({"squash": np.array(3)}, "squash must be tanh or clip; got '3'"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_refused_in_one_sentence(tmp_path, changes, words):
    path = saved(tmp_path / "p.npz", **changes)
    with pytest.raises(UserError, match=words):
        read_policy(path)


def test_a_file_that_is_no_policy_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "text.npz").write_text("no policy")
    np.savez(tmp_path / "pickled.npz", W0=np.array([{}], dtype=object))
    assert "there is no policy file" in refusal(read_policy, tmp_path / "none.npz")
    assert "not a zip archive" in refusal(read_policy, tmp_path / "text.npz")
    assert "Object arrays cannot be loaded" in refusal(read_policy, tmp_path / "pickled.npz")


# Collecting


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data folder with a small hopper-medium, and the policy that it comes from."""
    home = tmp_path_factory.mktemp("home")
    policy = saved(home / "clumsy.npz")
    collect(home / "data" / ID, "hopper-medium", "Hopper-v5", [policy], 600, seed=4)
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy of it, where the command looks for data."""
    shutil.copytree(made / "data", tmp_path / "data")
    shutil.copy(made / "clumsy.npz", tmp_path / "clumsy.npz")
    monkeypatch.setenv("KDP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def episodes_of(folder):
    return list(minari.MinariDataset(folder / "data").iterate_episodes())


def test_one_seed_makes_the_same_data_whatever_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "SHARD", 120)
    policy, data = saved(tmp_path / "p.npz"), []
    for name, jobs, seed in (("one", 1, 3), ("again", 1, 3), ("three", 3, 3), ("other", 2, 4)):
        folder = collect(tmp_path / name, "x", "Hopper-v5", [policy], 400, jobs=jobs, seed=seed)
        data.append(read_folder(folder))
    one, again, three, other = data
    assert len(one) == 400 and one.steps.equal(again.steps) and one.steps.equal(three.steps)
    assert one.starts.equal(three.starts) and one.terminals.equal(three.terminals) and one.rewards.equal(three.rewards)
    assert not one.steps.equal(other.steps) and not one.steps[:20].equal(one.steps[120:140])
    assert {120, 240, 360, 400} <= set(one.starts.tolist())  # each shard ends an episode


def test_a_fall_is_a_terminal_and_a_cut_is_not(home):
    episodes = episodes_of(home / ID)
    assert sum(map(len, episodes)) == 600 and len(episodes) > 5
    for number, episode in enumerate(episodes):
        assert len(episode.observations) == len(episode.actions) + 1 == len(episode.rewards) + 1
        assert not episode.terminations[:-1].any() and not episode.truncations[:-1].any()
        assert episode.terminations[-1] != episode.truncations[-1]
        fell = episode.observations[-1, 0] < 0.7 or abs(episode.observations[-1, 1]) > 0.2  # Gymnasium's healthy ranges
        assert episode.terminations[-1] == fell == (number < len(episodes) - 1)


def test_the_time_limit_is_a_timeout(tmp_path):
    policy = saved(tmp_path / "p.npz", inputs=17, outputs=6, hidden=(4,))
    episodes = episodes_of(collect(tmp_path / "x", "x", "HalfCheetah-v5", [policy], 2300))
    assert [len(episode) for episode in episodes] == [1000, 1000, 300]
    for episode in episodes:
        assert not episode.terminations.any() and np.flatnonzero(episode.truncations).tolist() == [len(episode) - 1]
    data = read_folder(tmp_path / "x")
    assert data.starts.tolist() == [0, 1000, 2000, 2300] and not data.terminals.any()


def test_an_episode_is_what_the_environment_does_from_its_seed(home):
    import gymnasium

    env, episode = gymnasium.make("Hopper-v5"), episodes_of(home / ID)[2]
    seed = minari.MinariDataset(home / ID / "data").storage.get_episode_metadata([2])
    state, _ = env.reset(seed=int(next(iter(seed))["seed"]))
    for t, action in enumerate(episode.actions):
        np.testing.assert_array_equal(episode.observations[t], state)
        state, reward, *_ = env.step(action)
        assert reward == episode.rewards[t]
    np.testing.assert_array_equal(episode.observations[-1], state)
    env.close()


@pytest.mark.parametrize("steps", [25, 60, 91, 200])
def test_episodes_come_in_the_order_of_their_seeds_however_many_run_side_by_side(tmp_path, monkeypatch, steps):
    policy, played = read_policy(always(tmp_path / "p.npz", 0.1, log_std=0.0)), []
    for lanes in (1, 3):
        monkeypatch.setattr(collecting, "LANES", lanes)
        played.append(play("Hopper-v5", policy, steps, True, 0.0, (5, 0)))
    assert [len(episode.actions) for episode in played[0]] == [len(episode.actions) for episode in played[1]]
    assert sum(len(episode.actions) for episode in played[0]) == steps
    for one, other in zip(*played, strict=True):
        assert one.seed == other.seed and one.terminated == other.terminated
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_array_equal(one.observations, other.observations)


@pytest.mark.parametrize(("mix", "steps"), [(None, [50, 50]), ([3, 1], [75, 25]), ([1, 2], [33, 67])])
def test_each_policy_makes_its_share_of_the_steps(tmp_path, mix, steps):
    policies = [always(tmp_path / "low.npz", -0.5), always(tmp_path / "high.npz", 0.5)]
    collect(tmp_path / "x", "x", "Hopper-v5", policies, 100, mix=mix, jobs=1)
    actions = read_folder(tmp_path / "x").actions.numpy()
    np.testing.assert_allclose(actions, np.repeat([-0.5, 0.5], steps)[:, None] * np.ones(3), atol=1e-6)
    about = json.loads((tmp_path / "x/data/metadata.json").read_text())
    assert about["policies"] == ["low.npz", "high.npz"] and about["policy_steps"] == steps
    assert sum(about["mix"]) == 1


def test_actions_are_drawn_or_not_and_noise_comes_on_top(tmp_path):
    policy = always(tmp_path / "p.npz", 0.0, log_std=math.log(0.1))

    def spread(**options):
        collect(tmp_path / "x", "x", "Hopper-v5", [policy], 400, jobs=1, **options)
        return read_folder(tmp_path / "x").actions.std()

    assert spread() == pytest.approx(0.1, rel=0.1)
    assert spread(stochastic=False) == 0
    assert spread(stochastic=False, noise=0.2) == pytest.approx(0.2, rel=0.1)
    assert spread(noise=0.2) == pytest.approx(math.hypot(0.1, 0.2), rel=0.1)


def test_actions_are_stretched_over_other_bounds(tmp_path):
    policy = always(tmp_path / "p.npz", 1.0, inputs=3, outputs=1)
    collect(tmp_path / "x", "x", "Pendulum-v1", [policy], 250, jobs=1)  # torques in [-2, 2], 200 steps an episode
    episodes = episodes_of(tmp_path / "x")
    assert [len(episode) for episode in episodes] == [200, 50] and (episodes[0].actions == 2).all()


def test_an_environment_of_gymnasium_robotics_is_found(tmp_path):
    policy = always(tmp_path / "p.npz", 0.0, inputs=39, outputs=28)
    collect(tmp_path / "x", "x", "AdroitHandDoor-v1", [policy], 5, jobs=1)
    dataset = minari.MinariDataset(str(tmp_path / "x/data"))
    env = dataset.recover_environment()
    assert env.spec.id == "AdroitHandDoor-v1" and dataset.total_steps == 5
    env.close()


def test_minari_loads_it_by_id_and_recovers_its_environment(home, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home))
    assert list(minari.list_local_datasets()) == [ID]
    dataset = minari.load_dataset(ID)
    assert dataset.total_steps == 600
    env = dataset.recover_environment()
    assert env.spec.id == "Hopper-v5" and env.spec.max_episode_steps == 1000
    assert (env.observation_space, env.action_space) == (dataset.observation_space, dataset.action_space)
    env.close()
    text = (home / ID / "data/metadata.json").read_text()
    about = json.loads(text)
    assert (about["dataset_id"], about["label"]) == (ID, "regenerated: not D4RL") and about["description"].startswith(
        LABEL
    )
    assert (about["policies"], about["mix"], about["noise"], about["seed"]) == (["clumsy.npz"], [1.0], 0.0, 4)
    assert {"gymnasium", "mujoco", "numpy"} <= about["made_with"].keys() and "/" not in about["algorithm_name"]
    assert str(home) not in text and "/tmp" not in text


def test_a_shared_policy_collects_hops(tmp_path):
    if not (SHARED / "hopper-medium.npz").exists():
        pytest.skip("the shared policy hopper-medium.npz is not on this machine")
    collect(tmp_path / "x", "x", "Hopper-v5", [SHARED / "hopper-medium.npz"], 2000)
    totals = [episode.rewards.sum() for episode in episodes_of(tmp_path / "x")[:-1]]
    assert len(totals) >= 1 and np.mean(totals) > 800  # 1650 +- 900 in the long run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--env", "Hopper-v5", "--policy", "clumsy.npz"), "give --name NAME or --out DIR"),
        (
            ("--env", "Hopper-v5", "--policy", "clumsy.npz", "--name", "a", "--out", "b"),
            "give --name NAME or --out DIR",
        ),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--name", "../a"), "letters, digits"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--name", ""), "letters, digits"),
        (("--env", "Hopper-v5", "--policy", "none.npz", "--out", "b"), "there is no policy file none.npz"),
        (("--env", "Hoper-v5", "--policy", "clumsy.npz", "--out", "b"), "Did you mean: `Hopper`?"),
        (
            ("--env", "Walker2d-v5", "--policy", "clumsy.npz", "--out", "b"),
            "takes 11 numbers and gives 3, and Walker2d-v5",
        ),
        (("--env", "CartPole-v1", "--policy", "clumsy.npz", "--out", "b"), "actions must be a vector"),
        (("--env", "Hopper-v5", "--policy", "still.npz", "--out", "b"), "use --no-stochastic"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--mix", "1,2", "--out", "b"), "one share for each policy"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--mix", "0", "--out", "b"), "more than zero; got 0"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--mix", "x", "--out", "b"), "must be numbers separated"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--steps", "0", "--out", "b"), "1 step or more"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--noise", "-1", "--out", "b"), "noise must be 0 or more"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--jobs", "0", "--out", "b"), "jobs must be 1 or more"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--seed", "-1", "--out", "b"), "seed must be 0 or more"),
        (("--env", "Hopper-v5", "--policy", "clumsy.npz", "--out", "full"), "holds something else"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(kdp_command, tmp_path, words, sentence):
    saved(tmp_path / "clumsy.npz")
    saved(tmp_path / "still.npz", spread=None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    code, _, err = kdp_command("data", "collect", *words)
    assert code == 2 and sentence in err and err.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_only_collected_data_are_replaced_and_all_of_them_or_nothing(home, monkeypatch):
    policy = home.parent / "clumsy.npz"
    before = (home / ID / "data/main_data.hdf5").read_bytes()
    monkeypatch.setattr(collecting, "_buffer", lambda episode: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collect(home / ID, "hopper-medium", "Hopper-v5", [policy], 50, jobs=1)
    assert (home / ID / "data/main_data.hdf5").read_bytes() == before
    monkeypatch.undo()
    collect(home / ID, "hopper-medium", "Hopper-v5", [policy], 50, jobs=1)
    assert len(read_folder(home / ID)) == 50 and not list((home / ID).glob(".*"))
    path = home / ID / "data/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"label": "mine"}))
    assert "holds something else" in refusal(collect, home / ID, "x", "Hopper-v5", [policy], 50)


# The domains


def test_the_domains_are_those_of_the_table():
    names = {f"{body}-{kind}" for body in BODIES for kind in ("medium", "medium-expert", "medium-replay", "expert")}
    assert {domain.name for domain in LOCOMOTION} == names | {"halfcheetah-medium-narrow"} <= DOMAINS.keys()
    for domain in LOCOMOTION:
        assert (domain.horizon, domain.stride, domain.episode_steps, domain.goals) == (4, 1, 1000, None)
        assert domain.reference == BODIES[domain.name.split("-")[0]].reference


@pytest.mark.parametrize("name", [domain.name for domain in LOCOMOTION])
def test_missing_data_are_told_with_the_commands_that_get_them(tmp_path, monkeypatch, name):
    monkeypatch.setenv("KDP_DATA", str(tmp_path))
    sentence = refusal(DOMAINS[name].episodes)
    assert f"kdp data collect --env {BODIES[name.split('-')[0]].env}" in sentence and f"--name {name}`" in sentence
    if "narrow" not in name:
        assert f"{name}-v2" in d4rl.FILES and f"`kdp data download {name}-v2`" in sentence


def test_the_domain_reads_what_was_collected_by_name_id_and_path(home, monkeypatch):
    monkeypatch.chdir(home)
    for x in ("hopper-medium", ID, str(home / ID)):
        assert find_domain(x) is DOMAINS["hopper-medium"]
    episodes = DOMAINS["hopper-medium"].episodes()
    assert (episodes.name, len(episodes), episodes.state_dim, episodes.action_dim) == (
        "regenerated/hopper-medium",
        600,
        11,
        3,
    )
    shutil.copytree(home / ID, home / "copy")
    copy = find_domain("copy")
    assert copy.reference == BODIES["hopper"].reference and copy.source == str(home / "copy")
    assert copy.episodes().name == "regenerated/hopper-medium"


def test_data_of_another_environment_are_not_a_domains(home):
    shutil.copytree(home / ID, home / "regenerated/walker2d-expert-v0")
    assert "must be of Walker2d-v5; those in" in refusal(DOMAINS["walker2d-expert"].episodes)


def test_the_commands_speak_of_collecting(kdp_command):
    code, out, _ = kdp_command("data", "list")
    assert code == 0 and "Collected" in out and all(domain.name in out for domain in LOCOMOTION)
    code, _, err = kdp_command("data", "make", "hopper-expert")
    assert code == 2 and "`kdp data collect --env Hopper-v5 --policy hopper-expert.npz" in err


class Does:
    """An actor from a function of observations."""

    def __init__(self, act):
        self._act = act

    def act(self, observations, goals):
        return self._act(observations)


def test_an_episode_ends_at_the_fall_and_its_return_is_the_environments():
    import gymnasium

    played = roll(Does(lambda s: np.ones((len(s), 3))), DOMAINS["hopper-medium"], [7, 8])
    env = gymnasium.make("Hopper-v5")
    for seed, episode in zip((7, 8), played, strict=True):
        (state, _), total, fell = env.reset(seed=seed), 0.0, False
        while not fell:
            state, reward, fell, _, _ = env.step(np.ones(3, np.float32))
            total += float(reward)
        assert episode.total == pytest.approx(total) and not episode.success and episode.goal is None
        np.testing.assert_array_equal(episode.states[-1], state)
    env.close()


@pytest.mark.parametrize(("body", "success"), [("hopper", True), ("walker2d", True), ("halfcheetah", False)])
def test_whoever_can_fall_succeeds_by_reaching_the_time_limit(monkeypatch, body, success):
    from gymnasium.wrappers import TimeLimit

    monkeypatch.setattr(bodies, "open_env", lambda env: TimeLimit(collecting.open_env(env).unwrapped, 4))
    environments = GymEnvironments(BODIES[body], 2)
    state, goals = environments.reset([0, 1])
    assert goals is None and not np.array_equal(state[0], state[1])
    actions = 50 * np.ones((2, environments.low.size))  # clipped: the reward's control cost is that of ones
    steps = [environments.step(actions) for _ in range(5)]
    assert [step.done.tolist() for step in steps] == [[False] * 2] * 3 + [[True] * 2] * 2
    assert [step.success.tolist() for step in steps[:4]] == [[False] * 2] * 3 + [[success] * 2]
    assert (steps[4].reward == 0).all() and np.array_equal(steps[4].observation, steps[3].observation)
    assert min(step.reward.min() for step in steps) > -10
    environments.close()


def test_a_run_trains_plans_and_is_scored_on_d4rls_scale(home, tmp_path):
    network = NetworkConfig(width=8, blocks=1, noise=2)
    start_run(RunConfig("hopper-medium", steps=3, batch=16, horizon=8, network=network), tmp_path / "run")
    planner, domain = kdp.load(tmp_path / "run"), DOMAINS["hopper-medium"]
    plan = planner.plan(domain.episodes().observations[0].tolist(), candidates=4)
    assert plan.actions.shape == (8, 3) and np.isfinite(plan.actions).all()
    result, played = evaluate(planner, domain, episodes=3, candidates=2, executor="action", timed=False)
    returns = np.mean([episode.total for episode in played])
    assert result["score"] == pytest.approx(100 * (returns + 20.272305) / (3234.3 + 20.272305))
    assert -5 < result["score"] < 40 and result["success"] == 0
    about = json.loads((tmp_path / "run/config.json").read_text())
    assert (about["domain"], about["data"]["name"]) == ("hopper-medium", "regenerated/hopper-medium")


# D4RL's files


def d4rl_arrays(count=60, **changes):
    """The layout of gym_mujoco_v2: the first of three episodes falls, the others reach the limit; None removes."""
    random = np.random.default_rng(0)
    states = random.normal(size=(count, 11)).astype(np.float32)
    following = np.roll(states, -1, axis=0)
    ends = np.arange(count) % 20 == 19
    following[ends] = random.normal(size=(int(ends.sum()), 11))
    arrays = {
        "observations": states,
        "next_observations": following,
        "actions": random.uniform(-1, 1, (count, 3)).astype(np.float32),
        "rewards": np.ones(count, np.float32),
        "terminals": np.arange(count) == 19,
        "timeouts": ends & (np.arange(count) > 19),
        "infos/qpos": random.normal(size=(count, 6)),
        "infos/action_log_probs": np.zeros(count),
        "metadata/algorithm": np.bytes_(b"SAC"),
        "metadata/policy/fc0/weight": np.zeros((4, 11)),
    }
    return {key: value for key, value in (arrays | changes).items() if value is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"terminals": (np.arange(60) == 19).astype(np.float32)},
        {"terminals": (np.arange(60) == 19).astype(np.float64)[:, None]},
        {"timeouts": None},  # as in the first D4RL files: read off next_observations
        {"next_observations": None},
    ],
)
def test_a_file_of_d4rls_is_read(tmp_path, changes):
    arrays = d4rl_arrays(**changes)
    episodes = open_file(write_hdf5(tmp_path / "hopper_medium-v2.hdf5", arrays))
    assert episodes.starts.tolist() == [0, 20, 40, 60] and np.flatnonzero(episodes.terminals.numpy()).tolist() == [19]
    np.testing.assert_array_equal(episodes.observations.numpy(), arrays["observations"])
    assert episodes.name == "hopper_medium-v2.hdf5"


def test_a_file_with_neither_ends_nor_flags_is_refused(tmp_path):
    path = write_hdf5(tmp_path / "a.hdf5", d4rl_arrays(terminals=None, timeouts=None))
    assert "needs terminals or timeouts" in refusal(open_file, path)
    path = write_hdf5(tmp_path / "b.hdf5", d4rl_arrays(terminals=np.full(60, 0.5)))
    assert "terminals must be 0 or 1" in refusal(open_file, path)
    path = write_hdf5(tmp_path / "c.hdf5", d4rl_arrays(timeouts=None, terminals=np.zeros(59)))
    assert "observations has 60 and terminals has 59" in refusal(open_file, path)


def test_a_run_on_d4rls_file_is_judged_in_the_domain(kdp_command, tmp_path):
    write_hdf5(tmp_path / "hopper_medium-v2.hdf5", d4rl_arrays())
    assert kdp_command("train", "hopper_medium-v2.hdf5", "--run", "run", *SMALL)[0] == 0
    code, _, err = kdp_command("eval", "run", "--episodes", 1)
    assert code == 2 and "--domain" in err and "hopper-medium" in err
    code, _, err = kdp_command("eval", "run", "--episodes", 1, "--domain", "walker2d-medium")
    assert code == 2 and "choose a --domain that fits" in err
    assert kdp_command("eval", "run", "--episodes", 2, "--candidates", 2, "--domain", "hopper-medium")[0] == 0
    result = json.loads((tmp_path / "run/eval.json").read_text())
    assert (result["domain"], result["dataset"]) == ("hopper-medium", "hopper_medium-v2.hdf5")
    assert result["score"] == pytest.approx(100 * (result["return_mean"] + 20.272305) / (3234.3 + 20.272305))


# Downloads


@contextmanager
def server(content, announced=None, status=200, wait=None):
    """A server on this machine that answers everything with `content`; yields its address and what was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if wait is not None:
                wait.wait(5)
            self.send_response(status)
            if announced is not False:
                self.send_header("Content-Length", str(announced or len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            """Nothing is printed."""

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/offline_rl", asked
    finally:
        if wait is not None:
            wait.set()
        http.shutdown()
        http.server_close()


@pytest.fixture
def content(tmp_path, monkeypatch):
    """The bytes of a file of D4RL's, and no proxy between here and here."""
    monkeypatch.setenv("no_proxy", "*")
    path = write_hdf5(tmp_path / "original", d4rl_arrays())
    return path.read_bytes()


@pytest.mark.parametrize("announced", [None, False])
def test_a_download_is_the_servers_file_and_is_kept(kdp_command, tmp_path, monkeypatch, content, announced):
    with server(content, announced) as (address, asked):
        monkeypatch.setattr(d4rl, "SERVER", address)
        code, out, _ = kdp_command("data", "download", "hopper-medium-expert-v2")
        path = tmp_path / "data/d4rl/hopper_medium_expert-v2.hdf5"
        assert code == 0 and "is complete" in out and path.read_bytes() == content
        assert kdp_command("data", "download", "hopper-medium-expert-v2", "--out", path)[0] == 0
        assert kdp_command("data", "download", "antmaze-large-play-v2", "--out", "mine.hdf5")[0] == 0
    assert asked == [
        "/offline_rl/gym_mujoco_v2/hopper_medium_expert-v2.hdf5",
        "/offline_rl/ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
    ]
    assert len(open_file(path)) == len(open_file(tmp_path / "mine.hdf5")) == 60


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"announced": 10**6}, "broke off after"),
        ({"status": 404}, "the server answered 404 Not Found"),
        ({"content": b"<html>Log in first"}, "did not answer with an HDF5 file"),
    ],
)
def test_a_download_that_fails_leaves_nothing(kdp_command, tmp_path, monkeypatch, content, answer, sentence):
    with server(**({"content": content} | answer)) as (address, _):
        monkeypatch.setattr(d4rl, "SERVER", address)
        code, _, err = kdp_command("data", "download", "hopper-medium-v2")
    last = err.strip().splitlines()[-1]
    assert code == 2 and last.startswith("kdp: ") and sentence in last and last.endswith(".")
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


def test_no_network_and_no_answer_are_told_at_once(monkeypatch, tmp_path, content):
    with server(content) as (address, _):
        pass
    monkeypatch.setattr(d4rl, "SERVER", address)  # nobody is there any more
    assert "Connection refused" in refusal(d4rl.download, "hopper-medium-v2", tmp_path / "x.hdf5")
    monkeypatch.setattr("kdp.datasets.minari_sets.ANSWER_SECONDS", 0.2)
    with server(content, wait=threading.Event()) as (address, _):
        monkeypatch.setattr(d4rl, "SERVER", address)
        sentence = refusal(d4rl.download, "hopper-medium-v2", tmp_path / "x.hdf5")
    assert "no answer in 0.2 s" in sentence or "timed out" in sentence
    assert "train on its path" in sentence and not (tmp_path / "x.hdf5").exists()


def test_an_unknown_name_is_refused_with_the_nearest():
    assert "Did you mean 'hopper-medium-v2'?" in refusal(d4rl.file_name, "hopper-medum-v2")
    assert "kdp train mujoco/hopper/medium-v0" in refusal(d4rl.file_name, "mujoco/hopper/medium-v0")


def test_the_addresses_are_d4rls():
    assert d4rl.SERVER == "http://rail.eecs.berkeley.edu/datasets/offline_rl"
    assert d4rl.FILES["hopper-medium-v2"] == "gym_mujoco_v2/hopper_medium-v2.hdf5"
    assert d4rl.FILES["halfcheetah-medium-replay-v2"] == "gym_mujoco_v2/halfcheetah_medium_replay-v2.hdf5"
    assert d4rl.FILES["maze2d-umaze-v1"] == "maze2d/maze2d-umaze-sparse-v1.hdf5"
    assert d4rl.FILES["pen-human-v1"] == "hand_dapg_v1/pen-human-v1.hdf5"


# The study

OURS = ("kdp", "kdp-window", "kdp-alike", "kdp-critic", "kdp-ascent", "kdp-wish")


@pytest.fixture
def few_steps(monkeypatch, tmp_path):
    """A folder of policies, and sets that need few steps of them."""
    monkeypatch.setattr(Task, "steps", property(lambda task: 600))
    for kind in ("medium", "expert", "replay-001", "replay-002"):
        saved(tmp_path / f"hopper-{kind}.npz")
    return tmp_path


def test_the_study_collects_what_is_missing_and_writes_a_row_for_each_method_and_peer(kdp_command, few_steps, tmp_path):
    pytest.importorskip("d3rlpy", reason="the extra `peers` is not installed")
    words = ("bench", "locomotion", "--quick", "--tasks", "hopper-medium-expert", "--seeds", 1, "--policies", few_steps)
    assert kdp_command(*words)[0] == 0
    rows = read(tmp_path / "results/locomotion.jsonl")
    told = [(r["variant"], r["method"], r["field"], r["candidates"], r["nfe"]) for r in rows]
    assert told == [
        *((name, "kdp", "joint", k, 1) for name in OURS for k in (2, 2, 2, 1)),  # a blend, the mean, the best, one
        *(("kdp-published", "kdp", "keyed", k, 1) for k in (2, 2, 1)),  # what it follows is the best
        *(("diffuser", "diffuser", None, k, 2) for k in (2, 2, 2, 2, 2, 1)),  # by its own scorer and by KDP's
        *(("diffuser-published", "diffuser", None, k, 2) for k in (2, 2, 1)),
        ("bc", "bc", None, 1, 1),
        ("bc-favour", "bc", None, 1, 1),
        ("bc-wish", "bc", None, 1, 1),
        ("iql", "iql", None, 1, 1),
        ("td3+bc", "td3+bc", None, 1, 1),
        ("rebrac", "rebrac", None, 1, 1),
    ]
    for r in rows:
        assert set(COLUMNS) <= r.keys() and r["dataset"] == "regenerated/hopper-medium-expert" and r["quick"]
        assert r["train_steps"] == 5 and r["executor"] == "action" and r["score"] is not None
    lent = [(r["variant"], r["scored"], r["blend"] > 0) for r in rows if r.get("ranked_by") == "kdp"]
    assert lent == [("diffuser", True, True), ("diffuser", True, False)]
    assert kdp_command(*words)[0] == 0 and read(tmp_path / "results/locomotion.jsonl") == rows  # nothing twice
    assert kdp_command("table")[0] == 0
    page = (tmp_path / "docs/results/locomotion.md").read_text()
    assert (
        page.count("\n| diffuser, kdp's J ") == 4
    )  # two ways of following, in the table of scores and in that of costs
    assert "not D4RL's files" in page and "not results" in page and f"{rows[-1]['score']:.1f}" in page


def test_diffuser_learns_from_the_windows_that_ours_does_and_what_is_published_from_all_alike():
    domain = DOMAINS["hopper-medium"]
    studied = locomotion_runs(["hopper-medium"], list(VARIANTS), 1, None, False, "cpu", Path("runs"))
    favour = {name: run.config.for_domain(domain).value.favour for name, run in studied}
    assert favour["kdp"] == favour["diffuser"] == favour["bc-favour"] == domain.favour > 0
    assert not any(favour[name] for name in ("kdp-alike", "kdp-published", "diffuser-published", "bc"))
    loops = {name: run.config.for_domain(domain).loop.weight_decay for name, run in studied}
    assert loops["kdp"] == loops["diffuser"] == loops["bc-favour"] == domain.weight_decay
    assert loops["kdp-published"] == loops["diffuser-published"] == WEIGHT_DECAY
    decay = {name: run.config.value.weight_decay for name, run in studied}
    assert decay["kdp"] == decay["diffuser"] > decay["kdp-published"] == decay["diffuser-published"] == 1e-4


def test_diffuser_is_ranked_by_its_own_scorer_and_by_that_of_kdp_with_the_same_seed():
    studied = locomotion_runs(["hopper-medium"], ["kdp", "diffuser"], 2, None, False, "cpu", Path("runs"))
    every = judgings_of(studied, list(FOLLOWED.values()), False)
    lent = [(j.training.folder.name, j.scorer.name, j.protocol) for j in every if j.scorer]
    assert lent == [
        (f"hopper-medium-diffuser-{seed}", f"hopper-medium-kdp-{seed}", asked)
        for seed in (0, 1)
        for asked in (RANKED, BEST)  # the others need no scores
    ]
    own = [j.protocol for j in judgings_of(studied[2:], list(FOLLOWED.values()), False)]
    assert own == 2 * [RANKED, MEAN, BEST, UNRANKED]  # where KDP is not in the study too
    assert [j.protocol for j in judgings_of(studied[2:], [BEST], False)] == 2 * [BEST]
    domain = DOMAINS["hopper-medium"]
    sees = {name: run.config.for_domain(domain).value.sees for name, run in studied}
    assert sees == {"kdp": "actions", "diffuser": "window"}


@pytest.mark.parametrize(("kind", "count"), [("medium", 1), ("medium-expert", 2), ("medium-replay", 2), ("expert", 1)])
def test_a_set_is_collected_from_the_policies_of_its_kind(few_steps, tmp_path, monkeypatch, kind, count):
    monkeypatch.setenv("KDP_DATA", str(tmp_path / "data"))
    task = Task("hopper", kind)
    task.collect(few_steps)
    about = json.loads((task.folder / "data/metadata.json").read_text())
    assert task.there and len(task.episodes()) == 600 and len(about["policies"]) == count


def test_the_study_says_where_data_come_from(kdp_command):
    code, _, err = kdp_command("bench", "locomotion", "--quick", "--tasks", "walker2d-medium", "--variants", "bc")
    assert code == 2 and "kdp data collect --env Walker2d-v5 --policy walker2d-medium.npz" in err


def test_seeds_may_be_trained_together(kdp_command, few_steps, tmp_path):
    words = ("bench", "locomotion", "--quick", "--tasks", "hopper-medium", "--variants", "kdp", "--policies", few_steps)
    assert kdp_command(*words, "--seeds", 2, "--stack", "--no-timed")[0] == 0
    rows = read(tmp_path / "results/locomotion.jsonl")
    told = [(r["seed"], r["candidates"], r["blend"] > 0, r["scored"], r["stacked"], r["train_steps"]) for r in rows]
    assert {r["data"] for r in rows} == {fingerprint(DOMAINS["hopper-medium"].episodes())["sha256"]}
    ways = [(2, True, True), (2, True, False), (2, False, True), (1, True, True)]  # a blend, the mean, the best, one
    assert told == [(seed, *way, 2, 5) for seed in (0, 1) for way in ways]
    assert rows[0]["return_mean"] != rows[4]["return_mean"]
    assert kdp_command(*words, "--seeds", 3, "--stack", "--no-timed")[0] == 0  # one is left to train: alone
    assert [r["stacked"] for r in read(tmp_path / "results/locomotion.jsonl")[8:]] == [None] * 4


def test_seeds_of_a_peer_may_be_trained_together(kdp_command, few_steps, tmp_path):
    pytest.importorskip("d3rlpy", reason="the extra `peers` is not installed")
    words = ("bench", "locomotion", "--quick", "--tasks", "hopper-medium", "--variants", "iql,td3+bc", "--stack")
    assert kdp_command(*words, "--policies", few_steps, "--seeds", 2)[0] == 0
    rows = read(tmp_path / "results/locomotion.jsonl")
    told = [(r["method"], r["seed"], r["stacked"], r["train_steps"]) for r in rows]
    assert told == [(peer, seed, 2, 5) for peer in ("iql", "td3+bc") for seed in (0, 1)]
    assert {r["data"] for r in rows} == {fingerprint(DOMAINS["hopper-medium"].episodes())["sha256"]}
    assert len({r["return_mean"] for r in rows}) == 4
    assert kdp_command(*words, "--seeds", 3)[0] == 0  # one is left to train: alone
    more = read(tmp_path / "results/locomotion.jsonl")
    assert more[:4] == rows and [(r["seed"], r["stacked"]) for r in more[4:]] == [(2, None)] * 2
    folders = [f"hopper-medium-{peer}-{seed}-quick" for peer in ("iql", "td3+bc") for seed in range(3)]
    assert sorted(path.name for path in (tmp_path / "runs/bench-locomotion").iterdir()) == folders


@pytest.mark.parametrize("stack", [False, True])
def test_a_study_that_is_cut_off_keeps_the_rows_of_finished_peers(kdp_command, few_steps, tmp_path, monkeypatch, stack):
    pytest.importorskip("d3rlpy", reason="the extra `peers` is not installed")
    trained, judged = [], []
    really_train, really_judge = opponents.train_peers, opponents.judge_stage

    def train(name, *words, seeds, **options):
        trained.append((name, seeds))
        really_train(name, *words, seeds=seeds, **options)

    def judge(stage):
        judged.append((stage.opponent.name, stage.opponent.seed))
        if judged == [("iql", 0), ("iql", 1), ("td3+bc", 0)]:
            raise KeyboardInterrupt
        return really_judge(stage)

    monkeypatch.setattr(opponents, "train_peers", train)
    monkeypatch.setattr(opponents, "judge_stage", judge)
    words = ("bench", "locomotion", "--quick", "--tasks", "hopper-medium", "--variants", "iql,td3+bc", "--seeds", 2)
    words += ("--policies", few_steps, *(["--stack"] if stack else []))
    assert kdp_command(*words)[0] == 130
    rows = read(tmp_path / "results/locomotion.jsonl")
    assert [(r["method"], r["seed"]) for r in rows] == [("iql", 0), ("iql", 1)]
    together = [[0, 1]] if stack else [[0], [1]]
    assert trained == [("iql", seeds) for seeds in together] + [("td3+bc", seeds) for seeds in together[:1]]

    trained.clear()
    judged.clear()
    assert kdp_command(*words)[0] == 0  # goes on: what was trained is not trained again, and judged where it was not
    assert trained == ([] if stack else [("td3+bc", [1])]) and judged == [("td3+bc", 0), ("td3+bc", 1)]
    more = read(tmp_path / "results/locomotion.jsonl")
    assert more[:2] == rows and [(r["method"], r["seed"]) for r in more[2:]] == [("td3+bc", 0), ("td3+bc", 1)]
    assert {r["stacked"] for r in more} == {2 if stack else None}


def test_peers_are_judged_on_the_way_where_that_is_what_a_shorter_training_ends_with(
    kdp_command, few_steps, tmp_path, monkeypatch
):
    pytest.importorskip("d3rlpy", reason="the extra `peers` is not installed")
    monkeypatch.setattr(peers, "CHUNK", 2)
    monkeypatch.setattr(opponents, "roll", lambda actor, domain, seeds: roll(actor, domain, seeds[:2]))
    words = ("bench", "locomotion", "--tasks", "hopper-medium", "--variants", "iql,td3+bc", "--seeds", 2, "--stack")
    words += ("--policies", few_steps)
    assert kdp_command(*words, "--peer-steps", "6,2,4")[0] == 0
    rows = read(tmp_path / "results/locomotion.jsonl")
    told = [(r["method"], r["train_steps"], r["seed"]) for r in rows]
    wanted = [("iql", 6), *(("td3+bc", steps) for steps in (2, 4, 6))]  # iql's rate falls over the whole training
    assert told == [(name, steps, seed) for name, steps in wanted for seed in (0, 1)]
    assert len({r["return_mean"] for r in rows}) == len(rows)
    for tables, costs in ((1, False), (2, True)):
        lines = locomotion_summary(rows, costs).splitlines()
        shown = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
        assert shown == ["", "iql, 6", "td3+bc, 2", "td3+bc, 4", "td3+bc, 6"] * tables

    shorter = ("--peer-steps", 4, "--runs", tmp_path / "shorter", "--results", tmp_path / "shorter.jsonl")
    assert kdp_command(*words, *shorter)[0] == 0
    same = [r["return_mean"] for r in read(tmp_path / "shorter.jsonl") if r["method"] == "td3+bc"]
    there = [r["return_mean"] for r in rows if (r["method"], r["train_steps"]) == ("td3+bc", 4)]
    assert same == there

    lost = rows[2:4] + rows[6:]  # a study that was cut off goes on: what is missing is judged, and nothing trained
    (tmp_path / "results/locomotion.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows if r not in lost))
    monkeypatch.setattr(opponents, "train_peers", None)
    assert kdp_command(*words, "--peer-steps", "2,4,6")[0] == 0
    again = read(tmp_path / "results/locomotion.jsonl")
    assert [r["return_mean"] for r in again[-4:]] == [r["return_mean"] for r in lost]


def test_a_peer_that_was_begun_alone_is_finished_alone(kdp_command, few_steps, tmp_path, monkeypatch):
    pytest.importorskip("d3rlpy", reason="the extra `peers` is not installed")
    asked = []
    monkeypatch.setattr(locomotion, "measure_opponents", lambda some, fuse, **_: asked.append((fuse, *some)) or [])
    (tmp_path / "runs/bench-locomotion/hopper-medium-iql-1-quick").mkdir(parents=True)
    (tmp_path / "runs/bench-locomotion/hopper-medium-iql-1-quick/training.safetensors").touch()
    words = ("bench", "locomotion", "--quick", "--tasks", "hopper-medium", "--variants", "iql", "--seeds", 3, "--stack")
    assert kdp_command(*words, "--policies", few_steps)[0] == 0
    assert [(fuse, [one.seed for one in some]) for fuse, *some in asked] == [(False, [0, 2]), (False, [1])]


def test_ways_to_follow_plans_are_names_and_numbers():
    assert ways_of("own,best,5,best") == [RANKED, BEST, replace(BEST, blend=5.0)]
    for wrong in ("blend", "-1", "0", "nan", "inf", ""):
        with pytest.raises(UserError, match="is not a way to follow plans, nor a blend"):
            ways_of(f"own,{wrong}")


def test_a_table_shows_the_newest_of_each_way_to_follow_plans():
    """Each strength of a blend has a line of its own; a run that draws from other noise takes the place of an older."""
    plain = dict.fromkeys(COLUMNS) | {"suite": "locomotion", "device": "x", "task": "hopper-medium", "variant": "kdp"}
    plain |= {"method": "kdp", "episodes": 20, "train_steps": 1, "train_minutes": 1.0, "nfe": 1, "quick": False}
    asked = [(64, 10.0, True), (64, 2.5, True), (64, 1.0, False), (64, 0.0, True), (1, 2.5, True)]
    rows = []
    for at, commit in enumerate(("old", "new")):
        for number, (k, blend, scored) in enumerate(asked):
            told = {"candidates": k, "blend": blend, "scored": scored, "commit": commit, "config": {"temperature": at}}
            rows += [plain | told | {"seed": seed, "score": 100.0 * at + number} for seed in range(2)]
    lines = locomotion_summary(rows).splitlines()
    shown = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines if line.startswith("| kdp")][:5]
    ways = ["64, blend 10", "64, blend 2.5", "64, mean", "64, best", "1"]
    assert shown == [["kdp", way, f"10{number}.0±0.0"] for number, way in enumerate(ways)]


def test_a_table_says_of_which_sets_all_lines_had_the_very_same_data():
    """Rows from before digests were kept could be of other data, and what later rows replace does not count."""
    plain = dict.fromkeys(COLUMNS) | {"suite": "locomotion", "device": "x", "seed": 0, "score": 1.0, "candidates": 1}
    plain |= {"episodes": 20, "train_steps": 1, "train_minutes": 1.0, "nfe": 1, "commit": "new", "quick": False}

    def line(task, variant, data, commit="new"):
        return plain | {"task": task, "variant": variant, "method": variant, "data": data, "commit": commit}

    rows = [line("hopper-medium", "kdp", "b", "old"), line("hopper-medium", "kdp", "a")]
    rows += [line("hopper-medium", "bc", "a"), line("walker2d-medium", "kdp", "a"), line("walker2d-medium", "bc", "b")]
    rows += [line("halfcheetah-medium", "kdp", "a"), line("halfcheetah-medium", "bc", None)]
    rows += [line("hopper-medium", "kdp", None) | {"device": "y"}]  # which another device does not change
    said = " ".join(locomotion_summary(rows).split())
    assert "by their digests: Ho m on x." in said
    assert "digests" not in locomotion_summary(rows[3:])
    assert "| mean |" not in locomotion_summary(rows)  # of three sets: there is none of the six
    assert "| mean |" in locomotion_summary([line(task, "kdp", "a") for task in locomotion.TASKS])


def test_learning_curves_of_the_variants(kdp_command, few_steps, tmp_path, monkeypatch):
    monkeypatch.setenv("KDP_DATA", str(tmp_path / "data"))
    Task("hopper", "medium").collect(few_steps)
    words = (
        "bench",
        "curves",
        "--quick",
        "--tasks",
        "hopper-medium",
        "--methods",
        "kdp,kdp-ascent,bc",
        "--points",
        2,
    )
    assert kdp_command(*words)[0] == 0
    rows = read(tmp_path / "results/curves.jsonl")
    told = [(r["variant"], r["method"], r["candidates"], r["train_steps"]) for r in rows]
    ranked = [(variant, "kdp", 2, steps) for variant in ("kdp", "kdp-ascent") for steps in (1, 5)]
    assert told == [*ranked, ("bc", "bc", 1, 1), ("bc", "bc", 1, 5)]
    assert kdp_command("table")[0] == 0
    page = (tmp_path / "docs/results/curves.md").read_text()
    assert page.count("| hopper-medium | kdp-ascent") == 1 and "## hopper-medium, kdp, " in page
    code, _, err = kdp_command("bench", "curves", "--tasks", "maze2d-umaze", "--methods", "kdp-ascent")
    assert code == 2 and "'kdp-ascent' is not a method" in " ".join(err.split())


def test_ablations_of_value_are_judged_ranked_and_not(kdp_command, few_steps, tmp_path, monkeypatch):
    monkeypatch.setenv("KDP_DATA", str(tmp_path / "data"))
    Task("hopper", "medium").collect(few_steps)
    words = ("bench", "ablations", "--quick", "--tasks", "hopper-medium", "--seeds", 2, "--stack", "--fields", "joint")
    assert kdp_command(*words, "--variants", "full,ascent,no bands", "--results", "rows.jsonl")[0] == 0
    rows = read(tmp_path / "rows.jsonl")
    told = [(r["variant"], r["seed"], r["candidates"], r["config"]["value"]["ascent"] > 0) for r in rows]
    assert told == [(name, seed, k, name == "ascent") for name in ("full", "ascent") for seed in (0, 1) for k in (2, 1)]
    assert all(r["stacked"] == 2 for r in rows)
    assert all(r["energy_score"] > 0 and r["walls"] is None for r in rows)
    page = ablations_page(rows[::-1])  # lines are in the study's order, whatever that of the rows
    assert "action, K 2 | action, K 1" in page and page.index("| full") < page.index("| ascent")
