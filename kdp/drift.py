"""ALGORITHM 1: the drift fields and the drift loss.

A field says where a generated window should move: toward data that fits its condition, away from its own kind. The
generator is then regressed onto its own moved output, so that refinement is paid in training and a plan is one call.

Letters: B conditions, G samples of one condition, P positives (data windows) of one condition, L tokens, D token width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

EPS = 1e-6  # below this size a drift is rounding, and is not blown up

# Distances mean different things to different fields, so each has temperatures of its own (study: docs/fields.md).
TEMPERATURES = {"joint": (0.05, 0.2, 1.0), "keyed": (0.05, 0.2, 1.0), "window": (0.05, 0.2, 1.0)}
KEY_TEMPERATURE = 0.2
POSITIVES = 16


@dataclass(frozen=True)
class DriftConfig:
    """The drift field and its ablations."""

    field: Literal["joint", "keyed", "window"] = "joint"
    """joint: the key picks the neighbourhood and a window kernel shapes the drift inside it. keyed: the paper's field,
    weights from keys alone. window: the paper's ablation without keying."""
    temperatures: tuple[float, ...] = ()
    """Kernel temperatures to average over; a single one is an ablation. Default: the field's own."""
    samples: int = 4
    """G: generated windows per condition (joint)."""
    positives: int | None = None
    """P: data windows per condition, its own and its nearest in key space (joint). Default: the domain's own."""
    key_temperature: float | None = None
    """Bandwidth of the key kernel on standardised keys: whose futures count (joint). Default: the domain's own."""
    tilt: float | None = None
    """A positive that reaches the goal this many steps sooner attracts e times as much (joint, goal problems); 0: off.
    Default: the domain's own."""
    keying: bool = True
    """Ablation when off: positives are drawn at random, not by their keys (joint)."""
    sight: bool = True
    """Ablation when off: a positive may begin or end behind a wall, out of sight of the condition (joint, goal
    problems)."""
    self_negatives: bool = False
    """Ablation: a window repels itself too."""
    repulsion: bool = True
    """Ablation when off: attraction only."""
    normalize: bool = True
    """Ablation when off: the drift keeps its raw size."""
    lambda_s: float = 1.0
    """Weight of state coordinates, in the loss and in window distances."""
    lambda_a: float | None = None
    """Weight of action coordinates, in the loss and in window distances. Default: the domain's own."""

    def weight(self, free: Tensor, state_dim: int) -> Tensor:
        """free (L,D), false where clamped -> (L,D) lambda_s or lambda_a, zero where clamped."""
        weight = torch.full(free.shape, 1.0 if self.lambda_a is None else self.lambda_a)
        weight[:, :state_dim] = self.lambda_s
        return weight * free

    def scale(self) -> tuple[float, ...]:
        return self.temperatures or TEMPERATURES[self.field]

    def bandwidth(self) -> float:
        return KEY_TEMPERATURE if self.key_temperature is None else self.key_temperature


class Field(NamedTuple):
    """Where each window should move, and the story of it for the log."""

    drift: Tensor  # shaped like the generated windows, zero where clamped
    metrics: dict[str, Tensor]


def joint_field(x: Tensor, y: Tensor, log_weight: Tensor, weight: Tensor, config: DriftConfig) -> Field:
    """x (B,G,L,D) samples, y (B,P,L,D) positives, log_weight (B,P), weight (L,D) zero where clamped -> drift (B,G,L,D).

    Samples of one condition compete for its positives: a sample follows the positives that it is nearest to, and less
    so where its siblings are. Two modes behind one key both keep their followers.
    """
    metric, temperatures = weight.sqrt(), config.scale()
    log_weight = log_weight.log_softmax(1)
    log_weight = log_weight - (2 * log_weight).logsumexp(1, keepdim=True)  # in all, as many as there are in effect
    d_pos, d_neg = distances((x * metric).flatten(2), (y * metric).flatten(2), log_weight.exp())
    alone = not config.repulsion or (x.shape[1] == 1 and not config.self_negatives)
    drift, attract, repel, raw = torch.zeros_like(x), *x.new_zeros(3)
    for tau in temperatures:
        pos, neg = log_weight[:, None] - d_pos / tau, mask_self(-d_neg / tau, config)
        logits = torch.cat([pos, neg], 2)  # (B,G,P+G): a sample's ties to the data and to its siblings
        log_a = (logits.log_softmax(2) + logits.log_softmax(1).nan_to_num(-math.inf)) / 2
        # The columns do not see a positive's weight, so the square root has left half of it.
        log_pos, a_neg = log_a[..., : y.shape[1]] + log_weight[:, None] / 2, log_a[..., y.shape[1] :].exp()
        if alone:
            a_pos, a_neg = log_pos.softmax(2), torch.zeros_like(a_neg)
        else:
            a_pos = log_pos.exp()
            a_pos, a_neg = a_pos * a_neg.sum(2, keepdim=True), a_neg * a_pos.sum(2, keepdim=True)
        plus = combine(a_pos, y) - a_pos.sum(2)[..., None, None] * x
        minus = combine(a_neg, x) - a_neg.sum(2)[..., None, None] * x
        v = (plus - minus) * (weight > 0)
        size = rms(v)
        drift = drift + (v / (size + EPS) if config.normalize else v) / len(temperatures)
        attract, repel, raw = attract + rms(plus), repel + rms(minus), raw + size
    return Field(drift, story(attract, repel, raw, len(temperatures)))


