"""Runs that differ in nothing but their seed, trained together: each step is one call for all of them, which a GPU that
small networks leave idle hardly notices. They share a clock and the table that batches are drawn from, and end as
ordinary runs."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from kdp.checkpoint import load_tensors, save_json, save_tensors
from kdp.config import RunConfig
from kdp.domains import Domain, find_domain
from kdp.errors import UserError
from kdp.parts import Parts, assemble, build_learner, keep_within
from kdp.runs import CONFIG, SCORER, describe, read_config, save_inverse, train_parts
from kdp.sampler import Batch
from kdp.train import METRICS, MODEL, TRAINING, Outcome
from kdp.value import Scored, method_of
from kdp.windows import Episodes


def train_stack(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    *,
    device: str = "cpu",
    console: Console | None = None,
    domain: Domain | None = None,
    stop_after: int | None = None,
) -> Outcome:
    """Trains a run for each config into its folder. Until all are finished there is one folder for all, from which a
    stopped training goes on."""
    domain = domain or find_domain(configs[0].dataset)
    configs = [config.for_domain(domain, device) for config in configs]
    if any(replace(config, seed=0) != replace(configs[0], seed=0) for config in configs):
        raise UserError("runs that are trained together must have the same settings but for their seeds.")
    for config in configs:
        config.check()
    episodes, aside = domain.episodes(), folders[0].with_name(f"{folders[0].name}-and-{len(folders) - 1}-more")
    if not (aside / CONFIG).exists():
        save_json(aside / CONFIG, describe(configs[0], domain, episodes, device))
    elif RunConfig.from_json(read_config(aside)["config"]) != configs[0]:
        raise UserError(f"{aside} holds runs with other settings, not finished yet; remove it, or give another folder.")
    parts = together(*apart(configs, domain, episodes, device))
    outcome = train_parts(configs[0], parts, aside, resume=True, stop_after=stop_after, console=console)
    if not outcome.finished:
        return outcome
    for number, (config, folder) in enumerate(zip(configs, folders, strict=True)):
        folder.mkdir(parents=True, exist_ok=True)
        save_inverse(folder, parts.inverse)
        for part in [Path(), Path(SCORER)] if parts.scorer is not None else [Path()]:
            for file in (part / MODEL, part / TRAINING):
                tensors, about = load_tensors(aside / file)
                save_tensors(folder / file, {name: one_of(name, t, number) for name, t in tensors.items()}, about)
            shutil.copy(aside / part / METRICS, folder / part / METRICS)
        save_json(folder / CONFIG, describe(config, domain, episodes, device) | {"stacked": len(folders)})
    shutil.rmtree(aside)
    return outcome


def apart(configs: Sequence[RunConfig], domain: Domain, episodes: Episodes, device: str) -> tuple[list[Any], Parts]:
    """The learners, each from its seed, and the parts that they share: batches are as large as all of theirs."""
    goal_dims = domain.goals.dims if domain.goals else ()
    learners = [build_learner(one, episodes.state_dim, episodes.action_dim, goal_dims).to(device) for one in configs]
    samples = method_of(learners[0]).samples
    conditions = max(1, (configs[0].batch or 1) // samples)
    parts = assemble(replace(configs[0], batch=len(configs) * conditions * samples), domain, episodes, device)
    if parts.outcomes is not None:
        parts.outcomes.batch *= len(configs)
    for learner in learners:
        if parts.sampler.outcomes is not None and isinstance(learner, Scored):
            learner.value.fit_scale(parts.sampler.outcomes.returns)
        if configs[0].bounded:
            keep_within(method_of(learner), parts.sampler.windows.episodes, parts.normalizer)
    return learners, parts


def together(learners: Sequence[Any], parts: Parts) -> Parts:
    """The parts with a stack of the learners or, where their scorers learn apart, of their methods and then of them."""
    if parts.scorer is None:
        return parts._replace(learner=stacked(learners))
    return parts._replace(learner=stacked([learner.method for learner in learners]), scorer=stacked(learners))


def stacked(learners: Sequence[nn.Module]) -> nn.Module:
    """One learner whose every parameter and buffer is that of all of them, (R,...), and whose loss is the sum of
    theirs: each has its part of the batch, noise of its own, and its own gradient."""
    whole, template = copy.deepcopy(learners[0]), _Loss(copy.deepcopy(learners[0]))
    parameters, buffers = stack_module_state(list(learners))
    for name, tensor in {**parameters, **buffers}.items():
        path, _, leaf = name.rpartition(".")
        new = nn.Parameter(tensor.detach(), tensor.requires_grad) if name in parameters else tensor
        setattr(whole.get_submodule(path), leaf, new)

    def loss(batch: Batch, draws: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        row, drawn = (
            tuple(None if t is None else t.unflatten(0, (len(learners), -1)) for t in tensors)
            for tensors in (batch.tensors(), draws)
        )

        def one(state: dict[str, Tensor], *told: Any) -> tuple[Tensor, dict[str, Tensor]]:
            return functional_call(template, state, told)

        state = {f"learner.{name}": t for name, t in (*whole.named_parameters(), *whole.named_buffers())}
        axes = (0, tuple(None if t is None else 0 for t in row), (0,) * len(drawn))
        losses, metrics = vmap(one, axes)(state, row, drawn)
        return losses.sum(), {name: number.mean() for name, number in metrics.items()}

    whole.loss, whole.stacked = loss, len(learners)  # type: ignore[assignment]
    return whole


def one_of(name: str, tensor: Tensor, number: int) -> Tensor:
    """What a single run has of a stack's tensor. Units are the data's, and the optimizer counts its steps once."""
    shared = name.startswith(("normalizer.", "support.")) or name.endswith(".step")
    return tensor if shared else tensor[number]


class _Loss(nn.Module):
    """A learner whose call is its loss."""

    def __init__(self, learner: nn.Module):
        super().__init__()
        self.learner = learner

    def forward(self, row: tuple[Tensor, ...], draws: tuple[Tensor, ...]) -> Any:
        return self.learner.loss(Batch.of(*row), draws)  # type: ignore[operator]
