"""Peers by d3rlpy: the transitions are those that d3rlpy would pick, a step is its step, and each peer learns."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from kdp.bench import peers
from kdp.bench.evaluate import roll
from kdp.bench.peer_settings import PEERS, PENALTIES
from kdp.bench.peers import is_trained, load_peer, train_peer, transitions
from kdp.checkpoint import load_tensors
from kdp.domains import DOMAINS
from kdp.domains.locomotion import TASKS
from kdp.errors import UserError
from kdp.windows import Episodes

TASK = "halfcheetah-medium"
needs_d3rlpy = pytest.mark.skipif(find_spec("d3rlpy") is None, reason='needs d3rlpy: pip install "kdp[peers]"')
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
every_peer = pytest.mark.parametrize("name", PEERS)


@pytest.fixture
def small(monkeypatch):
    """Networks that learn in seconds."""
    for name, peer in PEERS.items():
        monkeypatch.setitem(PEERS, name, replace(peer, hidden=(64,) * len(peer.hidden), batch=128, lr=3e-3))


def planted(states: int = 1, actions: int = 1, seed: int = 0) -> tuple[Episodes, np.ndarray]:
    """A reward of 1 where the first action is 0.8 times the first state, less elsewhere, and actions at random; half of
    the episodes of 20 steps end for good. Episodes, and flags of time limits."""
    random, count = np.random.default_rng(seed), 4000
    seen, done = random.uniform(-1, 1, (count, states)), random.uniform(-1, 1, (count, actions))
    end = np.arange(count) % 20 == 19
    terminals = end & (random.random(count) < 0.5)
    return Episodes.from_arrays(seen, done, reward(seen, done), terminals, end & ~terminals), end & ~terminals


def reward(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return 1 - np.abs(actions[:, 0] - 0.8 * states[:, 0])


def by_d3rlpy(episodes: Episodes, timeouts: np.ndarray):
    """The same data as d3rlpy keeps them."""
    return peers._d3rlpy().dataset.MDPDataset(
        episodes.observations.numpy(),
        episodes.actions.numpy(),
        episodes.rewards.numpy(),
        episodes.terminals.numpy().astype(np.float32),
        timeouts.astype(np.float32),
        action_space=peers._d3rlpy().ActionSpace.CONTINUOUS,
    )


def picked_by(dataset) -> list:
    """Every transition of d3rlpy's dataset, in order."""
    buffer = dataset.buffer
    return [dataset.transition_picker(*buffer[i]) for i in range(buffer.transition_count)]


def hand_made() -> tuple[Episodes, np.ndarray]:
    """Five episodes, of 3, 2, 1, 1 and 2 steps: a fall, a time limit, a fall at once, a time limit at once, and data
    that break off."""
    terminals = np.array([0, 0, 1, 0, 0, 1, 0, 0, 0], bool)
    timeouts = np.array([0, 0, 0, 0, 1, 0, 1, 0, 0], bool)
    number = np.arange(9.0)
    return Episodes.from_arrays(number[:, None], number[:, None] / 10, number * 100, terminals, timeouts), timeouts


def test_a_step_is_left_out_only_where_a_time_limit_hides_what_came_after():
    found = transitions(hand_made()[0])
    assert found.observations[:, 0].tolist() == [0, 1, 2, 3, 5, 7]
    assert found.rewards[:, 0].tolist() == [0, 100, 200, 300, 500, 700]
    assert found.terminals[:, 0].tolist() == [0, 0, 1, 0, 1, 0]
    assert found.next_observations[:, 0].tolist() == [1, 2, 0, 4, 0, 8]
    assert found.next_actions[:, 0].tolist() == pytest.approx([0.1, 0.2, 0, 0.4, 0, 0.8])
    assert found.episode.tolist() == [0, 0, 0, 1, 2, 4]
    assert found.returns().tolist() == [300, 300, 500, 700]  # the fourth episode has none


@needs_d3rlpy
@pytest.mark.parametrize("make", [hand_made, planted])
def test_transitions_are_those_that_d3rlpy_would_pick(make):
    episodes, timeouts = make()
    timeouts[-1] = not episodes.terminals[-1]  # where the data break off, which d3rlpy must be told
    theirs, ours = picked_by(by_d3rlpy(episodes, timeouts)), transitions(episodes)
    assert len(theirs) == len(ours.rewards)
    for i, one in enumerate(theirs):
        assert np.array_equal(one.observation, ours.observations[i]) and np.array_equal(one.action, ours.actions[i])
        assert np.array_equal(one.next_observation, ours.next_observations[i])
        assert np.array_equal(one.next_action, ours.next_actions[i])
        assert (one.reward, one.terminal) == (ours.rewards[i], ours.terminals[i])