def keyed_field(x: Tensor, y: Tensor, x_key: Tensor, y_key: Tensor, free: Tensor, config: DriftConfig) -> Field:
    """x, y (B,L,D) generated and data windows, their keys (B,d_k), free (L,D) false where clamped -> drift (B,L,D).

    The paper's field: who is near is decided by keys alone. The keys do not contain the noise, so neither does the
    drift: it moves the mean of a condition's windows, and nothing makes them spread (docs/paper-to-code.md).
    """
    return _mean_shift(x, y, exact(x_key, y_key), exact(x_key, x_key), free, config)


def window_field(x: Tensor, y: Tensor, free: Tensor, config: DriftConfig) -> Field:
    """x, y (B,L,D), free (L,D) -> drift (B,L,D). The paper's ablation: who is near is decided by whole windows."""
    flat_x, flat_y = x.flatten(1), y.flatten(1)
    return _mean_shift(x, y, exact(flat_x, flat_y), exact(flat_x, flat_x), free, config)


def _mean_shift(x: Tensor, y: Tensor, d_pos: Tensor, d_neg: Tensor, free: Tensor, config: DriftConfig) -> Field:
    drift, attract, repel = torch.zeros_like(x), *x.new_zeros(2)
    for tau in config.scale():  # Alg. 1, l. 5
        w_pos = (-d_pos / tau).softmax(1)  # l. 6
        w_neg = mask_self(-d_neg / tau, config).softmax(1).nan_to_num(0.0)  # l. 3 and 7
        mu_pos, mu_neg = combine(w_pos, y), combine(w_neg, x)  # l. 8
        drift = drift + (mu_pos - mu_neg if config.repulsion else mu_pos) / len(config.scale())  # l. 9
        attract, repel = attract + rms(mu_pos - x), repel + rms(mu_neg - x)
    drift = drift * free  # l. 11
    raw = rms(drift)
    if config.normalize:  # Eq. 17, sample by sample
        drift = drift / (drift.square().mean((1, 2), keepdim=True).sqrt() + EPS)
    return Field(drift, story(attract, repel, raw * len(config.scale()), len(config.scale())))


def ascend(field: Field, slope: Tensor, size: Tensor, where: Tensor, share: float) -> Field:
    """The field and, on the coordinates `where` (L,D), a way up J: dJ/dx (B,G,L,D), at `share` of the drift's own size
    there. `size` () is that of dJ/dx; where a slope is not to be trusted it may come smaller than it says.

    It is the share that decides how far plans leave the data, whatever the units of J."""
    own = (field.drift.square() * where).sum() / where.expand_as(slope).sum()
    up = share * own.sqrt() * slope / (size + EPS) * where
    return Field(field.drift + up, field.metrics | {"drift/ascent": rms(up)})


def drift_loss(x: Tensor, field: Field, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """x (...,L,D) clamped output of the generator -> its weighted distance to where the field would move it (l. 12-15).

    No gradient flows through the target; the drift is zero on clamped coordinates, so the target is clamped as x is.
    """
    target = (x + field.drift).detach()
    return (weight * (x - target).square()).mean(), field.metrics


def distances(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x (B,G,N), y (B,P,N) that count weight (B,P) -> d_pos (B,G,P) and d_neg (B,G,G), both over their common mean in
    each condition."""
    d_pos, d_neg, samples = exact(x, y), exact(x, x), x.shape[1]
    total = (d_pos * weight[:, None]).sum((1, 2)) + d_neg.sum((1, 2))
    mean = (total / (samples * (weight.sum(1) + samples - 1)) + EPS)[:, None, None]
    return d_pos / mean, d_neg / mean


def exact(x: Tensor, y: Tensor) -> Tensor:
    """Distances without the shortcut through a matrix product, which loses the small ones."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def mask_self(logits: Tensor, config: DriftConfig) -> Tensor:
    """logits (...,N,N) -> the same with nothing on the diagonal: a window does not repel itself."""
    if config.self_negatives:
        return logits
    return logits.masked_fill(torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device), -math.inf)


def combine(weight: Tensor, windows: Tensor) -> Tensor:
    """weight (...,N,M), windows (...,M,L,D) -> weighted sums (...,N,L,D)."""
    return (weight @ windows.flatten(-2)).unflatten(-1, windows.shape[-2:])


def rms(v: Tensor) -> Tensor:
    return v.square().mean().sqrt()


def story(attract: Tensor, repel: Tensor, raw: Tensor, count: int) -> dict[str, Tensor]:
    """The log's numbers; every name is explained in docs/metrics.md."""
    return {"drift/rms": raw / count, "drift/attract": attract / count, "drift/repel": repel / count}
