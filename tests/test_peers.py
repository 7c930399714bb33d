"""Peers by d3rlpy: the transitions are those that d3rlpy would pick, a step is its step, and each peer learns."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from kdp.bench import peer_learner, peers
from kdp.bench.evaluate import roll
from kdp.bench.peer_data import table, transitions, units
from kdp.bench.peer_learner import Update, algorithm_of, d3rlpy
from kdp.bench.peer_settings import PEERS, PENALTIES
from kdp.bench.peers import is_trained, load_peer, peer_about, train_peer, train_peers
from kdp.checkpoint import load_tensors, save_tensors
from kdp.domains import DOMAINS
from kdp.domains.locomotion import TASKS
from kdp.errors import UserError
from kdp.graphs import Pace
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


@pytest.fixture
def noiseless(small, monkeypatch):
    """No noise in any step: what is drawn at random are the weights in the beginning, and batches."""
    for name, peer in PEERS.items():
        if "target_smoothing_sigma" in peer.own:
            monkeypatch.setitem(PEERS, name, replace(peer, own={**peer.own, "target_smoothing_sigma": 0.0}))


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
    return d3rlpy().dataset.MDPDataset(
        episodes.observations.numpy(),
        episodes.actions.numpy(),
        episodes.rewards.numpy(),
        episodes.terminals.numpy().astype(np.float32),
        timeouts.astype(np.float32),
        action_space=d3rlpy().ActionSpace.CONTINUOUS,
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


def begun(name: str, seed: int, device: str = "cpu"):
    """d3rlpy's algorithm for three states and two actions, begun with a seed."""
    torch.manual_seed(seed)
    return algorithm_of(PEERS[name], TASK, (3, 2), device)


def update_of(name: str, episodes: Episodes, seeds: list[int], steps: int, device="cpu", fuse=False) -> Update:
    """The steps of a stack."""
    settings, found, impls = PEERS[name], transitions(episodes), [begun(name, seed, device).impl for seed in seeds]
    rows = table(settings, found, *units(settings, found), name)
    return Update(impls, settings, rows, (3, 2), steps, device, fuse)


