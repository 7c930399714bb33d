"""A whole plan as an ONNX graph, and by onnxruntime."""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kdp.backends.runtimes import INPUTS, OUTPUTS, VOTES, OnnxRuntime, Runtime
from kdp.backends.whole import WholePlan, WorthScore
from kdp.networks import Critic, ResidualMLP, StackedLinear, StackedNorm, residual

OPSET = 17
AHEAD = 8  # candidates: what an MLP draws of them in the 0.05 to 0.1 ms that waking a thread takes


def write_onnx(whole: WholePlan, path: Path, int8: bool = False) -> None:
    """The graph of one plan at a time (N = 1); the number of candidates K is left open. `int8`: its products are to be
    rounded, so they stay standardised, and units and clamp come after them.

    By PyTorch's tracing exporter: it needs no further package, and names every node after its module.
    """
    told = whole.example(candidates=3)
    graph = Lean(whole, int8).eval()
    names = INPUTS[: len(told)]
    axis = 2 if told[1].dim() == 5 else 1  # in noise of many steps, the steps come first
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            told,
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(names),
            output_names=[*OUTPUTS, VOTES],
            dynamic_axes={"noise": {axis: "K"}, "candidates": {1: "K"}, "scores": {1: "K"}, "votes": {2: "K"}},
        )


class Lean(nn.Module):
    """A whole plan of one environment, and votes (heads,1,K), from which some of the candidates can be ranked together
    with others.

    The same numbers in fewer operations: K candidates are the rows of a matrix, what they share is one row, which
    products begin from in place of a bias, and units and clamp are multiplied into the layers beside them.
    """

    def __init__(self, whole: WholePlan, int8: bool = False):
        super().__init__()
        self.whole = whole = copy.deepcopy(whole).requires_grad_(False)  # whose networks are replaced
        self.generator = self.score = None
        if is_short(whole):
            self.generator = Windows(whole.method.generator, whole, int8)  # its method only draws its noise, and clamps
        else:
            for parent in list(whole.modules()):
                for name, child in parent.named_children():
                    if isinstance(child, ResidualMLP):
                        setattr(parent, name, Matrices(child))
        if isinstance(whole.score, WorthScore):
            self.score = Votes(whole.score, whole)

    def forward(self, observation: Tensor, noise: Tensor, goal: Tensor | None = None) -> tuple[Tensor, ...]:
        condition, shape = self.whole.condition(observation, goal), (self.whole.tokens, self.whole.width)
        if self.generator is None:
            drawn = noise.unbind(0) if noise.dim() == 5 else noise  # of many steps, split once for all of them
            windows = self.whole.in_units(self.whole.method.decode(drawn, condition)).reshape(-1, shape[0] * shape[1])
        else:
            windows = self.generator(noise, condition.vector())
        candidates = windows.reshape(1, -1, *shape)
        votes = self.whole.score(candidates, candidates, goal) if self.score is None else self.score(windows)
        scores = self.ranked(votes)
        return candidates, scores, scores.argmax(1), votes

    def ranked(self, votes: Tensor) -> Tensor:
        """value.ranked, in fewer operations."""
        if len(votes) == 1:
            return votes[0]
        worth = votes.mean(0)
        if not self.whole.caution:
            return worth
        apart = votes - worth
        spread = (apart - apart.mean(-1, keepdim=True)).norm(dim=0)
        return worth - self.whole.caution / (len(votes) - 1) ** 0.5 * spread


def is_short(whole: WholePlan) -> bool:
    """Whether a plan is one call of an MLP."""
    network, noise = (getattr(whole.method, name, None) for name in ("generator", "noise"))
    return isinstance(network, ResidualMLP) and isinstance(noise, int)


def head_start(whole: WholePlan) -> int:
    """Candidates that are through before another thread begins: in a long plan not one."""
    return AHEAD if is_short(whole) else 0


