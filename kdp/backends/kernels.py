"""The Triton kernels of fused.py. Each is one layer of a network for a tile of rows and columns, with all that stands
between it and the layer before: the weights are then read by as many processors as there are tiles.

A product is split along its inner axis into `PARTS`, one for each warp: x (PARTS,ROWS,PART) @ w (PARTS,PART,COLUMNS),
and the parts are added up. A row is whole in one program, so its norm is taken there. Coordinates beyond a row's end
are zeros, before and after every operation. `EARLY`: a kernel is launched while the one before still runs, and waits
for it only once its own weights are on their way (Hopper's programmatic dependent launch).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kdp import record

NORM_EPS = tl.constexpr(1e-5)  # nn.LayerNorm's
FAINT = tl.constexpr(record.FAINT)  # of a blend


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
def enter(
    here,  # (N,STATE) observations
    mean,  # (STATE,)
    std,
    noise,  # (rows,NOISE)
    near,  # (STATE,WIDTH) of the condition's first layer
    near_bias,  # (WIDTH,)
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
    z = tl.arange(0, DRAWN)
    v = tl.load(drawn + column[None, :] * NOISE + z[:, None], mask=(z[:, None] < NOISE) & right[None, :], other=0.0)
    h = tl.zeros((PARTS, ROWS, PART), tl.float32) + tl.load(near_bias + k, mask=k < WIDTH, other=0.0)
    _await(EARLY)
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
    h = _product(_silu(h), w, PARTS, PRECISION) + tl.dot(u, v, input_precision=PRECISION) + b[None, :]
    tl.store(out + row[:, None] * WIDTH + column[None, :], h, mask=live[:, None] & right[None, :])


@triton.jit
def layer(
    x,  # (heads or 1,rows,INPUTS)
    scale,  # (heads,INPUTS) of the norm, if there is one
    shift,
    weight,  # (heads,OUTPUTS,INPUTS)
    bias,  # (heads,OUTPUTS)
    onto,  # (heads,rows,OUTPUTS) what is added, if anything is
    out,  # (heads,rows,OUTPUTS)
    rows,
    apart,  # numbers from one head's x to the next; 0: all see the same
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
        y += tl.load(onto + at, mask=mask, other=0.0)
    tl.store(out + at, y, mask=mask)


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
    windows,  # (rows,OUTPUTS) in the dataset's units
    seen,  # (rows,SEEN) the first coordinates, standardised: what a scorer looks at
    rows,
    candidates,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STATE: tl.constexpr,
    TOKEN: tl.constexpr,
    SEEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A generator's last layer, the clamp that begins a window with the state, and the units."""
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
    h = tl.load(x + row[None, :, None] * INPUTS + k, mask=(k < INPUTS) & live[None, :, None], other=0.0)
    y = _product(_norm(h, a, b, k < INPUTS, INPUTS), w, PARTS, PRECISION) + c[None, :]
    clamped = (column < STATE)[None, :]
    at = (row // candidates)[:, None] * STATE + column[None, :]
    known = (tl.load(here + at, mask=live[:, None] & clamped, other=0.0) - m) / s
    y = tl.where(clamped, known, y)
    row, column = row[:, None], column[None, :]
    tl.store(windows + row * OUTPUTS + column, y * s + m, mask=live[:, None] & right[None, :])
    if SEEN > 0:
        tl.store(seen + row * SEEN + column, y, mask=live[:, None] & (column < SEEN))


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


@triton.jit
def vote(
    x,  # (heads,rows,WIDTH)
    scale,  # (heads,WIDTH)
    shift,
    weight,  # (heads,WIDTH)
    bias,  # (heads,)
    votes,  # (heads,rows)
    rows,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A critic's last layer, which has one output."""
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    k = tl.arange(0, PADDED)[None, None, :]
    inside = k < WIDTH
    a = tl.load(scale + head * WIDTH + k, mask=inside, other=0.0)
    b = tl.load(shift + head * WIDTH + k, mask=inside, other=0.0)
    w = tl.load(weight + head * WIDTH + k, mask=inside, other=0.0)
    c = tl.load(bias + head)
    _await(EARLY)
    at = (head * rows + row)[None, :, None] * WIDTH + k
    h = _norm(tl.load(x + at, mask=live[None, :, None] & inside, other=0.0), a, b, inside, WIDTH)
    y = tl.sum(tl.sum(_silu(h) * w, 2), 0) + c
    tl.store(votes + head * rows + row, y, mask=live)


@triton.jit
def _ballot(votes, plan, candidate, rows, candidates, HEADS: tl.constexpr, PADDED: tl.constexpr):
    """(PADDED,n) what each head says of candidates (n,) of a plan; zeros beyond."""
    head = tl.arange(0, PADDED)[:, None]
    mask = (head < HEADS) & (candidate < candidates)[None, :]
    return tl.load(votes + head * rows + plan * candidates + candidate[None, :], mask=mask, other=0.0)


@triton.jit
def _ranked(
    votes,
    usual,
    plan,
    candidate,
    rows,
    candidates,
    HEADS: tl.constexpr,
    PADDED: tl.constexpr,
    CAUTION: tl.constexpr,
):
    """kdp.value.ranked of candidates (n,) of a plan, with each head's mean (PADDED,) over all of them -> (n,)."""
    ballot = _ballot(votes, plan, candidate, rows, candidates, HEADS, PADDED)
    worth = tl.sum(ballot, 0) / HEADS
    if CAUTION != 0.0 and HEADS > 1:
        apart = ballot - usual[:, None]
        apart = tl.where(tl.arange(0, PADDED)[:, None] < HEADS, apart - (tl.sum(apart, 0) / HEADS)[None, :], 0.0)
        worth -= CAUTION * tl.sqrt(tl.sum(apart * apart, 0) / (HEADS - 1))
    return worth


@triton.jit
def answer(
    windows,  # (N*K,SIZE)
    votes,  # (HEADS,N*K); HEADS 0: none
    scores,  # (N,K)
    chosen,  # (N,)
    brief,  # (N,SIZE+K+1)
    rows,
    candidates,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED: tl.constexpr,
    CAUTION: tl.constexpr,
    BLEND: tl.constexpr,
    ALL: tl.constexpr,
    SOME: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The scores of a plan's candidates, the best of them, and Plans.brief: each program some columns of the window
    that is followed, the first of them the rest too."""
    plan = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    right = column < SIZE
    every, some = tl.arange(0, ALL), tl.arange(0, SOME)
    there = every < candidates
    _await(EARLY)
    usual = tl.zeros((PADDED,), tl.float32)
    score = tl.zeros((ALL,), tl.float32)
    if HEADS > 0:
        usual = tl.sum(_ballot(votes, plan, every, rows, candidates, HEADS, PADDED), 1) / candidates
        score = _ranked(votes, usual, plan, every, rows, candidates, HEADS, PADDED, CAUTION)
    best = tl.argmax(tl.where(there, score, float("-inf")), 0)
    length = SIZE + candidates + 1
    if tl.program_id(1) == 0:
        tl.store(scores + plan * candidates + every, score, mask=there)
        tl.store(brief + plan * length + SIZE + every, score, mask=there)
        tl.store(chosen + plan, best.to(tl.int64))
        tl.store(brief + plan * length + SIZE + candidates, best.to(tl.float32))
    if BLEND > 0.0:
        apart = tl.where(there, score - tl.sum(tl.where(there, score, 0.0), 0) / candidates, 0.0)
        sharp = BLEND / (tl.sqrt(tl.sum(apart * apart, 0) / candidates) + FAINT)
        top = tl.max(tl.where(there, score, float("-inf")), 0)
        total = tl.sum(tl.where(there, tl.exp(sharp * (score - top)), 0.0), 0)
        window = tl.zeros((COLUMNS,), tl.float32)
        for start in range(0, ALL, SOME):
            number = start + some
            worth = tl.zeros((SOME,), tl.float32)
            if HEADS > 0:
                worth = _ranked(votes, usual, plan, number, rows, candidates, HEADS, PADDED, CAUTION)
            mask = number < candidates
            share = tl.where(mask, tl.exp(sharp * (worth - top)) / total, 0.0)
            at = (plan * candidates + number)[:, None] * SIZE + column[None, :]
            window += tl.sum(share[:, None] * tl.load(windows + at, mask=mask[:, None] & right[None, :], other=0.0), 0)
    else:
        window = tl.load(windows + (plan * candidates + best) * SIZE + column, mask=right, other=0.0)
    tl.store(brief + plan * length + column, window, mask=right)
