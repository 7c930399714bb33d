"""Behaviour policies from files: small networks in plain numpy, one format for all.

x = clip((observation - obs_mean) / obs_std, -obs_clip, obs_clip)
x = activation(W_i @ x + b_i)    for i = 0, 1, ... but the last; activation is relu or tanh
mean = (W_n @ x + b_n) * out_scale + out_shift
log_std, or log_std_W @ x + log_std_b on the last hidden layer, clipped to [-20, 2]; none of them: no spread
action = tanh(mean + std * noise) where squash is tanh, clipped to [-1, 1] where it is clip
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kdp.errors import UserError
from kdp.files import reason

WORDS = {"activation": ("relu", "tanh"), "squash": ("tanh", "clip")}
LOG_STD = -20.0, 2.0


@dataclass(frozen=True)
class Policy:
    """A policy in float64, for N observations at once."""

    name: str  # the file's, without its folder
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    activation: str
    squash: str
    obs_mean: np.ndarray
    obs_std: np.ndarray
    obs_clip: float
    out_scale: np.ndarray
    out_shift: np.ndarray
    log_std: np.ndarray | tuple[np.ndarray, np.ndarray] | None
    """A vector, or weights and biases on the last hidden layer."""

    @property
    def state_dim(self) -> int:
        return self.layers[0][0].shape[1]

    @property
    def action_dim(self) -> int:
        return len(self.layers[-1][1])

    def act(self, observations: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """observations (N,d_s), standard normal noise (N,d_a) or None for the mean -> actions (N,d_a) in [-1, 1]."""
        x = np.clip((observations - self.obs_mean) / self.obs_std, -self.obs_clip, self.obs_clip)
        for weight, bias in self.layers[:-1]:
            x = x @ weight.T + bias
            x = np.maximum(x, 0) if self.activation == "relu" else np.tanh(x)
        weight, bias = self.layers[-1]
        action = (x @ weight.T + bias) * self.out_scale + self.out_shift
        if noise is not None and self.log_std is not None:
            log_std = self.log_std
            if isinstance(log_std, tuple):
                log_std = x @ log_std[0].T + log_std[1]
            action = action + np.exp(np.clip(log_std, *LOG_STD)) * noise
        return np.tanh(action) if self.squash == "tanh" else np.clip(action, -1, 1)


def read_policy(path: str | Path) -> Policy:
    """The policy in an .npz, or the rule it breaks."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"there is no policy file {file}. Check the path; it is relative to {Path.cwd()}.")
    try:
        if not zipfile.is_zipfile(file):
            raise zipfile.BadZipFile("it is not a zip archive, or it was cut short")
        with np.load(file, allow_pickle=False) as found:
            arrays = {key: found[key] for key in found.files}
    except Exception as error:  # a damaged file makes zipfile and numpy raise almost anything
        raise UserError(f"{file} is no readable .npz file ({reason(error)}). Make or copy it again.") from error
    return _checked(file.name, arrays)


def _checked(name: str, arrays: Mapping[str, np.ndarray]) -> Policy:
    depth = 0
    while f"W{depth + 1}" in arrays:
        depth += 1
    needed = [f"{letter}{i}" for i in range(depth + 1) for letter in "Wb"]
    needed += [*WORDS, "obs_mean", "obs_std", "obs_clip", "out_scale", "out_shift"]
    if {"log_std_W", "log_std_b"} & arrays.keys():
        needed += ["log_std_W", "log_std_b"]
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise UserError(f"{name} is no policy: it has no {', '.join(missing)}. It must hold {', '.join(needed)}.")
    words = {key: _word(name, key, arrays[key]) for key in WORDS}

    def numbers(key: str, *shape: int | None) -> np.ndarray:
        return _numbers(name, key, arrays[key], shape)

    layers: list[tuple[np.ndarray, np.ndarray]] = []
    for i in range(depth + 1):
        weight = numbers(f"W{i}", None, len(layers[-1][1]) if layers else None)
        layers.append((weight, numbers(f"b{i}", len(weight))))
    inputs, (outputs, hidden) = layers[0][0].shape[1], layers[-1][0].shape
    log_std: np.ndarray | tuple[np.ndarray, np.ndarray] | None = None
    if "log_std_W" in needed:
        log_std = numbers("log_std_W", outputs, hidden), numbers("log_std_b", outputs)
    elif "log_std" in arrays:
        log_std = numbers("log_std", outputs)
    obs_std, obs_clip = numbers("obs_std", inputs), float(numbers("obs_clip"))
    for key, value in (("obs_std", float(obs_std.min())), ("obs_clip", obs_clip)):
        if not value > 0:
            raise UserError(f"{name}: {key} must be more than zero; got {value:g}.")
    return Policy(
        name,
        tuple(layers),
        words["activation"],
        words["squash"],
        numbers("obs_mean", inputs),
        obs_std,
        obs_clip,
        numbers("out_scale", outputs),
        numbers("out_shift", outputs),
        log_std,
    )


def _word(name: str, key: str, array: np.ndarray) -> str:
    word = str(array.item()) if array.size == 1 else str(array)
    if word not in WORDS[key]:
        raise UserError(f"{name}: {key} must be {' or '.join(WORDS[key])}; got {word!r}.")
    return word


def _numbers(name: str, key: str, array: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    """An array in float64; a None in `shape` is any size of 1 or more."""
    if array.dtype.kind not in "biuf":
        raise UserError(f"{name}: {key} must hold numbers; its type is {array.dtype}.")
    if not shape and array.size == 1:
        array = array.reshape(())
    sizes = zip(array.shape, shape, strict=False)
    if array.ndim != len(shape) or not all(have > 0 and want in (None, have) for have, want in sizes):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise UserError(f"{name}: {key} must have the shape ({wanted}) to fit the other arrays; it has {array.shape}.")
    bad = np.isnan(array) if key == "obs_clip" else ~np.isfinite(array)
    if bad.any():
        raise UserError(f"{name}: {key} must be finite; {int(bad.sum())} of its {array.size} numbers are not.")
    return array.astype(np.float64)
