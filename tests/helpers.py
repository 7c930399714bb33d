"""Small datasets that tests read answers from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from kdp.config import RunConfig
from kdp.methods.diffuser import DiffusionConfig
from kdp.normalize import Normalizer
from kdp.value import ValueConfig
from kdp.windows import Episodes

COMMAND = (sys.executable, "-c", "import kdp.cli, kdp.parts; kdp.parts.INVERSE_STEPS = 5; kdp.cli.main()")
"""`kdp`, as a process of its own in which the inverse model is fitted in a moment, as in `brief_inverse`."""


@contextmanager
def brief_inverse() -> Iterator[None]:
    """Runs started in here fit their inverse model in a moment: it is not what is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kdp.parts.INVERSE_STEPS", 5)
        yield


def write_hdf5(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """A file in D4RL's layout; a key like "infos/goal" is an array in a group."""
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
    return path


def numbered_episodes(lengths: list[int], action_dim: int = 1) -> Episodes:
    """State (episode, step within it, step within all), each action the step within all, plus 1000 for each further
    coordinate, and a reward of one: every number says where it comes from."""
    count = sum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    end = np.zeros(count, bool)
    end[np.cumsum(lengths) - 1] = True
    actions = np.arange(count)[:, None] + 1000.0 * np.arange(action_dim)
    return Episodes.from_arrays(
        np.stack([episode, step, np.arange(count)], 1), actions, np.ones(count), end, np.zeros(count, bool)
    )


def walks(lengths: list[int], seed: int = 0) -> Episodes:
    """Episodes on a plane: state (position, velocity), four numbers, action two, nothing zero or twice the same."""
    random, count = np.random.default_rng(seed), sum(lengths)
    end = np.zeros(count, bool)
    end[np.cumsum(lengths) - 1] = True
    return Episodes.from_arrays(
        random.normal(size=(count, 4)) + [3, -2, 0, 0],
        random.normal(size=(count, 2)),
        np.zeros(count),
        np.zeros(count, bool),
        end,
    )


def plain_normalizer(state_dim: int, action_dim: int) -> Normalizer:
    """Standardised units are the dataset's units."""
    return Normalizer(torch.zeros(state_dim), torch.ones(state_dim), torch.zeros(action_dim), torch.ones(action_dim))


def skewed_normalizer(state_dim: int, action_dim: int) -> Normalizer:
    """Every coordinate has a mean and a size of its own."""
    return Normalizer(
        torch.arange(1.0, state_dim + 1),
        torch.arange(1.0, state_dim + 1) / 2,
        -torch.arange(1.0, action_dim + 1),
        torch.arange(1.0, action_dim + 1) * 3,
    )


def every_kind(plain: RunConfig) -> dict[str, RunConfig]:
    """A run of each method, and of the kinds of it that plan in another way; all as `plain` otherwise."""
    return {
        "kdp": plain,
        "kdp-unet": replace(plain, network=replace(plain.network, kind="unet")),
        "kdp-trunk": replace(plain, network=replace(plain.network, kind="mlp", trunk=1)),
        "kdp-wish": replace(plain, value=ValueConfig("return", width=16, wish=0.5)),
        "ddpm": replace(plain, method="diffuser", diffusion=DiffusionConfig(steps=3)),
        "ddim": replace(plain, method="diffuser", diffusion=DiffusionConfig(steps=4, sampler="ddim", sampling_steps=2)),
        "bc": replace(plain, method="bc"),
    }
