"""Batches: nothing but the seed and the step decides them, and positives are the nearest in key space."""

from __future__ import annotations

import pytest
import torch
from helpers import walks

import kdp.sampler
from kdp.domains.toy import TWO
from kdp.keys import ScaledKey, state_key
from kdp.normalize import Normalizer
from kdp.sampler import FAR, Batch, Drawn, Sampler, generator
from kdp.windows import Goals, Windows

KEYS = {"toy": state_key, "goals": ScaledKey((1, 1, 0.3, 0.3, 1, 1))}
every_kind = pytest.mark.parametrize("kind", KEYS)
PRECISION = 5e-3  # of distances near zero: the index computes them from squares


def sampler(kind: str, positives: int = 6, seed: int = 0, **options) -> Sampler:
    """Windows of the toy, which has no goals and a table of all windows, or of walks to goals."""
    if kind == "toy":
        windows = Windows(TWO.episodes(150), 8)
    else:
        windows = Windows(walks([60, 40, 100]), 16, 1, Goals(dims=(0, 1), still=(2, 3)))
    data = windows.episodes
    options = {"table": 2000} | options
    return Sampler(windows, Normalizer.fit(data.observations, data.actions), KEYS[kind], 32, positives, seed, **options)


def tensors(batch: Batch) -> list[torch.Tensor]:
    """All there is in a batch."""
    found = [batch.windows, batch.condition.vector(), batch.keys, batch.positives, batch.key_distance, batch.arrival]
    return [tensor for tensor in found if tensor is not None]


def same(one: Batch, two: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(two), strict=True))


@every_kind
@pytest.mark.parametrize("positives", [0, 6])
def test_seed_and_step_decide_a_batch(kind, positives):
    batch = sampler(kind, positives)(7)
    assert same(batch, sampler(kind, positives)(7))
    assert not torch.equal(batch.windows, sampler(kind, positives)(8).windows)
    assert not torch.equal(batch.windows, sampler(kind, positives, seed=1)(7).windows)


@every_kind
def test_a_batch_does_not_depend_on_those_before_it(kind):
    through = sampler(kind)
    for step in (0, 999, 1000, 2000, 2499):
        through(step)
    assert same(through(2500), sampler(kind)(2500))
    assert same(through(3), sampler(kind)(3))  # nor on those after it


def test_the_table_is_drawn_anew_when_its_time_is_over():
    goals = sampler("goals", table=320)  # used up in ten batches of 32
    tables = []
    for step in (0, 9, 10):
        goals(step)
        tables.append(goals.table.windows)
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[1], tables[2])
    assert all(len(windows) == 320 for windows in tables)


def test_without_goals_the_table_is_every_window_that_fits():
    toy = sampler("toy")
    toy(0)
    every = torch.arange(len(toy.windows))
    torch.testing.assert_close(toy.table.windows, toy.gather(Drawn(every, torch.zeros_like(every))))
    short = sampler("toy", table=50)
    short(0)
    assert len(short.table.windows) == 50


def test_a_table_that_would_not_fit_in_memory_is_smaller(monkeypatch):
    monkeypatch.setattr(kdp.sampler, "LARGEST", 16 * 6 * 70)
    small = sampler("goals")
    small(0)
    assert len(small.table.windows) == 70


@pytest.mark.parametrize(
    ("kind", "options", "built"),
    [
        ("toy", {}, 1),  # the whole dataset is in the table
        ("toy", {"table": 320}, 2),  # each window four times
        ("goals", {"table": 320}, 5),  # once: a window has as many keys as goals
        ("toy", {"positives": 0}, 0),
    ],
)
def test_the_index_is_built_again_only_when_the_table_has_changed(kind, options, built, monkeypatch):
    calls, search = [], kdp.sampler.nearest
    monkeypatch.setattr(kdp.sampler, "nearest", lambda keys, count: calls.append(len(keys)) or search(keys, count))
    made = sampler(kind, **options)
    for step in (0, 5, 9, 10, 19, 25, 39, 40):
        made(step)
    assert len(calls) == built


@every_kind
def test_a_batch_has_its_shapes(kind):
    batch = sampler(kind)(0)
    tokens, width = (8, 4) if kind == "toy" else (16, 6)
    assert batch.windows.shape == (32, tokens, width) and batch.positives.shape == (32, 6, tokens, width)
    assert batch.key_distance.shape == batch.arrival.shape == (32, 6)
    plain = sampler(kind, positives=0)(0)
    assert plain.positives is None and plain.key_distance is None


@every_kind
@pytest.mark.parametrize("positives", [0, 6])
def test_a_window_starts_in_its_condition_and_ends_at_its_goal(kind, positives):
    batch = sampler(kind, positives)(0)
    state = batch.condition.state
    torch.testing.assert_close(batch.windows[:, 0, : state.shape[1]], state)
    torch.testing.assert_close(batch.keys, KEYS[kind](batch.condition))
    if kind == "goals":
        torch.testing.assert_close(batch.windows[:, -1, :2], batch.condition.goal)


@every_kind
def test_the_first_positive_has_the_key_of_the_window(kind):
    batch = sampler(kind)(0)
    assert (batch.key_distance[:, 0] < PRECISION).all()
    torch.testing.assert_close(keys_of(kind, batch.positives[:, 0]), batch.keys, atol=1e-5, rtol=0)


def keys_of(kind: str, windows: torch.Tensor) -> torch.Tensor:
    """Windows (...,L,D) -> their keys, read off the windows."""
    if kind == "toy":
        return windows[..., 0, :3]
    parts = torch.cat([windows[..., 0, :4], windows[..., -1, :2]], -1)
    return parts * torch.tensor(KEYS["goals"].weights)


