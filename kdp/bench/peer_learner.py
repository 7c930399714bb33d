"""A peer's learner: d3rlpy's networks, losses and optimisers, and a step of training for several seeds at once."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from kdp.bench.peer_settings import Peer
from kdp.checkpoint import load_tensors
from kdp.errors import UserError
from kdp.graphs import Recorded
from kdp.train import GRAPH_AFTER


def d3rlpy() -> Any:
    """The library. Gym prints a notice when it is imported, which is kept quiet; d3rlpy lowers the precision of matrix
    products for the whole process where there is a GPU, which is undone."""
    precision = torch.get_float32_matmul_precision()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            library = importlib.import_module("d3rlpy")
    except ImportError as error:
        raise UserError(f'peers are trained by d3rlpy ({error}). Try `pip install "kdp[peers]"`.') from error
    torch.set_float32_matmul_precision(precision)
    return library


def algorithm_of(settings: Peer, task: str, sizes: tuple[int, int], device: str) -> Any:
    """d3rlpy's learner with networks for (d_s, d_a)."""
    library = d3rlpy()
    encoder = library.models.VectorEncoderFactory
    actor, critic = encoder([*settings.hidden]), encoder([*settings.hidden], use_layer_norm=settings.critic_norm)
    parts = {"actor_encoder_factory": actor, "critic_encoder_factory": critic}
    if settings.algorithm == "IQL":
        parts["value_encoder_factory"] = encoder([*settings.hidden])
    penalty = dict(zip(("actor_beta", "critic_beta"), settings.penalties.get(task, ()), strict=False))
    rates = {"actor_learning_rate": settings.lr, "critic_learning_rate": settings.lr, "batch_size": settings.batch}
    config = getattr(library.algos, f"{settings.algorithm}Config")
    algorithm = config(**parts, **rates, **settings.own, **penalty).create(device=device)
    algorithm.create_impl((sizes[0],), sizes[1])
    _first_weights(algorithm.impl.modules, settings.weights)
    return algorithm


@torch.no_grad()
def _first_weights(modules: Any, how: str) -> None:
    """Begins as the authors' code does where d3rlpy does not."""
    if how == "torch":
        return
    networks = [modules.policy, *modules.q_funcs, *([modules.value_func] if hasattr(modules, "value_func") else [])]
    for network in networks:
        layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        for layer in layers:
            if how == "orthogonal":
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
            else:
                nn.init.constant_(layer.bias, 0.1)
        if how == "small":
            width = 1e-3 if network is modules.policy else 3e-3
            nn.init.uniform_(layers[-1].weight, -width, width)
            nn.init.uniform_(layers[-1].bias, -width, width)
    if how == "orthogonal":  # d3rlpy's deviation is exp(-5 + 7 sigmoid(parameter)); it begins at 1
        nn.init.constant_(modules.policy.get_parameter("_logstd"), math.log(5 / 2))
    modules.targ_q_funcs.load_state_dict(modules.q_funcs.state_dict())
    if hasattr(modules, "targ_policy"):
        modules.targ_policy.load_state_dict(modules.policy.state_dict())


def _critic_loss(impl: Any, batch: Any) -> Tensor:
    return impl.compute_critic_loss(batch, impl.compute_target(batch)).critic_loss


def _actor_loss(impl: Any, batch: Any) -> Tensor:
    return impl.compute_actor_loss(batch, impl.modules.policy(batch.observations)).actor_loss


class _Loss(nn.Module):
    """A loss of d3rlpy's learner, as a call of a module that has all the learner's networks: their weights can be given
    with the call."""

    def __init__(self, impl: Any, loss: Callable[[Any, Any], Tensor], sizes: tuple[int, int], device: str):
        super().__init__()
        self.networks, self.impl, self.loss = _networks(impl), impl, loss
        self.batch_of, self.columns, self.device = d3rlpy().TorchMiniBatch, [*sizes, 1, *sizes, 1], device

    def forward(self, rows: Tensor) -> Tensor:
        """Rows of the table (B,...) -> ()."""
        before, action, reward, after, next_action, over = rows.split(self.columns, 1)
        batch = self.batch_of(
            observations=before,
            actions=action,
            rewards=reward,
            next_observations=after,
            next_actions=next_action,
            returns_to_go=torch.zeros_like(reward),
            terminals=over,
            intervals=torch.ones_like(reward),
            device=self.device,
        )
        return self.loss(self.impl, batch)


def _networks(impl: Any) -> nn.ModuleDict:
    return nn.ModuleDict(impl.modules.get_torch_modules())


def _make_mappable(impl: Any) -> None:
    """Two lines of d3rlpy's keep its losses from being mapped over seeds, and are replaced: the critics' errors are
    added up in place, in a number that has no seeds, and a policy's spread must be an `nn.Parameter`."""
    critics, policy, output = impl._q_func_forwarder, impl.modules.policy, d3rlpy().models.torch.ActionOutput

    def errors(**told: Any) -> Tensor:
        return sum(critic.compute_error(**told, reduction="none").mean() for critic in critics.forwarders)

    def act(observations: Tensor) -> Any:
        mean, low, high = policy._mu(policy._encoder(observations)), policy._min_logstd, policy._max_logstd
        return output(mean, mean.tanh(), low + policy._logstd.sigmoid() * (high - low))

    critics.compute_error = errors
    if getattr(policy, "_use_std_parameter", False):
        policy.forward = act


def _turned(weight: Tensor) -> Tensor:
    """Matrices of a stack (R,n,m) are kept turned, (R,m,n): so they are multiplied by, and so come their gradients,
    which then need no copy."""
    return weight.mT if weight.dim() == 3 else weight


