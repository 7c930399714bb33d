"""Plans by the Triton kernels, run by Triton's interpreter on a CPU; test_fused.py starts it in a process of its own,
with TRITON_INTERPRET=1. Prints {case: [largest errors of candidates, scores, chosen, brief]}, and the noise."""

from __future__ import annotations

import json

import torch

from kdp.backends import cuda, fused
from kdp.backends.whole import WholePlan
from kdp.drift import DriftConfig
from kdp.keys import Clamp
from kdp.methods.diffuser import Diffuser, DiffusionConfig
from kdp.methods.kdp import KDP
from kdp.networks import NetworkConfig
from kdp.normalize import Normalizer
from kdp.value import Value, ValueConfig, Worth


def whole_plan(
    scorer="critic",
    blend=0.0,
    tokens=5,
    state=5,
    action=2,
    network=None,
    value=None,
    diffusion=None,
    temperature=1.0,
    bounded=False,
) -> WholePlan:
    """Of random networks, none of whose weights is as simple as it was initialised. With `diffusion`, Diffuser's."""
    torch.manual_seed(0)
    clamp = Clamp(tokens, state + action, state, bounded=bounded)
    config = NetworkConfig(**{"kind": "mlp", "width": 32, "blocks": 2, "noise": 16} | (network or {}))
    if diffusion is None:
        method = KDP(clamp, DriftConfig(), config)
    else:
        method = Diffuser(clamp, clamp.mask().float(), DiffusionConfig(**diffusion), config)
    means, spreads = torch.randn(state + action), torch.rand(state + action) + 0.5
    normalizer = Normalizer(means[:state], spreads[:state], means[state:], spreads[state:])
    worth = None
    if scorer != "none":
        config = ValueConfig(scorer, **{"width": 32, "heads": 2} | (value or {}))
        worth = Worth(Value(clamp, action, config), normalizer)
        stir(worth.value)
    stir(method)
    if bounded:
        method.clamped.bound(torch.full((action,), -0.3), torch.full((action,), 0.2))
    method.cool(temperature)
    return WholePlan(method, normalizer, (), worth, blend).eval().requires_grad_(False)


def stir(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)