class Product(nn.Module):
    """x (K,I) -> (K,O): a linear layer, which may be told its bias (1,O)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor
        self.register_buffer("weight", weight.contiguous())  # (I,O)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.addmm(self.bias if bias is None else bias, x, self.weight)


class Matrices(nn.Module):
    """A networks.ResidualMLP, taken apart, for one plan: noise (...,K,Z), condition (...,1,C) -> (...,K,out), where ...
    are ones."""

    def __init__(self, network: ResidualMLP):
        super().__init__()
        self.noise, self.from_noise = network.from_noise.in_features, Product(network.from_noise.weight.t())
        self.from_condition, self.blocks, self.head = network.from_condition, network.blocks, network.head
        self.trunk = network.trunk
        before: Any = self.trunk[-1] if len(self.trunk) else self.from_condition
        last: Any = before[3]  # both end so
        last.bias += network.from_noise.bias

    def forward(self, noise: Tensor, condition: Tensor) -> Tensor:
        out = self.head(self.stream(noise, condition.reshape(1, -1)))
        return out.reshape(*[1] * (noise.dim() - 2), -1, out.shape[-1])

    def stream(self, noise: Tensor, condition: Tensor) -> Tensor:
        """noise (...,K,Z), condition (1,C) -> what comes out of the blocks (K,width)."""
        told = residual(self.trunk, self.from_condition(condition))
        return residual(self.blocks, self.from_noise(noise.reshape(-1, self.noise), told))


class Windows(Matrices):
    """noise (1,K,Z), condition (1,C) -> windows (K,L*D), clamped and in the dataset's units, by a last layer that has
    both in it: a clamped coordinate has no weight there, and enters by the bias that all candidates share."""

    def __init__(self, network: ResidualMLP, whole: WholePlan, int8: bool):
        super().__init__(network)
        clamp, clamped = whole.method.clamp, whole.method.clamped
        mean, std = whole.token_mean.repeat(whole.tokens), whole.token_std.repeat(whole.tokens)
        free, source = clamped.free.flatten(), nn.functional.one_hot(clamped.source.flatten(), clamp.told)
        last: Any = self.head[1]
        self.known = Product((source * (std * ~free)[:, None]).t(), last.bias * std * free + mean)
        self.std = std if int8 else None
        self.last = Product(last.weight.t() * free * (1 if int8 else std), torch.zeros_like(mean))
        self.ends: list[Tensor] = []  # (L*D,) what it is kept between
        if clamped.low is not None:
            self.ends = [end.flatten() * std + mean for end in (clamped.low, clamped.high)]

    def forward(self, noise: Tensor, condition: Tensor) -> Tensor:
        h, known = self.head[0](self.stream(noise, condition)), self.known(condition)
        x = self.last(h, known) if self.std is None else self.last(h) * self.std + known
        return torch.minimum(torch.maximum(x, self.ends[0]), self.ends[1]) if self.ends else x


class Votes(nn.Module):
    """WorthScore of windows (K,L*D) in the dataset's units -> votes (heads,1,K)."""

    def __init__(self, score: WorthScore, whole: WholePlan):
        super().__init__()
        self.seen = score.told if score.critic else whole.tokens * whole.width
        mean, std = (part.repeat(whole.tokens)[: self.seen] for part in (whole.token_mean, whole.token_std))
        self.heads = nn.ModuleList(Head(score.network, at, mean, std) for at in range(score.heads))

    def forward(self, windows: Tensor) -> Tensor:
        seen = windows[:, : self.seen]
        return torch.cat([head(seen) for head in self.heads])[:, None]


class Head(nn.Module):
    """One head of a critic, of what it sees in the dataset's units (K,seen) -> (1,K). Of plain layers, which runtimes
    have fused operations for."""

    def __init__(self, network: Critic, at: int, mean: Tensor, std: Tensor):
        super().__init__()
        first, *hidden, self.last = (_plain(module, at) for module in network.stack)
        weight = first.weight / std[:, None]
        self.hidden = nn.Sequential(Product(weight, first.bias - mean @ weight), *hidden)

    def forward(self, seen: Tensor) -> Tensor:
        return torch.addmm(self.last.bias, self.last.weight.t(), self.hidden(seen).t())  # a row: sooner than a column


def _plain(module: nn.Module, at: int) -> Any:
    """One head's layer."""
    if isinstance(module, StackedLinear):
        return Product(module.weight[at], module.bias[at, 0])
    if isinstance(module, StackedNorm):
        norm = nn.LayerNorm(module.width).requires_grad_(False)
        norm.weight.copy_(module.scale[at, 0])
        norm.bias.copy_(module.shift[at, 0])
        return norm
    return module


class Through:
    """A function of arrays as one of tensors; none are copied. A planner that has arrays may call `runtime` itself."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime

    def __call__(self, *told: Tensor) -> tuple[Tensor, ...]:
        made = self.runtime(*(tensor.contiguous().numpy() for tensor in told))
        return tuple(torch.from_numpy(array) for array in made)


def by_onnxruntime(whole: WholePlan) -> Through:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.onnx"
        write_onnx(whole, path)
        return Through(OnnxRuntime(path, torch.get_num_threads(), whole.caution, head_start(whole)))