class _Part:
    """Those weights of a stack that one of d3rlpy's optimisers has, its like for them all, and what they learn from."""

    def __init__(self, loss: _Loss, optimizer: torch.optim.Optimizer, stack: dict[str, Tensor], fuse: bool):
        names = {parameter: name for name, parameter in loss.networks.named_parameters()}
        learn = {names[parameter] for group in optimizer.param_groups for parameter in group["params"]}
        self.stack, self.weights = stack, {name: weight for name, weight in stack.items() if name in learn}

        def one(weights: dict[str, Tensor], rows: Tensor) -> Tensor:
            return functional_call(loss, weights, (rows,))

        losses = vmap(one, randomness="different")
        self.losses = torch.compile(losses, dynamic=False, fullgraph=True) if fuse else losses
        options = optimizer.defaults | {"fused": True}
        if torch.device(loss.device).type == "cuda":
            options |= {"capturable": True, "lr": torch.tensor(options["lr"], device=loss.device)}
        self.optimizer = type(optimizer)([*self.weights.values()], **options)

    def step(self, rows: Tensor) -> Tensor:
        """-> (R,) the losses; each seed's weights follow their own."""
        given = {k: weight if k in self.weights else weight.detach() for k, weight in self.stack.items()}
        losses = self.losses({f"networks.{k}": _turned(weight) for k, weight in given.items()}, rows)
        slopes = torch.autograd.grad(losses.sum(), [*self.weights.values()])
        for weight, slope in zip(self.weights.values(), slopes, strict=True):
            weight.grad = slope.contiguous()  # as the weights are: a fused optimiser takes no other
        self.optimizer.step()
        return losses.detach()

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


class Update:
    """One step of training of R seeds: d3rlpy's `update`, mapped over their weights (R,...), and without the logging,
    which waits for the GPU. There the whole of a step, from the third on, is a CUDA graph: one for steps with the
    actor, one for those without."""

    def __init__(
        self,
        impls: Sequence[Any],
        settings: Peer,
        table: Tensor,
        sizes: tuple[int, int],
        steps: int,
        device: str,
        fuse: bool = False,
    ):
        self.table, self.steps, self.settings = table.to(device), steps, settings
        stack, _ = stack_module_state([_networks(impl) for impl in impls])
        self.weights = {
            name: _turned(weight).detach().clone(memory_format=torch.contiguous_format).requires_grad_()
            for name, weight in stack.items()
        }
        if fuse:
            torch.compiler.reset()  # to it all stacks are one function, and that is compiled a few times only
        _make_mappable(impls[0])
        modules = impls[0].modules
        self.critic, self.actor = (
            _Part(_Loss(impls[0], loss, sizes, device), wrapper.optim, self.weights, fuse)
            for loss, wrapper in ((_critic_loss, modules.critic_optim), (_actor_loss, modules.actor_optim))
        )
        followed = {name: name.removeprefix("targ_") for name in self.weights if name.startswith("targ_")}
        self.targets, self.sources = ([self.weights[name] for name in some] for some in (followed, followed.values()))
        self.delay = settings.own.get("update_actor_interval", 1)
        self.graphed, self.graphs, self.calls = torch.device(device).type == "cuda", dict[bool, Recorded](), 0

    def __call__(self, step: int, index: Tensor) -> Tensor:
        """Rows of the table (R,B) -> (R,) the critics' losses; on a GPU, until the next call."""
        with_actor = step % self.delay == 0
        if self.settings.cosine:
            self.actor.set_rate(self.settings.lr * 0.5 * (1 + math.cos(math.pi * step / self.steps)))
        self.calls += 1
        if with_actor in self.graphs:
            return self.graphs[with_actor](index)
        if self.graphed and self.calls > GRAPH_AFTER:
            try:
                graph = self.graphs[with_actor] = Recorded(partial(self._step, with_actor), [index])
                return graph.first
            except RuntimeError as error:
                warnings.warn(f"no CUDA graph of a peer's step, which is launched one by one: {error}", stacklevel=2)
                self.graphed = False
        return self._step(with_actor, index)

    def _step(self, with_actor: bool, index: Tensor) -> Tensor:
        rows = self.table[index]
        losses = self.critic.step(rows)
        if with_actor:
            self.actor.step(rows)
            with torch.no_grad():
                torch._foreach_lerp_(self.targets, self.sources, self.settings.own["tau"])
        return losses

    def networks(self, number: int) -> dict[str, Tensor]:
        """The weights of one seed's networks, as d3rlpy has them."""
        return {name: _turned(weight)[number].detach() for name, weight in self.weights.items()}

    def state(self) -> dict[str, Tensor]:
        """All that going on needs."""
        tensors = {f"networks/{name}": weight for name, weight in self.weights.items()}
        for name, part in (("actor", self.actor), ("critic", self.critic)):
            for number, state in part.optimizer.state_dict()["state"].items():
                tensors |= {f"{name} optimizer/{number}/{k}": v for k, v in state.items()}
        return tensors

    def restore(self, path: Path) -> tuple[int, float]:
        """-> the steps done and the seconds that they took."""
        tensors, about = load_tensors(path)
        try:
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(tensors[f"networks/{name}"])
        except (KeyError, RuntimeError) as error:
            raise UserError(f"{path} does not fit this peer's networks ({error}); remove it.") from error
        for name, part in (("actor", self.actor), ("critic", self.critic)):
            states: dict[int, dict[str, Tensor]] = {}
            for key, tensor in tensors.items():
                if key.startswith(f"{name} optimizer/"):
                    _, number, what = key.split("/")
                    states.setdefault(int(number), {})[what] = tensor
            groups = part.optimizer.state_dict()["param_groups"]
            part.optimizer.load_state_dict({"state": states, "param_groups": groups})
        return about["step"], about["seconds"]
