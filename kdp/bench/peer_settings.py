"""The published settings of IQL, TD3+BC and ReBRAC, and where each number is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# ReBRAC's weights of the actor's and the critic's penalty: table of the best hyperparameters in the appendix of Tarasov
# et al. 2023, as in d3rlpy's reproduction; halfcheetah-medium-expert, which that leaves out, from CORL's configs. (CORL
# has another critic's weight for hopper-medium, 0.01, and hopper-expert, 0.1; the authors' repository agrees with the
# paper.) The narrow set is ours, a variant of halfcheetah-medium.
PENALTIES = {
    "halfcheetah-medium": (0.001, 0.01),
    "halfcheetah-medium-expert": (0.01, 0.1),
    "halfcheetah-medium-replay": (0.01, 0.001),
    "halfcheetah-expert": (0.01, 0.01),
    "halfcheetah-medium-narrow": (0.001, 0.01),
    "hopper-medium": (0.01, 0.001),
    "hopper-medium-expert": (0.1, 0.01),
    "hopper-medium-replay": (0.05, 0.5),
    "hopper-expert": (0.1, 0.001),
    "walker2d-medium": (0.05, 0.1),
    "walker2d-medium-expert": (0.01, 0.01),
    "walker2d-medium-replay": (0.05, 0.01),
    "walker2d-expert": (0.01, 0.5),
}


@dataclass(frozen=True)
class Peer:
    """A method of d3rlpy and its settings."""

    algorithm: str
    """As d3rlpy calls it."""
    hidden: tuple[int, ...]
    """Units of the layers of every network."""
    batch: int
    lr: float
    """Of every optimiser (Adam)."""
    own: Mapping[str, float]
    """Arguments of d3rlpy's config that the method has of its own."""
    cosine: bool = False
    """The actor's rate falls to zero over the training, as a cosine."""
    critic_norm: bool = False
    """LayerNorm after every hidden layer of the critics."""
    standard: bool = False
    """States are standardised."""
    returns: float | None = None
    """Rewards are scaled so that the episodes' returns span this."""
    weights: str = "torch"
    """How networks begin: as PyTorch makes them, `orthogonal` or `small` (last layers near zero)."""
    penalties: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Actor's and critic's, by task."""


COMMON = {"gamma": 0.99, "tau": 0.005, "n_critics": 2}  # of all three
NOISE = {"target_smoothing_sigma": 0.2, "target_smoothing_clip": 0.5, "update_actor_interval": 2}  # TD3's

PEERS = {
    "iql": Peer(  # Kostrikov et al. 2021, the settings for MuJoCo: appendix B, and configs/mujoco_config.py of its code
        "IQL",
        hidden=(256, 256),
        batch=256,
        lr=3e-4,
        own=COMMON | {"expectile": 0.7, "weight_temp": 3.0, "max_weight": 100.0},
        cosine=True,
        returns=1000.0,  # train_offline.py, `normalize`
        weights="orthogonal",  # common.py, `default_init`
    ),
    "td3+bc": Peer(  # Fujimoto & Gu 2021: table of hyperparameters in the appendix, and TD3_BC.py of its code
        "TD3PlusBC",
        hidden=(256, 256),
        batch=256,
        lr=3e-4,
        own=COMMON | NOISE | {"alpha": 2.5},
        standard=True,
    ),
    "rebrac": Peer(  # Tarasov et al. 2023: tables of hyperparameters in the appendix, and the configs of its code
        "ReBRAC",
        hidden=(256, 256, 256),
        batch=1024,
        lr=1e-3,
        own=COMMON | NOISE,
        critic_norm=True,
        weights="small",  # networks.py of its code, after EDAC
        penalties=PENALTIES,
    ),
}