def test_data_without_a_transition_are_refused():
    one, none, timeout = np.zeros((1, 1)), np.zeros(1, bool), np.ones(1, bool)
    with pytest.raises(UserError, match="followed by another"):
        transitions(Episodes.from_arrays(one, one, np.zeros(1), none, timeout))


@needs_d3rlpy
@every_peer
def test_a_step_is_d3rlpys_step(name, small):
    """Its own loop on its own dataset, with its scalers and its cosine, comes to the same weights."""
    episodes, timeouts = planted(3, 2)
    library, settings, data, device, steps = peers._d3rlpy(), PEERS[name], transitions(episodes), "cpu", 12
    mean, scale = peers._units(settings, data)

    def beginning():
        torch.manual_seed(5)
        return peers._algorithm(settings, TASK, (3, 2), device)

    ours = beginning()
    update = peers._Update(ours, settings, peers._table(settings, data, mean, scale, name), (3, 2), steps, device)
    batches = torch.randint(len(data.rewards), (steps, settings.batch), generator=torch.Generator().manual_seed(1))
    for step, index in enumerate(batches):
        update(step, index)

    dataset = by_d3rlpy(episodes, timeouts)
    theirs, rows = beginning(), picked_by(dataset)
    scaled = theirs.config
    if settings.standard:
        scaled.observation_scaler = library.preprocessing.StandardObservationScaler()
    if settings.returns:
        scaled.reward_scaler = library.preprocessing.ReturnBasedRewardScaler(multiplier=settings.returns)
    library.algos.utility.build_scalers_with_transition_picker(theirs, dataset)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(theirs.impl.policy_optim, steps) if settings.cosine else None
    for index in batches:
        chosen = [rows[i] for i in index.tolist()]
        theirs.update(library.dataset.mini_batch.TransitionMiniBatch.from_transitions(chosen))
        if cosine is not None:
            cosine.step()

    assert (update.delay, theirs.grad_step) == (1 if name == "iql" else 2, steps)
    for part, network in ours.impl.modules.get_torch_modules().items():
        other = theirs.impl.modules.get_torch_modules()[part].state_dict()
        for key, weight in network.state_dict().items():
            torch.testing.assert_close(weight, other[key], rtol=1e-4, atol=1e-5)


@needs_d3rlpy
@every_peer
def test_a_peer_learns_what_the_reward_asks_for(name, small, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    episodes, _ = planted()
    random = torch.get_rng_state()
    train_peer(name, episodes, TASK, steps=300, seed=0, device="cpu", folder=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), random) and torch.distributions.Distribution._validate_args
    assert os.listdir(tmp_path) == ["run"] and os.listdir(tmp_path / "run") == [peers.PEER]  # and nothing else
    assert capfd.readouterr() == ("", "")

    states = np.linspace(-1, 1, 201)[:, None]
    actor = load_peer(tmp_path / "run", "cpu")
    got = reward(states, actor.act(states, None)).mean()
    assert got > 0.75 > 0.4 > float(episodes.rewards.mean())
    alone = np.concatenate([actor.act(state[None], None) for state in states[::20]])
    assert np.allclose(alone, actor.act(states, None)[::20], atol=1e-6)  # batched or not
    with pytest.raises(UserError, match=f"{name.replace('+', '.')} knows no goals"):
        actor.act(states, states)


@needs_d3rlpy
@every_peer
def test_the_seed_decides_the_policy_and_a_folder_says_what_is_in_it(name, small, tmp_path):
    episodes, _ = planted(3, 2)
    states = np.random.default_rng(0).normal(size=(50, 3))

    def trained(folder, seed):
        asked = {"steps": 20, "seed": seed, "folder": tmp_path / folder}
        assert not is_trained(name, TASK, **asked)
        train_peer(name, episodes, TASK, device="cpu", **asked)
        assert is_trained(name, TASK, **asked)
        return load_peer(tmp_path / folder, "cpu").act(states, None)

    first = trained("one", 3)
    assert first.shape == (50, 2) and np.abs(first).max() <= 1
    assert np.array_equal(first, trained("same", 3)) and not np.array_equal(first, trained("other", 4))
    with pytest.raises(UserError, match="another steps and seed; remove it"):
        is_trained(name, TASK, steps=21, seed=5, folder=tmp_path / "one")


