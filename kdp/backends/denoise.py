"""The Triton kernel of generators.py that takes one of Diffuser's steps."""

from __future__ import annotations

import triton
import triton.language as tl

from kdp.backends.kernels import _await, _finished, _known, _norm, _place, _product, _within


@triton.jit
def descend(
    h,  # (rows,INPUTS)
    scale,  # (INPUTS,)
    shift,
    weight,  # (OUTPUTS,INPUTS)
    bias,  # (OUTPUTS,)
    here,  # (N,STATE) observations
    mean,  # (D,) of a token's coordinates; the state's come first
    std,
    low,  # (D,) standardised, if BOUNDED
    high,
    x,  # (rows,OUTPUTS) clamped windows before the step
    noise,  # (rows,OUTPUTS) fresh, if NOISY
    windows,  # (rows,OUTPUTS) in the dataset's units, written if DONE; PLACED: where their address is
    seen,  # (rows,SEEN) the first coordinates after the step, clamped
    rows,
    candidates,
    of_x0,  # kdp.methods.diffuser.transition
    of_x,
    of_noise,
    signal,  # x = signal x_0 + haze eps
    haze,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STATE: tl.constexpr,
    TOKEN: tl.constexpr,
    SEEN: tl.constexpr,
    PLACED: tl.constexpr,
    BOUNDED: tl.constexpr,
    NOISY: tl.constexpr,
    EPSILON: tl.constexpr,
    CLIP: tl.constexpr,
    DONE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A denoiser's last layer, which predicts x_0 or the noise in x, and the step that follows from it."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, right = row < rows, column < OUTPUTS
    part = tl.arange(0, PARTS)[:, None, None]
    k = part * PART + tl.arange(0, PART)[None, None, :]
    down = part * PART + tl.arange(0, PART)[None, :, None]
    w = tl.load(weight + column[None, None, :] * INPUTS + down, mask=(down < INPUTS) & right[None, None, :], other=0.0)
    a = tl.load(scale + k, mask=k < INPUTS, other=0.0)
    b = tl.load(shift + k, mask=k < INPUTS, other=0.0)
    c = tl.load(bias + column, mask=right, other=0.0)
    m = tl.load(mean + column % TOKEN, mask=right, other=0.0)[None, :]
    s = tl.load(std + column % TOKEN, mask=right, other=1.0)[None, :]
    _await(EARLY)
    if DONE:
        windows = _place(windows, PLACED)
    at, mask = row[None, :, None] * INPUTS + k, (k < INPUTS) & live[None, :, None]
    h = tl.load(h + at, mask=mask, other=0.0)
    at, mask = row[:, None] * OUTPUTS + column[None, :], live[:, None] & right[None, :]
    before = tl.load(x + at, mask=mask, other=0.0)
    if NOISY:
        fresh = tl.load(noise + at, mask=mask, other=0.0)
    known, clamped = _known(here, m, s, row, column, rows, candidates, STATE)
    y = _product(_norm(h, a, b, k < INPUTS, INPUTS), w, PARTS, PRECISION) + c[None, :]
    if EPSILON:
        y = (before - haze * y) / signal
    y = tl.minimum(tl.maximum(y, -CLIP), CLIP)
    if BOUNDED:
        y = _within(y, low, high, column, right, TOKEN)
    y = of_x0 * y + of_x * before
    if NOISY:
        y += of_noise * fresh
    y = tl.where(clamped, known, y)
    if DONE:
        _finished(y, m, s, row, column, windows, seen, rows, OUTPUTS, SEEN)
    else:
        tl.store(seen + at, y, mask=mask)
