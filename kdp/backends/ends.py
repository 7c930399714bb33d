"""The Triton kernels of fused.py that begin and end a plan: what it is told and its noise, and the choice, blend and
answer."""

from __future__ import annotations

import triton
import triton.language as tl

from kdp import record
from kdp.backends.kernels import _await, _norm, _normal, _place, _silu

FAINT = tl.constexpr(record.FAINT)  # of a blend


@triton.jit
def begin(
    words,  # (2,) in the CPU's memory, which a GPU reads by itself: the noise's seed, and the windows' address
    told,  # (NUMBERS,) in the CPU's memory
    here,  # (NUMBERS,) the same on the GPU
    kept,  # (2,) the words, there
    noise,  # (rows,NOISE), if it is to be drawn
    rows,
    candidates,
    DRAW: tl.constexpr,
    NUMBERS: tl.constexpr,
    NOISE: tl.constexpr,
    DRAWN: tl.constexpr,
    ROWS: tl.constexpr,
    SOME: tl.constexpr,
    EARLY: tl.constexpr,
):
    """What a plan is told is fetched, and its noise drawn: a candidate's does not depend on how many there are."""
    _await(EARLY)
    seed = tl.load(words)
    if tl.program_id(0) == 0:
        tl.store(kept, seed)
        tl.store(kept + 1, tl.load(words + 1))
        for start in tl.static_range(0, NUMBERS, SOME):
            at = start + tl.arange(0, SOME)
            tl.store(here + at, tl.load(told + at, mask=at < NUMBERS, other=0.0), mask=at < NUMBERS)
    if DRAW:
        row, z = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None], tl.arange(0, DRAWN)[None, :]
        drawn = _normal(seed, 0, row // candidates, row % candidates, z)
        tl.store(noise + row * NOISE + z, drawn, mask=(row < rows) & (z < NOISE))


@triton.jit
def draw(
    words,
    noise,  # (steps,rows,NOISE)
    rows,
    candidates,
    NOISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The noise of all steps of a method that denoises."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    z, step = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :], tl.program_id(2)
    _await(EARLY)
    drawn = _normal(tl.load(words), step, row // candidates, row % candidates, z)
    tl.store(noise + (step * rows + row) * NOISE + z, drawn, mask=(row < rows) & (z < NOISE))


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
    k = tl.arange(0, PADDED)[None, None, :]
    inside = k < WIDTH
    a = tl.load(scale + head * WIDTH + k, mask=inside, other=0.0)
    b = tl.load(shift + head * WIDTH + k, mask=inside, other=0.0)
    w = tl.load(weight + head * WIDTH + k, mask=inside, other=0.0)
    c = tl.load(bias + head)
    _await(EARLY)
    at = (head * rows + row)[None, :, None] * WIDTH + k
    h = _norm(tl.load(x + at, mask=(row < rows)[None, :, None] & inside, other=0.0), a, b, inside, WIDTH)
    y = tl.sum(tl.sum(_silu(h) * w, 2), 0) + c
    tl.store(votes + head * rows + row, y, mask=row < rows)


@triton.jit
def _ballot(votes, plan, candidate, rows, candidates, HEADS: tl.constexpr, PADDED: tl.constexpr):
    """(PADDED,n) what each head says of candidates (n,) of a plan; zeros beyond."""
    head = tl.arange(0, PADDED)[:, None]
    mask = (head < HEADS) & (candidate < candidates)[None, :]
    return tl.load(votes + head * rows + plan * candidates + candidate[None, :], mask=mask, other=0.0)


@triton.jit
def _ranked(ballot, usual, HEADS: tl.constexpr, PADDED: tl.constexpr, CAUTION: tl.constexpr):
    """kdp.value.ranked of a ballot (PADDED,n), with each head's mean (PADDED,) over all candidates -> (n,)."""
    worth = tl.sum(ballot, 0) / HEADS
    if CAUTION != 0.0 and HEADS > 1:
        apart = ballot - usual[:, None]
        apart = tl.where(tl.arange(0, PADDED)[:, None] < HEADS, apart - (tl.sum(apart, 0) / HEADS)[None, :], 0.0)
        worth -= CAUTION * tl.sqrt(tl.sum(apart * apart, 0) / (HEADS - 1))
    return worth


@triton.jit
def answer(
    windows,  # (N*K,SIZE); PLACED: where their address is
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
    PLACED: tl.constexpr,
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
    windows = _place(windows, PLACED)
    usual = tl.zeros((PADDED,), tl.float32)
    score = tl.zeros((ALL,), tl.float32)
    if HEADS > 0:
        ballot = _ballot(votes, plan, every, rows, candidates, HEADS, PADDED)
        usual = tl.sum(ballot, 1) / candidates
        score = _ranked(ballot, usual, HEADS, PADDED, CAUTION)
    best = tl.minimum(tl.argmax(tl.where(there, score, float("-inf")), 0), candidates - 1)  # whatever is not a number
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
                few = _ballot(votes, plan, number, rows, candidates, HEADS, PADDED)
                worth = _ranked(few, usual, HEADS, PADDED, CAUTION)
            mask = number < candidates
            share = tl.where(mask, tl.exp(sharp * (worth - top)) / total, 0.0)
            at = (plan * candidates + number)[:, None] * SIZE + column[None, :]
            window += tl.sum(share[:, None] * tl.load(windows + at, mask=mask[:, None] & right[None, :], other=0.0), 0)
    else:
        window = tl.load(windows + (plan * candidates + best) * SIZE + column, mask=right, other=0.0)
    tl.store(brief + plan * length + column, window, mask=right)
