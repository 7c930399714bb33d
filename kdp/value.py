"""What plans are worth: the learned scorers J, and what a drift field takes from them.

`return`: the paper's, a model of the discounted return that follows a window. `critic`: an ensemble of Q(s, a) of the
first action; its targets are an expectile V(s) (IQL: nothing but the data's actions are ever asked about) or Q of the
mean of the generator's next actions. All numbers inside are standardised by the mean and spread of the data's returns.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from kdp.keys import Clamp, Condition
from kdp.networks import Critic
from kdp.normalize import Normalizer
from kdp.sampler import Batch

EPS = 1e-6
TARGET_RATE = 0.005  # of the critic that targets are taken from, in every step


@dataclass(frozen=True)
class ValueConfig:
    """The learned scorer, and how much of it is in the field."""

    scorer: Literal["none", "return", "critic"] | None = None
    """none; return: a model of the return after a window (the paper's); critic: Q of the first action. Default: the
    domain's own."""
    apart: int | None = None
    """Steps of the scorer's own training, after the generator's, which then changes no more. 0: they learn side by
    side. Default: the domain's own for a critic, else 0."""
    batch: int = 256
    """Windows in each of these steps."""
    targets: Literal["data", "generator"] = "data"
    """What the critic asks about at the next state. data: the data's actions there (IQL). generator: the mean of its
    plans' first actions, which is the behaviour without its noise (kdp)."""
    asked: int = 4
    """Plans in that mean."""
    discount: float = 0.99
    trace: float | None = None
    """What the return model learns: 1: the data's returns (the paper's). Less: λ-returns, in which what comes later is
    replaced, more and more, by what is usual from the states that were reached (kdp/traces.py). Default: the domain's
    own."""
    sees: Literal["window", "actions"] | None = None
    """What the return model looks at. window: all of it (the paper's). actions: the first state and the actions, which
    bring about what follows; a plan's later states are only what it thinks of them. Default: the domain's own."""
    steps: int = 1
    """Rewards in a target of the critic before its own estimate."""
    expectile: float = 0.5
    """Of V among the data's actions: 0.5 is their mean, 1 their best; IQL has 0.7."""
    heads: int = 8
    """Critics in the ensemble. What they disagree about counts less."""
    caution: float = 1.0
    """How many standard deviations of the ensemble are taken off its mean."""
    blend: float | None = None
    """What is followed. 0: the best of K plans. More: the mean of all K, in which a plan counts exp(blend) times as
    much for every standard deviation that it is worth more. Default: the domain's own."""
    wish: float | None = None
    """Plans are asked for a return: that which this share of the data, from such a state, stay below; 0: for none in
    particular. Default: the domain's own."""
    smooth: float | None = None
    """Noise, in standard deviations of the data, on the windows that the return model learns from: plans a little off
    the data are then not thought to be better than they are. Default: the domain's own."""
    favour: float | None = None
    """Windows of better episodes are learned from more often: those of the best exp(favour) times as often as those of
    the worst, the others by their rank (any method); 0: all alike. A scorer that learns apart learns from all alike.
    Default: the domain's own."""
    width: int = 128
    layers: int = 3
    rate: float = 3e-4
    """Peak learning rate."""
    weight_decay: float = 0.3
    """AdamW's: what follows a window is mostly chance, and is not to be learned by heart."""
    tilt: float = 0.0
    """Value in the field: a positive whose advantage is one root mean square above another's attracts exp(tilt) times
    as much, and its condition weighs as much more in the loss (kdp); 0: off."""
    ascent: float = 0.0
    """Value in the field: the drift of the first action also goes up J, by this share of its own size (kdp); 0: off."""


class Slope(NamedTuple):
    """The way up J."""

    slope: Tensor  # dJ/dx, shaped like the windows, less where the ensemble disagrees
    size: Tensor  # () its root mean square before that, over the coordinates `where`
    where: Tensor  # (L,D) those that J looks at


class Value(nn.Module):
    """Standardised windows in, standardised values out. `settle` follows every step of the optimizer."""

    mean: Tensor
    spread: Tensor

    def __init__(self, clamp: Clamp, action_dim: int, config: ValueConfig):
        super().__init__()
        self.config, self.state_dim, self.action_dim = config, clamp.state_dim, action_dim
        seen = torch.ones(clamp.tokens, clamp.width, dtype=torch.bool)
        if config.scorer == "critic":
            seen[:] = False
            seen[0, : clamp.state_dim + action_dim] = True
        elif config.sees == "actions":
            seen[1:, : clamp.state_dim] = False
        self.seen: Tensor
        self.where: Tensor
        self.register_buffer("seen", seen, persistent=False)
        self.register_buffer("where", seen & clamp.mask(), persistent=False)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))
        sizes = {"width": config.width, "layers": config.layers}
        if config.scorer == "return":
            self.returns = Critic(clamp.tokens * clamp.width, heads=config.heads, **sizes)
            self.returns.ignore(~seen.flatten())
        else:
            self.q = Critic(clamp.state_dim + action_dim, heads=config.heads, **sizes)
            self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.usual = bool(config.tilt) or (config.scorer == "critic" and config.targets != "generator")
        if self.usual:
            self.v = Critic(clamp.state_dim, heads=1, **sizes)

    def fit_scale(self, returns: Tensor) -> None:
        """Standardised from here on: these returns (N,) have mean 0 and spread 1."""
        self.mean.copy_(returns.mean())
        self.spread.copy_(returns.std().clamp_min(EPS))

    def loss(
        self, batch: Batch, action: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of the scorer; `action` (B,d_a): the generator's at the later state, where targets ask for it;
        `noise` (B,L,D) on the windows, where it is to be smooth."""
        after = batch.followed
        assert after is not None, "a scorer learns from what followed"
        if self.config.scorer == "return":
            windows = batch.windows if noise is None else batch.windows + noise
            error = self.returns((windows * self.seen).flatten(1)).to(after.returns) - self.scaled(after.returns)
            loss = error.square().mean()
            metrics = {"value/error": loss.detach()}
            if self.config.tilt:
                usual = (self.v(batch.windows[:, 0, : self.state_dim])[0] - self.scaled(after.returns)).square().mean()
                loss, metrics = loss + usual, metrics | {"value/usual": usual.detach()}
            return loss, metrics
        state, taken = batch.windows[:, 0, : self.state_dim], self.first(batch.windows)
        told = torch.cat([state, taken], -1)
        with torch.no_grad():
            if action is None:
                later = self.v(after.state)[0]
            else:
                later = self.cautious(self.target(torch.cat([after.state, action], -1)))
            goal = self.scaled(after.reward + after.discount * (later * self.spread + self.mean))
        known = after.known / after.known.mean().clamp_min(EPS)
        q = self.q(told).to(goal)
        error = ((q - goal).square() * known).mean()
        loss, numbers = error, {"error": error, "q": q.mean(), "apart": q.std(0).mean()}
        if self.usual:
            with torch.no_grad():
                best = self.cautious(self.target(told))
            surprise = best - self.v(state)[0]
            side = (self.config.expectile - (surprise < 0).float()).abs()  # the expectile above, the rest below
            numbers["expectile"] = (side * surprise.square()).mean()
            loss = error + numbers["expectile"]
        return loss, {f"value/{name}": number.detach() for name, number in numbers.items()}

    @torch.no_grad()
    def settle(self) -> None:
        """The critic of the targets follows the one that learns."""
        if self.config.scorer == "critic":
            torch._foreach_lerp_(list(self.target.parameters()), list(self.q.parameters()), TARGET_RATE)

    def advantage(self, windows: Tensor) -> Tensor:
        """windows (...,L,D) of the data -> (...) how much better they are than what is usual from their states."""
        return self.cautious(self.each(windows)) - self.v(windows[..., 0, : self.state_dim])[0]

    def each(self, windows: Tensor) -> Tensor:
        """windows (...,L,D) -> (heads,...) what each of the ensemble says."""
        return self.apart(windows.expand(self.config.heads, *windows.shape))

    def apart(self, windows: Tensor) -> Tensor:
        """windows (heads,...,L,D), one for each -> (heads,...)."""
        if self.config.scorer == "return":
            return self.returns.apart(windows.flatten(-2))
        return self.q.apart(torch.cat([windows[..., 0, : self.state_dim], self.first(windows)], -1))

    def score(self, windows: Tensor) -> Tensor:
        """windows (B,K,L,D) -> (B,K) J."""
        return ranked(self.each(windows), self.config.caution)

    def slope(self, windows: Tensor) -> Slope:
        """windows (B,G,L,D) -> the slope of J. A coordinate on whose slope the ensemble disagrees counts less, by
        mean^2 / (mean^2 + variance)."""
        x = windows.detach().expand(self.config.heads, *windows.shape)
        slopes = torch.func.grad(lambda x: self.apart(x).sum())(x)
        mean = slopes.mean(0) * self.where
        size = (mean.square().sum() / self.where.expand_as(mean).sum()).sqrt()
        if self.config.heads > 1:
            variance = (slopes - slopes.mean(0)).square().sum(0) / (len(slopes) - 1)  # much faster than slopes.var(0)
            square = mean.square()
            mean = mean * square / (square + variance + EPS**2)
        return Slope(mean, size, self.where)

    def cautious(self, each: Tensor) -> Tensor:
        """(heads,...) -> (...) a lower estimate."""
        if self.config.heads == 1:
            return each[0]
        return each.mean(0) - self.config.caution * each.std(0)

    def first(self, windows: Tensor) -> Tensor:
        return windows[..., 0, self.state_dim : self.state_dim + self.action_dim]

    def scaled(self, returns: Tensor) -> Tensor:
        return (returns - self.mean) / self.spread


def ranked(votes: Tensor, caution: float) -> Tensor:
    """(heads,B,K) what each of an ensemble says of K plans -> (B,K) J: the mean of the ensemble, less where it
    disagrees about which plan is better than which. What all K have in common does not count."""
    worth = votes.mean(0)
    if caution and len(votes) > 1:
        worth = worth - caution * (votes - votes.mean(-1, keepdim=True)).std(0)
    return worth


class Scored(nn.Module):
    """A method and its scorer. Trained side by side, the method may look at the scorer (value in the field); apart, the
    method is finished, and what learns is the scorer."""

    def __init__(self, method: nn.Module, value: Value):
        super().__init__()
        self.method, self.value, self.apart = method, value, bool(value.config.apart)
        self.pace = {"value": (value.config.rate, value.config.weight_decay)}
        self.asks = value.config.targets == "generator" and value.config.scorer == "critic"
        self.smooth = (value.config.smooth or 0.0) if value.config.scorer == "return" else 0.0

    def draws(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The method's, if it learns, and last the noise of plans that targets ask about, or that on the windows."""
        method: Any = self.method
        own = () if self.apart else method.draws(count, generator)
        if self.smooth:
            shape = (count, method.clamp.tokens, method.clamp.width)
            return (*own, self.smooth * torch.randn(shape, generator=generator, device=generator.device))
        return (*own, method.draw(count, self.value.config.asked, generator)) if self.asks else own

    def loss(self, batch: Batch, draws: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        method: Any = self.method
        action = noise = None
        if self.smooth:
            draws, noise = draws[:-1], draws[-1].to(batch.windows.device)
        if self.asks:
            assert batch.followed is not None
            draws, asked = draws[:-1], draws[-1]
            with torch.no_grad():
                later = Condition(batch.followed.state, batch.condition.goal)
                action = self.value.first(method.decode(asked.to(batch.windows.device), later)).mean(1)
        error, story = self.value.loss(batch, action, noise)
        if self.apart:
            return error, story
        loss, metrics = method.loss(batch, draws, self.value)
        return loss + error, metrics | story

    def settle(self) -> None:
        self.value.settle()


def method_of(learner: Any) -> Any:
    """The method itself, whether or not a scorer is trained beside it."""
    return learner.method if isinstance(learner, Scored) else learner


@dataclass(frozen=True)
class Worth:
    """The learned J as a scorer of candidates."""

    value: Value
    normalizer: Normalizer

    def __call__(self, windows: Tensor, goal: Tensor | None) -> Tensor:
        return self.value.score(self.normalizer.tokens(windows))