@every_kind
def test_positives_are_as_far_in_key_space_as_the_batch_says(kind):
    batch = sampler(kind)(0)
    distance = (keys_of(kind, batch.positives) - batch.keys[:, None]).norm(dim=2)
    torch.testing.assert_close(batch.key_distance, distance, atol=PRECISION, rtol=0)
    assert distance[:, 1:].max() > 10 * PRECISION


@every_kind
def test_nothing_in_the_table_is_nearer_than_the_positives(kind):
    made = sampler(kind)
    batch = made(0)
    table = keys_of(kind, made.table.windows)
    nearest = (batch.keys[:, None] - table).norm(dim=2).sort(dim=1).values[:, :6]
    torch.testing.assert_close(batch.key_distance, nearest, atol=PRECISION, rtol=0)


def test_arrivals_are_those_of_the_positives():
    batch = sampler("goals")(0)
    resting = (batch.positives[..., :2] - batch.positives[..., -1:, :2]).abs().amax(-1) == 0  # (B,P,L)
    steps = resting.long().argmax(-1)  # walks come to no place twice
    assert torch.equal(batch.arrival.long(), steps) and batch.arrival.unique().numel() > 5


def test_purposes_and_steps_have_random_numbers_of_their_own():
    seeds = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1)]
    draws = [torch.rand(4, generator=generator(*seed)) for seed in seeds]
    assert len({tuple(draw.tolist()) for draw in draws}) == len(seeds)
    assert torch.equal(draws[0], torch.rand(4, generator=generator(0, 0, 0)))


@every_kind
def test_without_keying_the_own_window_comes_first_and_the_others_are_any(kind):
    batch, keyed = sampler(kind, keyed=False)(0), sampler(kind)(0)
    assert torch.equal(batch.windows, keyed.windows) and torch.equal(batch.keys, keyed.keys)
    assert torch.equal(batch.positives[:, 0], batch.windows)
    assert batch.positives.shape == keyed.positives.shape and not batch.key_distance.any()

    def far(positives: torch.Tensor) -> torch.Tensor:
        return (keys_of(kind, positives) - batch.keys[:, None])[:, 1:].norm(dim=2).mean()

    others = keys_of(kind, sampler(kind, positives=0, seed=9)(1).windows)
    anyone = torch.cdist(batch.keys, others).mean()
    assert far(batch.positives) == pytest.approx(float(anyone), rel=0.25) and far(keyed.positives) < 0.5 * anyone


@every_kind
def test_without_keying_seed_and_step_still_decide_a_batch(kind):
    batch = sampler(kind, keyed=False)(7)
    assert same(batch, sampler(kind, keyed=False)(7))
    assert not torch.equal(batch.positives[:, 1:], sampler(kind, keyed=False)(8).positives[:, 1:])
    assert not torch.equal(batch.positives[:, 1:], sampler(kind, keyed=False, seed=1)(7).positives[:, 1:])


def test_without_keying_a_positive_arrives_when_the_batch_says():
    made = sampler("goals", keyed=False)
    batch = made(0)
    assert batch.arrival.shape == (32, 6)
    speeds = batch.positives[..., 2:4] - made.normalizer.state(torch.zeros(4))[2:4]
    resting = (speeds.abs() < 1e-5).all(-1) & (torch.arange(16) > 0)
    assert torch.equal(resting.sum(-1), (16 - batch.arrival.long().clamp_min(1)))


@pytest.mark.parametrize("positives", [0, 6])
def test_every_other_window_is_pushed_and_its_condition_with_it(positives):
    push = torch.tensor([0.5, 0.5, 0.0, 2.0])
    pushed, plain = sampler("goals", positives, push=push), sampler("goals", positives)
    batch = pushed(0)
    start = batch.windows[:, 0, :4]
    torch.testing.assert_close(start, batch.condition.state)
    if not positives:  # the same draws: what differs is the push
        off = pushed.normalizer.unstate(start) - plain.normalizer.unstate(plain(0).windows[:, 0, :4])
        assert (off[::2].abs() < 1e-5).all() and (off[1::2, :2].abs() > 0).all() and (off[:, 2].abs() < 1e-5).all()
        assert 0.3 < float(off[1::2, 0].std() / 0.5) < 3
    assert same(batch, sampler("goals", positives, push=push)(0))


def same_side(dim: int, at: float):
    """Sight with an endless wall at one coordinate."""
    return lambda here, there: (here[:, None, dim] > at) == (there[..., dim] > at)


@pytest.mark.parametrize("dim", [0, 1])
def test_neighbours_out_of_sight_are_far_whether_they_begin_or_end_there(dim):
    plain = sampler("goals", positives=12)
    middle = float(plain.windows.episodes.observations[:, dim].median())
    batch, walled = plain(5), sampler("goals", positives=12, sight=same_side(dim, middle))(5)
    assert torch.equal(batch.positives, walled.positives)  # the same windows, but for what they count
    far = walled.key_distance > FAR / 2
    assert torch.equal(walled.key_distance[~far], batch.key_distance[~far])
    raw = plain.normalizer.untokens(batch.positives)
    begin, end = raw[:, :, 0, dim] > middle, raw[:, :, -1, dim] > middle
    other = (begin != begin[:, :1]) | (end != end[:, :1])
    other[:, 0] = False  # itself
    assert torch.equal(far, other) and 0.05 < far.float().mean() < 0.95


def test_without_keys_nothing_is_out_of_sight():
    batch = sampler("goals", keyed=False, sight=same_side(0, 0.0))(5)
    assert not batch.key_distance.any()
