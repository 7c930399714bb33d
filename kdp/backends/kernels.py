"""The Triton kernels of fused.py. Each is one layer of a network for a tile of rows and columns, with all that stands
between it and the layer before: the weights are then read by as many processors as there are tiles.

A product is split along its inner axis into `PARTS`, one for each warp: x (PARTS,ROWS,PART) @ w (PARTS,PART,COLUMNS),
and the parts are added up. A row is whole in one program, so its norm is taken there. Coordinates beyond a row's end
are zeros, before and after every operation. `EARLY`: a kernel is launched while the one before still runs, and waits
for it only once its own weights are on their way (Hopper's programmatic dependent launch).

`PLACED`: windows are written at an address that is read from memory: the same recorded launch then leaves those of
every plan in memory of their own.
"""

from __future__ import annotations

import triton
import triton.language as tl

NORM_EPS = tl.constexpr(1e-5)  # nn.LayerNorm's


@triton.jit
def _await(EARLY: tl.constexpr):
    """From here on, what the kernel before has written can be read."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _norm(x, scale, shift, inside, width):
    """x (PARTS,ROWS,PART), scale, shift and inside (PARTS,1,PART) -> LayerNorm of the rows."""
    mean = tl.sum(tl.sum(x, 2), 0) / width
    apart = tl.where(inside, x - mean[None, :, None], 0.0)
    spread = tl.sqrt(tl.sum(tl.sum(apart * apart, 2), 0) / width + NORM_EPS)
    return apart / spread[None, :, None] * scale + shift


@triton.jit
def _product(x, w, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """x (PARTS,ROWS,PART), w (PARTS,PART,COLUMNS) -> (ROWS,COLUMNS)."""
    if PARTS == 1:
        flat = tl.reshape(x, (x.shape[1], x.shape[2]))
        return tl.dot(flat, tl.reshape(w, (w.shape[1], w.shape[2])), input_precision=PRECISION)
    return tl.sum(tl.dot(x, w, input_precision=PRECISION), 0)


@triton.jit
def _times(x, w, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """x (PARTS,ROWS,NEAR), w (PARTS,NEAR,PART) -> (PARTS,ROWS,PART): every part of a row, from few coordinates."""
    if PARTS == 1:
        flat = tl.reshape(x, (x.shape[1], x.shape[2]))
        return tl.dot(flat, tl.reshape(w, (w.shape[1], w.shape[2])), input_precision=PRECISION)[None, :, :]
    return tl.dot(x, w, input_precision=PRECISION)


@triton.jit
def _normal(seed, step, plan, candidate, number):
    """A standard normal number for each place, by Philox: it depends on nothing but the seed and the place. Four words
    make two pairs of them."""
    a, b, c, d = tl.philox(seed, number // 4, candidate, plan, step)
    first = number % 4 < 2
    u, v = tl.where(first, a, c), tl.where(first, b, d)
    one, other = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(u), tl.uint_to_uniform_float(v))
    return tl.where(number % 2 == 0, one, other)


@triton.jit
def _place(windows, PLACED: tl.constexpr):
    """Where windows lie: there or, if PLACED, at the address that lies there."""
    if PLACED:
        windows = tl.multiple_of(tl.load(windows).to(tl.pointer_type(tl.float32)), 16)
    return windows


@triton.jit
def enter(
    here,  # (N,STATE) observations
    mean,  # (STATE,)
    std,
    noise,  # (rows,NOISE); NOISE 0: none
    near,  # (STATE,WIDTH) of the condition's first layer
    near_bias,  # (TIMES,WIDTH): that of a row is its number's, modulo TIMES
    far,  # (WIDTH,WIDTH) of its second, outputs first
    drawn,  # (WIDTH,NOISE) of the noise's layer
    bias,  # (WIDTH,) of both
    out,  # (rows,WIDTH)
    rows,
    candidates,
    STATE: tl.constexpr,
    NOISE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    STEP: tl.constexpr,
    TIMES: tl.constexpr,
    DRAWN: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """What a generator's blocks begin with. The condition's first layer is small, and made anew in every program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, right = row < rows, column < WIDTH
    part, step = tl.arange(0, PARTS)[:, None, None], tl.arange(0, STEP)
    k = part * PART + tl.arange(0, PART)[None, None, :]  # (PARTS,1,PART)
    down = part * PART + tl.arange(0, PART)[None, :, None]  # (PARTS,PART,1)
    w = tl.load(
        far + column[None, None, :] * WIDTH + down, mask=(down < WIDTH) & right[None, None, :], other=0.0
    )  # (PARTS,PART,COLUMNS)
    b = tl.load(bias + column, mask=right, other=0.0)
    if NOISE > 0:
        z = tl.arange(0, DRAWN)
        v = tl.load(drawn + column[None, :] * NOISE + z[:, None], mask=(z[:, None] < NOISE) & right[None, :], other=0.0)
    if TIMES > 1:
        time = (row % TIMES)[None, :, None]
        h = tl.load(near_bias + time * WIDTH + k, mask=(k < WIDTH) & live[None, :, None], other=0.0)
    else:
        h = tl.zeros((PARTS, ROWS, PART), tl.float32) + tl.load(near_bias + k, mask=k < WIDTH, other=0.0)
    _await(EARLY)
    if NOISE > 0:
        u = tl.load(noise + row[:, None] * NOISE + z[None, :], mask=live[:, None] & (z[None, :] < NOISE), other=0.0)
    plan = (row // candidates)[None, :, None]
    for start in tl.static_range(0, STATE, STEP):
        across, along = start + step[None, None, :], start + step[None, :, None]
        told = (across < STATE) & live[None, :, None] & (part >= 0)
        s = tl.load(here + plan * STATE + across + part * 0, mask=told, other=0.0)
        s -= tl.load(mean + across, mask=across < STATE, other=0.0)
        s /= tl.load(std + across, mask=across < STATE, other=1.0)
        wide = tl.load(near + along * WIDTH + k, mask=(along < STATE) & (k < WIDTH), other=0.0)
        h += _times(s, wide, PARTS, PRECISION)
    h = _product(_silu(h), w, PARTS, PRECISION) + b[None, :]
    if NOISE > 0:
        h += tl.dot(u, v, input_precision=PRECISION)
    tl.store(out + row[:, None] * WIDTH + column[None, :], h, mask=live[:, None] & right[None, :])


@triton.jit
def layer(
    x,  # (heads or 1,rows,INPUTS)
    scale,  # (heads,INPUTS) of the norm, if there is one
    shift,
    weight,  # (heads,OUTPUTS,INPUTS)
    bias,  # (heads,OUTPUTS)
    onto,  # (heads,rows/each,OUTPUTS) what is added, if anything is
    out,  # (heads,rows,OUTPUTS)
    rows,
    apart,  # numbers from one head's x to the next; 0: all see the same
    each,  # rows that the same is added to
    pitch,  # numbers from a row of `onto` to the next
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A linear layer of the rows, normalised and activated first. With a norm, PARTS * PART holds a whole row."""
    head = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, right = row < rows, column < OUTPUTS
    part = tl.arange(0, PARTS)[:, None, None]
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    y += tl.load(bias + head * OUTPUTS + column, mask=right, other=0.0)[None, :]
    for start in tl.static_range(0, INPUTS, PARTS * PART):
        k = start + part * PART + tl.arange(0, PART)[None, None, :]
        down = start + part * PART + tl.arange(0, PART)[None, :, None]
        w = tl.load(
            weight + head * OUTPUTS * INPUTS + column[None, None, :] * INPUTS + down,
            mask=(down < INPUTS) & right[None, None, :],
            other=0.0,
        )
        if NORM:
            a = tl.load(scale + head * INPUTS + k, mask=k < INPUTS, other=0.0)
            b = tl.load(shift + head * INPUTS + k, mask=k < INPUTS, other=0.0)
        if start == 0:
            _await(EARLY)
        mask = (k < INPUTS) & live[None, :, None]
        h = tl.load(x + head * apart + row[None, :, None] * INPUTS + k, mask=mask, other=0.0)
        if NORM:
            h = _norm(h, a, b, k < INPUTS, INPUTS)
        if SILU:
            h = _silu(h)
        y += _product(h, w, PARTS, PRECISION)
    at = (head * rows + row)[:, None] * OUTPUTS + column[None, :]
    mask = live[:, None] & right[None, :]
    if ADD:
        same = head * (rows // each) * pitch + (row // each)[:, None] * pitch + column[None, :]
        y += tl.load(onto + same, mask=mask, other=0.0)
    tl.store(out + at, y, mask=mask)


@triton.jit
def _known(here, m, s, row, column, rows, candidates, STATE: tl.constexpr):
    """What the clamp writes over a window's columns, standardised; and where it does."""
    clamped = (column < STATE)[None, :]
    at = (row // candidates)[:, None] * STATE + column[None, :]
    return (tl.load(here + at, mask=(row < rows)[:, None] & clamped, other=0.0) - m) / s, clamped


@triton.jit
def _within(y, low, high, column, right, TOKEN: tl.constexpr):
    """Windows' columns y (rows,columns), kept between `low` and `high` (D,) of a token's coordinates."""
    least = tl.load(low + column % TOKEN, mask=right, other=0.0)[None, :]
    return tl.minimum(tl.maximum(y, least), tl.load(high + column % TOKEN, mask=right, other=0.0)[None, :])


@triton.jit
def _finished(y, m, s, row, column, windows, seen, rows, OUTPUTS: tl.constexpr, SEEN: tl.constexpr):
    """Standardised windows y (rows,columns), written: in the dataset's units, and what a scorer sees."""
    live, row, column = (row < rows)[:, None], row[:, None], column[None, :]
    tl.store(windows + row * OUTPUTS + column, y * s + m, mask=live & (column < OUTPUTS))
    if SEEN > 0:
        tl.store(seen + row * SEEN + column, y, mask=live & (column < SEEN))


@triton.jit
def finish(
    x,  # (rows,OUTPUTS)
    here,
    mean,
    std,
    windows,
    seen,
    rows,
    candidates,
    OUTPUTS: tl.constexpr,
    STATE: tl.constexpr,
    TOKEN: tl.constexpr,
    SEEN: tl.constexpr,
    PLACED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`leave`, of a last layer that a library has computed."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m = tl.load(mean + column % TOKEN, mask=column < OUTPUTS, other=0.0)[None, :]
    s = tl.load(std + column % TOKEN, mask=column < OUTPUTS, other=1.0)[None, :]
    _await(EARLY)
    windows = _place(windows, PLACED)
    known, clamped = _known(here, m, s, row, column, rows, candidates, STATE)
    mask = (row < rows)[:, None] & (column < OUTPUTS)[None, :]
    y = tl.load(x + row[:, None] * OUTPUTS + column[None, :], mask=mask, other=0.0)
    y = tl.where(clamped, known, y)
    _finished(y, m, s, row, column, windows, seen, rows, OUTPUTS, SEEN)


@triton.jit
def leave(
    x,  # (rows,INPUTS)
    scale,  # (INPUTS,)
    shift,
    weight,  # (OUTPUTS,INPUTS)
    bias,  # (OUTPUTS,)
    here,  # (N,STATE) observations
    mean,  # (D,) of a token's coordinates; the state's come first
    std,
    low,  # (D,) standardised, if BOUNDED
    high,
    windows,  # (rows,OUTPUTS) in the dataset's units; PLACED: where their address is
    seen,  # (rows,SEEN) the first coordinates, standardised: what a scorer looks at
    rows,
    candidates,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STATE: tl.constexpr,
    TOKEN: tl.constexpr,
    SEEN: tl.constexpr,
    PLACED: tl.constexpr,
    BOUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A generator's last layer, the range of actions, the clamp that begins a window with the state, and the units."""
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
    m = tl.load(mean + column % TOKEN, mask=column < OUTPUTS, other=0.0)[None, :]
    s = tl.load(std + column % TOKEN, mask=column < OUTPUTS, other=1.0)[None, :]
    _await(EARLY)
    windows = _place(windows, PLACED)
    at, mask = row[None, :, None] * INPUTS + k, (k < INPUTS) & live[None, :, None]
    h = tl.load(x + at, mask=mask, other=0.0)
    known, clamped = _known(here, m, s, row, column, rows, candidates, STATE)
    y = _product(_norm(h, a, b, k < INPUTS, INPUTS), w, PARTS, PRECISION) + c[None, :]
    if BOUNDED:
        y = _within(y, low, high, column, right, TOKEN)
    y = tl.where(clamped, known, y)
    _finished(y, m, s, row, column, windows, seen, rows, OUTPUTS, SEEN)


@triton.jit
def look(
    x,  # (rows,INPUTS)
    near,  # (heads,INPUTS,WIDTH) of the first layer
    near_bias,  # (heads,WIDTH)
    scale,  # (heads,WIDTH)
    shift,
    weight,  # (heads,WIDTH,WIDTH) of the second, outputs first
    bias,  # (heads,WIDTH)
    out,  # (heads,rows,WIDTH)
    rows,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A critic's first two layers, where it looks at few numbers: the first is made anew in every program."""
    head = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, right = row < rows, column < WIDTH
    part, step = tl.arange(0, PARTS)[:, None, None], tl.arange(0, STEP)
    k = part * PART + tl.arange(0, PART)[None, None, :]
    down = part * PART + tl.arange(0, PART)[None, :, None]
    inside = k < WIDTH
    w = tl.load(
        weight + head * WIDTH * WIDTH + column[None, None, :] * WIDTH + down,
        mask=(down < WIDTH) & right[None, None, :],
        other=0.0,
    )
    a = tl.load(scale + head * WIDTH + k, mask=inside, other=0.0)
    b = tl.load(shift + head * WIDTH + k, mask=inside, other=0.0)
    c = tl.load(bias + head * WIDTH + column, mask=right, other=0.0)
    h = tl.zeros((PARTS, ROWS, PART), tl.float32) + tl.load(near_bias + head * WIDTH + k, mask=inside, other=0.0)
    _await(EARLY)
    for start in tl.static_range(0, INPUTS, STEP):
        across, along = start + step[None, None, :], start + step[None, :, None]
        told = (across < INPUTS) & live[None, :, None] & (part >= 0)
        s = tl.load(x + row[None, :, None] * INPUTS + across + part * 0, mask=told, other=0.0)
        at = head * INPUTS * WIDTH + along * WIDTH + k
        wide = tl.load(near + at, mask=(along < INPUTS) & inside, other=0.0)
        h += _times(s, wide, PARTS, PRECISION)
    y = _product(_silu(_norm(h, a, b, inside, WIDTH)), w, PARTS, PRECISION) + c[None, :]
    at = (head * rows + row)[:, None] * WIDTH + column[None, :]
    tl.store(out + at, y, mask=live[:, None] & right[None, :])
