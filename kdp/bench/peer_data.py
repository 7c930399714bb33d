"""What peers learn from: our episodes as transitions, in the units of their training."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kdp.bench.peer_settings import Peer
from kdp.errors import UserError
from kdp.windows import Episodes

EPSILON = 1e-3  # added to a state's standard deviation: utils.py of TD3+BC's code


class Transitions(NamedTuple):
    """M steps and what came after them."""

    observations: Tensor  # (M,d_s)
    actions: Tensor  # (M,d_a)
    rewards: Tensor  # (M,1)
    next_observations: Tensor  # (M,d_s) zero after a terminal
    next_actions: Tensor  # (M,d_a) likewise
    terminals: Tensor  # (M,1) 1.0 where nothing came after
    episode: Tensor  # (M,)

    def returns(self) -> Tensor:
        """Sums of rewards, one for each episode that has transitions."""
        _, which = self.episode.unique(return_inverse=True)
        return torch.zeros(int(which.max()) + 1, dtype=torch.float64).index_add(0, which, self.rewards[:, 0].double())


def transitions(episodes: Episodes) -> Transitions:
    """Every step of which it is known what came after, as in d3rlpy's buffers and D4RL's `qlearning_dataset`: a value
    is not carried over a terminal. It is carried over a time limit, but what was seen after the last step before one is
    not in the data, so that step is left out."""
    episodes = episodes.to("cpu")
    count, last = len(episodes), episodes.starts[1:] - 1
    keep = torch.ones(count, dtype=torch.bool)
    keep[last] = episodes.terminals[last]
    index = keep.nonzero()[:, 0]
    if not len(index):
        raise UserError(f"{episodes.name} has no step that is followed by another, or by a real end.")
    over = episodes.terminals[index]
    after = (index + 1).clamp_max(count - 1)
    return Transitions(
        episodes.observations[index],
        episodes.actions[index],
        episodes.rewards[index, None],
        episodes.observations[after].masked_fill(over[:, None], 0.0),
        episodes.actions[after].masked_fill(over[:, None], 0.0),
        over[:, None].float(),
        torch.searchsorted(episodes.starts, index, right=True) - 1,
    )


def units(settings: Peer, data: Transitions) -> tuple[Tensor, Tensor]:
    """The mean and the scale by which states are standardised: 0 and 1 where they are not."""
    states = data.observations.double()
    if not settings.standard:
        return torch.zeros(states.shape[1]), torch.ones(states.shape[1])
    return states.mean(0).float(), (states.std(0, correction=0) + EPSILON).float()


def table(settings: Peer, data: Transitions, mean: Tensor, scale: Tensor, name: str) -> Tensor:
    """(M, 2 d_s + 2 d_a + 2) all transitions in the units of training, a row each: a batch is one look-up."""
    rewards = data.rewards
    if settings.returns is not None:
        returns = data.returns()
        span = float(returns.max() - returns.min())
        if not span > 0:
            raise UserError(f"{name} needs episodes of different returns; all of these have {float(returns[0]):g}.")
        rewards = rewards * (settings.returns / span)
    before, after = ((states - mean) / scale for states in (data.observations, data.next_observations))
    return torch.cat([before, data.actions, rewards, after, data.next_actions, data.terminals], 1)