def drawn(name: str, episodes: Episodes, seeds: list[int], steps: int) -> torch.Tensor:
    """(steps, R, batch) rows, each seed's its own."""
    count, batch = len(transitions(episodes).rewards), PEERS[name].batch
    each = [torch.randint(count, (steps, batch), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(each, 1)


def assert_weights_close(
    ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(
            weight, theirs[name], rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


@needs_d3rlpy
@every_peer
@pytest.mark.parametrize("noise", [True, False])
def test_a_step_is_d3rlpys_step(name, noise, small, request):
    """Its own loop on its own dataset, with its scalers and its cosine, comes to the same weights: in a stack of one
    with the same noise, in a stack of three without."""
    if not noise:
        request.getfixturevalue("noiseless")
    episodes, timeouts = planted(3, 2)
    library, settings, steps, seeds = d3rlpy(), PEERS[name], 12, [5] if noise else [5, 7, 9]
    update, batches = update_of(name, episodes, seeds, steps), drawn(name, episodes, seeds, steps)
    torch.manual_seed(1)
    for step, index in enumerate(batches):
        update(step, index)

    dataset = by_d3rlpy(episodes, timeouts)
    rows = picked_by(dataset)
    for number, seed in enumerate(seeds):
        theirs = begun(name, seed)
        scaled = theirs.config
        if settings.standard:
            scaled.observation_scaler = library.preprocessing.StandardObservationScaler()
        if settings.returns:
            scaled.reward_scaler = library.preprocessing.ReturnBasedRewardScaler(multiplier=settings.returns)
        library.algos.utility.build_scalers_with_transition_picker(theirs, dataset)
        optimizer = theirs.impl.policy_optim
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if settings.cosine else None
        torch.manual_seed(1)
        for index in batches[:, number]:
            chosen = [rows[i] for i in index.tolist()]
            theirs.update(library.dataset.mini_batch.TransitionMiniBatch.from_transitions(chosen))
            if cosine is not None:
                cosine.step()
        assert (update.delay, theirs.grad_step) == (1 if name == "iql" else 2, steps)
        networks = theirs.impl.modules.get_torch_modules().items()
        weights = {
            f"{part}.{key}": weight for part, network in networks for key, weight in network.state_dict().items()
        }
        assert_weights_close(update.networks(number), weights)


@needs_d3rlpy
@every_peer
def test_optimisers_of_a_stack_are_d3rlpys(name):
    update, modules = update_of(name, planted(3, 2)[0], [0, 1], 5), begun(name, 0).impl.modules
    for part, wrapper in ((update.actor, modules.actor_optim), (update.critic, modules.critic_optim)):
        ours, theirs = part.optimizer, wrapper.optim
        assert type(ours) is type(theirs) is torch.optim.Adam
        assert ours.defaults == theirs.defaults | {"fused": True}
        assert len(ours.param_groups[0]["params"]) == len(theirs.param_groups[0]["params"])
        assert theirs.defaults["lr"] == PEERS[name].lr
    assert not update.actor.weights.keys() & update.critic.weights.keys()
    learnt = update.actor.weights.keys() | update.critic.weights.keys()
    assert update.weights.keys() - learnt == {key for key in update.weights if key.startswith("targ_")}


@needs_d3rlpy
@every_peer
def test_noise_in_a_step_is_each_seeds_own(name, small):
    """Seeds that begin alike and see the same rows come apart where, and only where, there is noise."""
    episodes, _ = planted(3, 2)
    update, index = update_of(name, episodes, [4, 4], 4), drawn(name, episodes, [0], 1)[0].expand(2, -1)
    for step in range(4):
        losses = update(step, index)
    assert losses.shape == (2,) and (losses[0] != losses[1]) == ("target_smoothing_sigma" in PEERS[name].own)


@needs_d3rlpy
@every_peer
def test_steps_of_a_stack_are_those_of_each_seed_alone(name, noiseless):
    """In double precision, where no rounding switches a unit on or off."""
    episodes, seeds, steps = planted(3, 2)[0], [0, 3, 4], 30
    batches = drawn(name, episodes, seeds, steps)
    together, *apart = (update_of(name, episodes, some, steps) for some in (seeds, *([seed] for seed in seeds)))
    for update in (together, *apart):
        update.table = update.table.double()
        for weight in update.weights.values():
            weight.data = weight.data.double()
    for step, index in enumerate(batches):
        losses = together(step, index)
        alone = torch.cat([update(step, index[number, None]) for number, update in enumerate(apart)])
        torch.testing.assert_close(losses, alone, rtol=1e-9, atol=1e-9)
    for number, update in enumerate(apart):
        assert_weights_close(together.networks(number), update.networks(0), rtol=1e-8, atol=1e-8)


@needs_d3rlpy
@every_peer
def test_each_seed_of_a_stack_ends_as_it_does_alone(name, noiseless, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "CHUNK", 4)
    episodes, seeds = planted(3, 2)[0], [0, 3, 4]
    together, apart = ([tmp_path / f"{how}-{seed}" for seed in seeds] for how in ("together", "apart"))
    train_peers(name, episodes, TASK, steps=10, seeds=seeds, folders=together)
    for seed, one, other in zip(seeds, together, apart, strict=True):
        train_peer(name, episodes, TASK, steps=10, seed=seed, folder=other)
        assert is_trained(name, TASK, steps=10, seed=seed, folder=one)
        stacked, alone = (load_tensors(folder / peers.PEER) for folder in (one, other))
        assert_weights_close(stacked[0], alone[0])
        assert stacked[1].pop("stacked") == 3
        assert {**stacked[1], "seconds": 0} == {**alone[1], "seconds": 0}
    assert sorted(os.listdir(tmp_path)) == sorted(folder.name for folder in together + apart)


@needs_d3rlpy
@every_peer
def test_each_seed_of_a_stack_learns_what_the_reward_asks_for(name, small, tmp_path, capfd):
    episodes, folders = planted()[0], [tmp_path / "a", tmp_path / "b"]
    random = torch.get_rng_state()
    train_peers(name, episodes, TASK, steps=300, seeds=[0, 1], folders=folders)
    assert torch.equal(torch.get_rng_state(), random) and torch.distributions.Distribution._validate_args
    assert sorted(os.listdir(tmp_path)) == ["a", "b"] and os.listdir(tmp_path / "a") == [peers.PEER]
    assert capfd.readouterr() == ("", "")
    states = np.linspace(-1, 1, 201)[:, None]
    acted = [load_peer(folder).act(states, None) for folder in folders]
    assert all(reward(states, actions).mean() > 0.75 for actions in acted) and not np.array_equal(*acted)


@needs_d3rlpy
@pytest.mark.slow
@every_peer
def test_fused_steps_are_the_plain_ones(name, noiseless):
    episodes, seeds = planted(3, 2)[0], [0, 1]
    plain, fused = (update_of(name, episodes, seeds, 6, fuse=fuse) for fuse in (False, True))
    for step, index in enumerate(drawn(name, episodes, seeds, 6)):
        torch.testing.assert_close(plain(step, index), fused(step, index), rtol=1e-4, atol=1e-6)
    for number in range(2):
        assert_weights_close(fused.networks(number), plain.networks(number))


@needs_d3rlpy
@pytest.mark.slow
def test_a_fused_stack_is_decided_by_its_seeds(small, tmp_path):
    """With noise, too; and however many were fused before in this process."""
    episodes, folders = planted(3, 2)[0], [[tmp_path / f"{i}-{j}" for j in range(2)] for i in range(6)]
    for pair in folders:
        train_peers("td3+bc", episodes, TASK, steps=6, seeds=[0, 1], folders=pair, fuse=True)
    for one, *others in zip(*folders, strict=True):
        first = load_tensors(one / peers.PEER)[0]
        for other in others:
            assert all(torch.equal(first[key], weight) for key, weight in load_tensors(other / peers.PEER)[0].items())


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
    monkeypatch.setattr(peers, "Update", lambda *words: made.append(Update(*words)) or made[-1])
    episodes, _ = planted(3, 2)
    states = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    for name in PEERS:
        folders = [tmp_path / f"{name}-{seed}" for seed in range(2)]
        train_peers(name, episodes, TASK, steps=20, seeds=[0, 1], folders=folders)
        mean, scale = units(PEERS[name], transitions(episodes))
        assert (name == "td3+bc") != bool((scale == 1).all())
        theirs = begun(name, 0)
        for number, folder in enumerate(folders):
            for part, network in theirs.impl.modules.get_torch_modules().items():
                weights = made[-1].networks(number).items()
                network.load_state_dict({k.removeprefix(f"{part}."): w for k, w in weights if k.startswith(f"{part}.")})
            wanted = theirs.predict((states - mean.numpy()) / scale.numpy())
            assert np.allclose(load_peer(folder).act(states, None), wanted, atol=1e-6)


@pytest.fixture
def stop_at(monkeypatch):
    """Training saves every 5 steps and is stopped at the steps of the first list; the second has those begun."""
    monkeypatch.setattr(peers, "CHUNK", 5)
    monkeypatch.setattr(peers, "SAVE_EVERY", 0.0)
    real, calls, last = Update.__call__, [], []

    def stopping(self, step, index):
        calls.append(step)
        if step in last:
            raise KeyboardInterrupt
        return real(self, step, index)

    monkeypatch.setattr(Update, "__call__", stopping)
    return last, calls


@needs_d3rlpy
@every_peer
def test_a_stopped_training_does_not_look_finished_and_goes_on_to_the_same_end(name, small, tmp_path, stop_at):
    last, calls = stop_at
    last.append(12)
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
@every_peer
def test_a_stopped_stack_goes_on_to_the_same_end(name, small, tmp_path, stop_at):
    last, calls = stop_at
    last.append(12)
    episodes, seeds = planted(3, 2)[0], [2, 0, 7]

    def train(where, seeds=seeds):
        folders = [tmp_path / where / str(seed) for seed in seeds]
        train_peers(name, episodes, TASK, steps=23, seeds=seeds, folders=folders)
        return [load_tensors(folder / peers.PEER)[0] for folder in folders]

    with pytest.raises(KeyboardInterrupt):
        train("run")
    assert os.listdir(tmp_path / "run") == ["2-and-2-more"]
    with pytest.raises(UserError, match="2-and-2-more holds a peer with another seed; remove it"):
        train("run", [2, 0, 8])

    calls.clear()
    last.clear()
    stopped = train("run")
    assert calls == list(range(10, 23)) and sorted(os.listdir(tmp_path / "run")) == ["0", "2", "7"]
    train("run")
    assert len(calls) == 13  # nothing is done twice
    for one, other in zip(stopped, train("through"), strict=True):
        assert all(torch.equal(one[key], weight) for key, weight in other.items())


@needs_d3rlpy
def test_a_seed_that_is_finished_is_left_out_of_the_stack(small, tmp_path):
    episodes, folders = planted(3, 2)[0], [tmp_path / str(seed) for seed in range(3)]
    train_peer("iql", episodes, TASK, steps=5, seed=1, folder=folders[1])
    before = (folders[1] / peers.PEER).stat().st_mtime_ns
    train_peers("iql", episodes, TASK, steps=5, seeds=[0, 1, 2], folders=folders)
    assert (folders[1] / peers.PEER).stat().st_mtime_ns == before
    assert [peer_about(folder).get("stacked") for folder in folders] == [2, None, 2]
    assert [peer_about(folder)["seed"] for folder in folders] == [0, 1, 2]


@needs_d3rlpy
def test_a_checkpoint_that_does_not_fit_is_refused(small, tmp_path, stop_at):
    stop_at[0].append(7)
    asked = {"steps": 9, "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        train_peer("iql", planted()[0], TASK, **asked)
    tensors, about = load_tensors(tmp_path / peers.TRAINING)
    tensors.pop("networks/policy._mu.bias")
    save_tensors(tmp_path / peers.TRAINING, tensors, about)
    with pytest.raises(UserError, match="does not fit this peer's networks .*_mu.bias.*; remove it"):
        train_peer("iql", planted()[0], TASK, **asked)


@needs_d3rlpy
def test_a_loss_that_is_not_finite_ends_the_training(small, tmp_path):
    episodes, _ = planted()
    episodes.rewards[:] = torch.linspace(0, torch.inf, 4000).nan_to_num(posinf=torch.inf)
    with pytest.raises(UserError, match="loss of rebrac on halfcheetah-medium is not finite at step 3"):
        train_peer("rebrac", episodes, TASK, steps=3, seed=0, device="cpu", folder=tmp_path)
    assert not os.listdir(tmp_path)


@needs_d3rlpy
def test_networks_begin_as_the_authors_did():
    iql, rebrac = (algorithm_of(PEERS[name], TASK, (17, 6), "cpu").impl for name in ("iql", "rebrac"))
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


@needs_d3rlpy
@every_peer
def test_a_step_that_cannot_be_recorded_is_launched_one_by_one(name, small, monkeypatch):
    """Even where it fails half-way."""

    def refuse(rows):
        raise RuntimeError("not here")

    def record(step, inputs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(update.actor, "step", refuse)
            step(*inputs)

    update = update_of(name, planted(3, 2)[0], [0, 1], 9)
    update.graphed = True  # as on a GPU
    monkeypatch.setattr(peer_learner, "Recorded", record)
    index = torch.arange(2 * PEERS[name].batch).view(2, -1)
    before = [{key: weight.clone() for key, weight in update.networks(number).items()} for number in range(2)]
    with pytest.warns(UserWarning, match="one by one: not here"):
        losses = torch.stack([update(step, index) for step in range(9)])
    assert not update.graphed and (losses[0] > losses[-1]).all()
    for number, old in enumerate(before):
        for key, new in update.networks(number).items():
            assert not torch.equal(old[key], new), key


@needs_gpu
@needs_d3rlpy
@every_peer
@pytest.mark.parametrize("fuse", [False, True])
def test_on_a_gpu_a_step_of_a_stack_is_a_graph_that_learns_too(name, fuse, small, tmp_path, recwarn):
    folders = [tmp_path / str(seed) for seed in range(3)]
    train_peers(name, planted()[0], TASK, steps=300, seeds=[0, 1, 2], device="cuda", folders=folders, fuse=fuse)
    assert not [w for w in recwarn if "CUDA graph" in str(w.message)]
    states = np.linspace(-1, 1, 201)[:, None]
    for folder in folders:
        on_gpu, on_cpu = (load_peer(folder, device).act(states, None) for device in ("cuda", "cpu"))
        assert np.allclose(on_gpu, on_cpu, atol=1e-5) and reward(states, on_gpu).mean() > 0.75


@needs_gpu
@needs_d3rlpy
@every_peer
def test_on_a_gpu_graphs_do_what_the_plain_steps_do(name, noiseless):
    episodes, steps, seeds = planted(3, 2)[0], 10, [0, 1]
    plain, graphed = (update_of(name, episodes, seeds, steps, device="cuda") for _ in range(2))
    plain.graphed = False
    for step, index in enumerate(drawn(name, episodes, seeds, steps).to("cuda")):
        torch.testing.assert_close(graphed(step, index), plain(step, index), rtol=1e-4, atol=1e-6)
    assert not plain.graphs and len(graphed.graphs) == graphed.delay
    for number in range(2):
        assert_weights_close(graphed.networks(number), plain.networks(number))


@needs_gpu
def test_a_paced_loop_is_never_far_ahead_of_the_gpu():
    """What is launched takes longer than launching it; without the pace all of it would wait in the queue."""
    pace, matrix, passed, waiting = Pace("cuda", every=8), torch.randn(4096, 4096, device="cuda"), [], []
    for _ in range(64):
        matrix @ matrix
        passed.append(torch.cuda.Event())
        passed[-1].record()
        pace()
        waiting.append(sum(not event.query() for event in passed))
    assert 8 < max(waiting) <= 17