@needs_d3rlpy
def test_the_loaded_policy_is_the_trained_one(small, tmp_path, monkeypatch):
    made = []
    real = peers._algorithm
    monkeypatch.setattr(peers, "_algorithm", lambda *words: made.append(real(*words)) or made[-1])
    episodes, _ = planted(3, 2)
    states = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    for name in PEERS:
        train_peer(name, episodes, TASK, steps=20, seed=0, device="cpu", folder=tmp_path / name)
        data = transitions(episodes)
        mean, scale = peers._units(PEERS[name], data)
        assert (name == "td3+bc") != bool((scale == 1).all())
        wanted = made[-1].predict((states - mean.numpy()) / scale.numpy())
        assert np.allclose(load_peer(tmp_path / name, "cpu").act(states, None), wanted, atol=1e-6)


@needs_d3rlpy
@every_peer
def test_a_stopped_training_does_not_look_finished_and_goes_on_to_the_same_end(name, small, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "CHUNK", 5)
    monkeypatch.setattr(peers, "SAVE_EVERY", 0.0)
    real, calls, last = peers._Update.__call__, [], [12]

    def stopping(self, step, index):
        calls.append(step)
        if step in last:
            raise KeyboardInterrupt
        return real(self, step, index)

    monkeypatch.setattr(peers._Update, "__call__", stopping)
    episodes, asked = planted(3, 2)[0], {"steps": 23, "seed": 0, "folder": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        train_peer(name, episodes, TASK, **asked)
    assert calls == list(range(13)) and not is_trained(name, TASK, **asked)
    with pytest.raises(UserError, match="holds no peer that was trained to its end"):
        load_peer(tmp_path / "run")
    with pytest.raises(UserError, match="another seed; remove it"):
        train_peer(name, episodes, TASK, **asked | {"seed": 1})
    with pytest.raises(UserError, match="another data; remove it"):
        train_peer(name, planted(3, 2, seed=1)[0], TASK, **asked)

    calls.clear()
    last.clear()
    train_peer(name, episodes, TASK, **asked)
    assert calls == list(range(10, 23)) and os.listdir(tmp_path / "run") == [peers.PEER]
    train_peer(name, episodes, TASK, **asked)
    assert len(calls) == 13  # nothing is done twice
    train_peer(name, episodes, TASK, **asked | {"folder": tmp_path / "through"})
    stopped, through = (load_tensors(tmp_path / folder / peers.PEER)[0] for folder in ("run", "through"))
    assert all(torch.equal(through[key], weight) for key, weight in stopped.items())


@needs_d3rlpy
def test_a_loss_that_is_not_finite_ends_the_training(small, tmp_path):
    episodes, _ = planted()
    episodes.rewards[:] = torch.linspace(0, torch.inf, 4000).nan_to_num(posinf=torch.inf)
    with pytest.raises(UserError, match="loss of rebrac on halfcheetah-medium is not finite at step 3"):
        train_peer("rebrac", episodes, TASK, steps=3, seed=0, device="cpu", folder=tmp_path)


@needs_d3rlpy
def test_networks_begin_as_the_authors_did():
    iql, rebrac = (peers._algorithm(PEERS[name], TASK, (17, 6), "cpu").impl for name in ("iql", "rebrac"))
    layer = iql.policy._encoder._layers[2].weight
    assert torch.allclose(layer @ layer.T, 2 * torch.eye(256), atol=1e-4)
    assert torch.allclose(iql.policy(torch.zeros(1, 17)).logstd, torch.zeros(1, 6), atol=1e-6)
    assert rebrac.policy._fc.weight.abs().max() <= 1e-3 and rebrac.q_function[1]._fc.weight.abs().max() <= 3e-3
    assert [type(part).__name__ for part in rebrac.policy._encoder._layers] == ["Linear", "ReLU"] * 3
    assert [type(part).__name__ for part in rebrac.q_function[0]._encoder._layers] == [
        "Linear",
        "ReLU",
        "LayerNorm",
    ] * 3
    modules = rebrac.modules
    for network, target in ((modules.policy, modules.targ_policy), (modules.q_funcs, modules.targ_q_funcs)):
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), target.parameters(), strict=True))
    assert not torch.equal(rebrac.q_function[0]._fc.weight, rebrac.q_function[1]._fc.weight)
    assert (rebrac._actor_beta, rebrac._critic_beta) == PENALTIES[TASK]


def test_every_locomotion_task_has_penalties():
    assert set(PENALTIES) == {task.name for task in TASKS}
    assert PENALTIES["halfcheetah-medium-narrow"] == PENALTIES["halfcheetah-medium"]


