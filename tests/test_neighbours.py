"""Nearest keys: what the index finds is what looking at every key finds."""

from __future__ import annotations

import pytest
import torch

from kdp.neighbours import EXACT_BELOW, Neighbours, _exact, nearest, smallest


def clustered(count: int, seed: int = 0) -> torch.Tensor:
    """Keys (count,6) in 40 clumps of different sizes."""
    random = torch.Generator().manual_seed(seed)
    centres, size = torch.randn(40, 6, generator=random), 0.02 + 0.3 * torch.rand(40, 1, generator=random)
    clump = torch.randint(40, (count,), generator=random)
    return centres[clump] + size[clump] * torch.randn(count, 6, generator=random)


def brute_force(queries: torch.Tensor, keys: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    distance, index = (queries.double()[:, None] - keys.double()).norm(dim=2).sort(dim=1)
    return distance[:, :count].float(), index[:, :count]


@pytest.fixture(scope="module")
def large() -> Neighbours:
    keys = clustered(60_000)
    assert len(keys) > EXACT_BELOW  # so that the index is not exact
    return Neighbours(keys)


def test_the_index_finds_what_looking_at_every_key_finds(large):
    queries = large.keys[::937][:64]
    distance, index = large.search(queries, 32)
    true_distance, true_index = brute_force(queries, large.keys, 32)
    found = sum(len(set(a) & set(b)) for a, b in zip(index.tolist(), true_index.tolist(), strict=True))
    assert found / true_index.numel() >= 0.99
    assert distance.mean() == pytest.approx(float(true_distance.mean()), rel=0.01)


def test_a_key_finds_itself_first(large):
    own = torch.arange(0, 60_000, 937)
    distance, index = large.search(large.keys[own], 8)
    assert torch.equal(index[:, 0], own)
    assert (distance[:, 0] == 0).all()


def test_distances_are_euclidean_and_ordered(large):
    queries = clustered(20, seed=1)
    distance, index = large.search(queries, 16)
    assert (distance.diff(dim=1) >= 0).all()
    torch.testing.assert_close(distance, (queries[:, None] - large.keys[index]).norm(dim=2), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("block", [7, 64, 1000, 1 << 18])
@pytest.mark.parametrize("count", [1, 10, 100])
def test_the_exact_search_is_exact_in_blocks_of_any_size(block, count):
    keys, queries = clustered(1000), clustered(20, seed=1)
    distance, index = _exact(queries, keys, count, block)
    true_distance, true_index = brute_force(queries, keys, count)
    torch.testing.assert_close(distance, true_distance, atol=1e-6, rtol=1e-6)
    assert (index == true_index).float().mean() > 0.99  # near ties may change places in single precision


def test_a_small_set_of_keys_is_searched_exactly():
    keys, queries = clustered(3000), clustered(50, seed=1)
    true_distance, true_index = brute_force(queries, keys, 10)
    distance, index = Neighbours(keys).search(queries, 10)
    torch.testing.assert_close(distance, true_distance, atol=2e-3, rtol=0)
    assert (index == true_index).float().mean() > 0.99


def test_without_an_index_the_answer_is_the_same():
    keys, queries = clustered(3000), clustered(50, seed=1)
    with_index, without = Neighbours(keys), Neighbours(keys)
    without.index = None
    torch.testing.assert_close(with_index.search(queries, 10)[0], without.search(queries, 10)[0], atol=2e-3, rtol=0)


@pytest.mark.parametrize("indexed", [True, False])
def test_fewer_keys_than_asked_for_are_all_there_are(indexed):
    neighbours = Neighbours(clustered(5))
    if not indexed:
        neighbours.index = None
    distance, index = neighbours.search(clustered(3, seed=1), 32)
    assert distance.shape == index.shape == (3, 5)
    assert (index.sort(dim=1).values == torch.arange(5)).all()


@pytest.mark.parametrize("distinct", [1, 50])
def test_many_identical_keys_find_one_another(distinct):
    keys = clustered(distinct).repeat(30_000 // distinct, 1)
    distance, index = Neighbours(keys).search(keys[:distinct], 16)
    assert (index >= 0).all() and (distance == 0).all()
    assert torch.equal(keys[index], keys[:distinct, None].expand(-1, 16, -1))


def test_what_the_probed_cells_lack_is_stood_in_for_by_the_nearest(large):
    large.index.nprobe, probes = 1, large.index.nprobe
    try:
        distance, index = large.search(large.keys[:4], 5000)
    finally:
        large.index.nprobe = probes
    assert index.shape == (4, 5000) and (index >= 0).all()
    torch.testing.assert_close(distance, (large.keys[:4, None] - large.keys[index]).norm(dim=2), atol=1e-4, rtol=1e-4)
    assert (index[:, -1] == index[:, 0]).any()


def test_two_indices_of_the_same_keys_give_the_same_answers():
    keys, queries = clustered(25_000), clustered(30, seed=1)
    one, two = (Neighbours(keys).search(queries, 32)[1] for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("block", [1, 30, 4096])
def test_the_nearest_of_all_keys_are_found_in_blocks_of_any_size(block):
    keys = clustered(300)
    distance, near = nearest(keys, 5, block)
    true_distance, true_near = brute_force(keys, keys, 5)
    assert torch.equal(near, true_near) and torch.equal(near[:, 0], torch.arange(300))
    torch.testing.assert_close(distance, true_distance, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("width", [50, 1000, 1003, 5000])
@pytest.mark.parametrize("count", [1, 7, 30])
def test_the_smallest_are_those_that_sorting_puts_first(width, count):
    numbers = torch.randn(20, width, generator=torch.Generator().manual_seed(width))
    found, index = smallest(numbers, count)
    order = numbers.argsort(dim=1)[:, :count]
    assert torch.equal(index, order)
    assert torch.equal(found, numbers.gather(1, order))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_keys_are_found_exactly_though_products_are_rounded_elsewhere():
    keys = clustered(20_000) + 3.0
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        distance, index = nearest(keys.cuda(), 16)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    true_distance, _ = brute_force(keys[:500], keys, 16)
    wrong = (distance[:500].cpu() - true_distance).abs() > 1e-5
    assert wrong.float().mean() < 1e-3  # near ties may change places in single precision
    assert torch.equal(index[:, 0].cpu(), torch.arange(len(keys)))