def errors(whole: WholePlan, candidates: int, count: int) -> list[float]:
    told = whole.example(candidates, count=count)
    eager, fast = cuda.answering(whole)(*told), fused.answering(whole)(*told)
    for one, other in zip(eager, fast, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
    return [float((one.double() - other.double()).abs().max()) for one, other in zip(eager, fast, strict=True)]


def drawn(whole: WholePlan, seed: int, candidates: int, count: int = 1) -> torch.Tensor:
    """The noise that the kernels draw from a seed."""
    words = torch.tensor([seed, 0], device=whole.state_mean.device)
    return fused.begun(whole, words, torch.zeros(count, len(whole.state_mean)).to(words.device), candidates)[1]


def decided(whole: WholePlan, candidates: int, count: int, seed: int = 2**63 - 1) -> list[float]:
    """The same errors, of a plan told and answering as mapped.py has it."""
    here = whole.example(candidates, count=count)[0]
    candidates_, scores, chosen, brief = cuda.answering(whole)(here, drawn(whole, seed, candidates, count))
    made, answer = torch.full_like(candidates_, torch.nan), torch.full_like(brief, torch.nan)
    fused.deciding(whole)(torch.tensor([seed, made.data_ptr()]), here, answer, candidates)
    errors = (candidates_ - made, scores - answer[:, -1 - candidates : -1], chosen - answer[:, -1], brief - answer)
    return [float(error.abs().max()) for error in errors]


def varied(constants: dict[str, object], measure=errors) -> list[float]:
    """Errors with other constants of the module."""
    usual = {name: getattr(fused, name) for name in constants}
    try:
        for name, constant in constants.items():
            setattr(fused, name, constant)
        wholes = (whole_plan(), whole_plan(blend=1.0), whole_plan(diffusion={"steps": 2}))
        return [max(of_each) for of_each in zip(*(measure(whole, 20, 2) for whole in wholes), strict=True)]
    finally:
        for name, constant in usual.items():
            setattr(fused, name, constant)


VARIANTS = {"usual": {}, "the libraries' products": {"MANY": 0}}
CASES = {
    f"{scorer}, blend {blend}, K {k}, N {n}": ({"scorer": scorer, "blend": blend}, k, n)
    for scorer in ("critic", "return", "none")
    for blend in (0.0, 2.0)
    for k, n in ((1, 1), (5, 3), (64, 1))
} | {
    "many rows": ({}, 100, 3),
    "odd sizes": (
        {"tokens": 1, "state": 20, "action": 17, "network": {"width": 24, "noise": 3}, "value": {"width": 40}},
        5,
        1,
    ),
    "more told than a step of the kernel": ({"state": 35, "action": 4}, 5, 2),
    "more told than a critic's first layer is made anew for": ({"tokens": 2, "state": 70}, 3, 1),
    "more told than a product is deep": ({"scorer": "return", "tokens": 40}, 3, 1),
    "one head": ({"value": {"heads": 1}, "blend": 1.0}, 6, 1),
    "three heads": ({"value": {"heads": 3, "caution": 2.0}}, 6, 1),
    "the usual eight heads": (
        {"value": {"heads": 8, "width": 128}, "scorer": "return", "blend": 3.5, "network": {"trunk": 2, "blocks": 1}},
        64,
        1,
    ),
    "no caution": ({"value": {"caution": 0.0}}, 6, 1),
    "one layer": ({"value": {"layers": 1}}, 6, 1),
    "two layers": ({"value": {"layers": 2}}, 6, 1),
    "one candidate short of a tile": ({"blend": 0.5}, 15, 2),
    "ddpm": ({"diffusion": {"steps": 3}}, 5, 2),
    "ddpm of one step": ({"diffusion": {"steps": 1}}, 5, 1),
    "ddpm, of the noise": ({"diffusion": {"steps": 3, "predict": "epsilon", "clip": 1.0}}, 20, 1),
    "ddim": ({"diffusion": {"steps": 4, "sampler": "ddim", "sampling_steps": 2}, "blend": 1.0}, 3, 1),
    "ddpm, odd sizes": (
        {
            "diffusion": {"steps": 2},
            "tokens": 45,
            "state": 3,
            "action": 4,
            "network": {"width": 24},
            "scorer": "return",
        },
        7,
        1,
    ),
    "ddpm without a scorer": ({"diffusion": {"steps": 2}, "scorer": "none"}, 1, 3),
    "trunk": ({"network": {"trunk": 2, "blocks": 1}, "blend": 1.0}, 64, 1),
    "trunk, several plans": ({"network": {"trunk": 1, "blocks": 0, "width": 24, "noise": 3}}, 5, 3),
    "ddpm, trunk": ({"network": {"trunk": 2, "blocks": 1}, "diffusion": {"steps": 3}}, 5, 2),
    "temperature": ({"temperature": 0.5}, 5, 1),
    "ddpm, temperature": ({"temperature": 0.5, "diffusion": {"steps": 3}}, 5, 1),
    "bounded": ({"bounded": True, "scorer": "return", "network": {"trunk": 2, "blocks": 1}}, 20, 2),
    "ddpm, bounded": ({"bounded": True, "diffusion": {"steps": 3}}, 5, 1),
    "U-Net": ({"network": {"kind": "unet", "channels": 4}, "scorer": "return", "blend": 1.0, "bounded": True}, 20, 2),
    "ddpm, U-Net": ({"network": {"kind": "unet", "channels": 4}, "diffusion": {"steps": 3}, "bounded": True}, 5, 2),
    "bands": ({"network": {"bands": 2}}, 20, 2),
    "ddpm, bands": ({"network": {"bands": 2}, "diffusion": {"steps": 2}}, 5, 1),
    "a wide network": ({"network": {"width": 520, "blocks": 1}}, 5, 1),
    "narrow": ({"network": {"width": 8}, "value": {"width": 8}}, 4, 1),
}

if __name__ == "__main__":
    found = {name: errors(whole_plan(**settings), k, n) for name, (settings, k, n) in CASES.items()}
    found |= {name: varied(constants) for name, constants in VARIANTS.items()}
    found |= {f"{name}, decided": varied(constants, decided) for name, constants in VARIANTS.items()}
    steps = drawn(whole_plan(diffusion={"steps": 3}), 1, 64)  # (3,1,64,5,7)
    whole = whole_plan()
    seeds = {seed: drawn(whole, seed, 64, 3).tolist() for seed in (0, 1, 2**32, 2**63 - 1, 2**63 - 1 - 2**32)}
    print(json.dumps({"errors": found, "noise": seeds, "one": drawn(whole, 1, 1).tolist(), "steps": steps.tolist()}))