@needs_d3rlpy
def test_a_peer_is_judged_as_planners_are(small, tmp_path):
    """The sizes of a half-cheetah, the only scorer of episodes, and steps that take the real environment."""
    episodes, _ = planted(17, 6)
    train_peer("iql", episodes, TASK, steps=2, seed=0, device="cpu", folder=tmp_path)
    played = roll(load_peer(tmp_path, "cpu"), replace(DOMAINS[TASK], episode_steps=4), [0, 1])
    assert [episode.states.shape for episode in played] == [(5, 17)] * 2
    assert all(np.isfinite(episode.total) for episode in played)


def test_what_is_asked_wrongly_is_refused_in_a_sentence(tmp_path):
    episodes, _ = planted()

    def refusal(name="iql", data=episodes, task=TASK, steps=5, seed=0):
        with pytest.raises(UserError) as refused:
            train_peer(name, data, task, steps=steps, seed=seed, device="cpu", folder=tmp_path)
        assert not os.listdir(tmp_path)
        return str(refused.value)

    assert "no peer 'rebrak'. Did you mean 'rebrac'?" in refusal("rebrak")
    assert "none are published for 'hopper-medum'. Did you mean 'hopper-medium'?" in refusal(
        "rebrac", task="hopper-medum"
    )
    assert "got steps=0 seed=0" in refusal(steps=0) and "got steps=5 seed=-1" in refusal(seed=-1)
    wide = replace(episodes, steps=episodes.steps * 2)
    assert "acts within -1..1" in refusal(data=wide)


@needs_d3rlpy
def test_iql_needs_returns_that_differ(tmp_path):
    episodes, _ = planted()
    with pytest.raises(UserError, match="episodes of different returns; all of these have 0"):
        train_peer("iql", replace(episodes, rewards=torch.zeros(4000)), TASK, steps=1, folder=tmp_path)


def test_without_d3rlpy_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "d3rlpy", None)
    with pytest.raises(UserError, match=r'^peers are trained by d3rlpy \(.*\)\. Try `pip install "kdp\[peers\]"`\.$'):
        train_peer("iql", planted()[0], TASK, steps=1, seed=0, device="cpu", folder=tmp_path)
    assert not os.listdir(tmp_path)


def test_numbers_can_be_made_on_a_gpu_without_a_copy():
    with peers._NumbersInPlace():
        number, others = torch.tensor(0.5, dtype=torch.float64), torch.tensor([1, 2])
    assert number.shape == () and number.dtype == torch.float64 and number == 0.5 and others.tolist() == [1, 2]


@needs_d3rlpy
@every_peer
def test_a_step_that_cannot_be_recorded_is_launched_one_by_one(name, small, monkeypatch):
    """Even where it fails half-way."""

    def refuse(batch):
        raise RuntimeError("not here")

    def record(step, inputs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(update.impl, "compute_actor_grad", refuse)
            step(*inputs)

    data = transitions(planted(3, 2)[0])
    mean, scale = peers._units(PEERS[name], data)
    table = peers._table(PEERS[name], data, mean, scale, name)
    update = peers._Update(peers._algorithm(PEERS[name], TASK, (3, 2), "cpu"), PEERS[name], table, (3, 2), 9, "cpu")
    update.graphed = True  # as on a GPU
    monkeypatch.setattr(peers, "Recorded", record)
    index = torch.arange(PEERS[name].batch)
    before = [weight.clone() for weight in update.sources + [*update.modules.policy.parameters()]]
    with pytest.warns(UserWarning, match="one by one: not here"):
        losses = [float(update(step, index)) for step in range(9)]
    assert not update.graphed and losses[0] > losses[-1]
    for old, new in zip(before, update.sources + [*update.modules.policy.parameters()], strict=True):
        assert not torch.equal(old, new)


@needs_gpu
@needs_d3rlpy
@every_peer
def test_on_a_gpu_a_step_is_a_graph_that_learns_too(name, small, tmp_path, recwarn):
    train_peer(name, planted()[0], TASK, steps=300, seed=0, device="cuda", folder=tmp_path)
    assert not [w for w in recwarn if "CUDA graph" in str(w.message)]
    states = np.linspace(-1, 1, 201)[:, None]
    on_gpu, on_cpu = (load_peer(tmp_path, device).act(states, None) for device in ("cuda", "cpu"))
    assert np.allclose(on_gpu, on_cpu, atol=1e-5) and reward(states, on_gpu).mean() > 0.75
