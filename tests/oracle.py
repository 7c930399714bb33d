"""The drift fields again, from the paper and the method page: float64, one number at a time.

Slow on purpose and with nothing in common with kdp/drift.py but the rules and the epsilon that every division by a
size adds to it. Arrays are numpy, shaped as there.
"""

from __future__ import annotations

import math

import numpy as np

from kdp.drift import EPS


def keyed_oracle(x, y, x_key, y_key, free, temperatures, self_negatives=False, repulsion=True, normalize=True):
    """Algorithm 1. A batch of one has nobody to be repelled by: its mu- is an empty sum, zero. Without repulsion the
    drift is mu+ itself, which is line 9 with its second term left out."""
    batch, tokens, width = x.shape
    drift = np.zeros((batch, tokens, width))
    for tau in temperatures:
        for i in range(batch):
            w_pos = _softmax([-_distance(x_key[i], y_key[j]) / tau for j in range(batch)])
            near = [-_distance(x_key[i], x_key[j]) / tau for j in range(batch)]
            if not self_negatives:
                near[i] = -math.inf
            w_neg = _softmax(near)
            for t in range(tokens):
                for d in range(width):
                    mu_pos = sum(w_pos[j] * y[j, t, d] for j in range(batch))
                    mu_neg = sum(w_neg[j] * x[j, t, d] for j in range(batch)) if repulsion else 0.0
                    drift[i, t, d] += (mu_pos - mu_neg) / len(temperatures)
    for i in range(batch):
        for t in range(tokens):
            for d in range(width):
                if not free[t, d]:
                    drift[i, t, d] = 0.0
        if normalize:  # each sample by its own size
            drift[i] = drift[i] / (_rms(drift[i]) + EPS)
    return drift


def window_oracle(x, y, free, temperatures, self_negatives=False, repulsion=True, normalize=True):
    """Algorithm 1 with whole windows, clamped coordinates and all, in the place of keys."""
    flat_x, flat_y = [window.ravel() for window in x], [window.ravel() for window in y]
    return keyed_oracle(x, y, flat_x, flat_y, free, temperatures, self_negatives, repulsion, normalize)


def joint_oracle(x, y, log_weight, weight, temperatures, self_negatives=False, repulsion=True, normalize=True):
    """The method page's steps 1 to 4.

    Without repulsion a sample goes to the mean of the positives under its weights A+, which are still shared out among
    positives and siblings: V = sum A+ y / sum A+ - x. So does a sample that nobody repels, itself included.
    """
    conditions, group, tokens, width = x.shape
    drift = np.zeros(x.shape)
    for tau in temperatures:
        v = np.zeros(x.shape)
        for b in range(conditions):
            a_pos, a_neg = _two_sided(x[b], y[b], log_weight[b], weight, tau, self_negatives)
            for i in range(group):
                sum_pos, sum_neg = sum(a_pos[i]), sum(a_neg[i])
                for t in range(tokens):
                    for d in range(width):
                        to_data = sum(a_pos[i][j] * y[b, j, t, d] for j in range(len(y[b])))
                        to_kin = sum(a_neg[i][j] * x[b, j, t, d] for j in range(group))
                        if weight[t, d] == 0:
                            continue
                        if not repulsion or (group == 1 and not self_negatives):
                            v[b, i, t, d] = to_data / sum_pos - x[b, i, t, d]
                        else:
                            v[b, i, t, d] = to_data * sum_neg - to_kin * sum_pos
        drift += (v / (_rms(v) + EPS) if normalize else v) / len(temperatures)
    return drift


def _two_sided(x, y, log_weight, weight, tau, self_negatives):
    """One condition: x (G,L,D), y (P,L,D) -> A+ (G,P) and A- (G,G), as lists. Weights add up to the number of positives
    that there are in effect: all of them if they weigh the same, one if one of them has all the weight. A column does
    not see a positive's weight, so that the square root takes half of it from the row and half from outside."""
    group, positives = len(x), len(y)
    x, y = ([(window * np.sqrt(weight)).ravel() for window in windows] for windows in (x, y))
    d_pos = [[_distance(x[i], y[j]) for j in range(positives)] for i in range(group)]
    d_neg = [[_distance(x[i], x[j]) for j in range(group)] for i in range(group)]
    share = _softmax(list(log_weight))
    effective = 1 / sum(w * w for w in share)
    count = [w * effective for w in share]
    total = sum(count[j] * d_pos[i][j] for i in range(group) for j in range(positives))
    total += sum(d_neg[i][j] for i in range(group) for j in range(group) if i != j)
    scale = total / (group * effective + group * (group - 1)) + EPS
    log_count = [math.log(c) if c > 0 else -math.inf for c in count]
    logits = [
        [log_count[j] - d_pos[i][j] / scale / tau for j in range(positives)]
        + [-math.inf if i == j and not self_negatives else -d_neg[i][j] / scale / tau for j in range(group)]
        for i in range(group)
    ]
    rows = [_softmax(row) for row in logits]
    columns = [_softmax([logits[i][j] for i in range(group)]) for j in range(positives + group)]
    outside = count + [1.0] * group
    a = [[math.sqrt(rows[i][j] * columns[j][i] * outside[j]) for j in range(positives + group)] for i in range(group)]
    return [row[:positives] for row in a], [row[positives:] for row in a]


def _distance(a, b) -> float:
    return math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True)))


def _softmax(logits: list[float]) -> list[float]:
    """Where everything is masked, nothing has weight."""
    top = max(logits)
    if top == -math.inf:
        return [0.0] * len(logits)
    powers = [math.exp(logit - top) for logit in logits]
    return [power / sum(powers) for power in powers]


def _rms(v: np.ndarray) -> float:
    return math.sqrt(sum(float(n) ** 2 for n in v.ravel()) / v.size)
