"""`kdp latency`: one call of a function, imported when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from kdp.bench.arguments import Device, check_device, counts_of, names_of
from kdp.errors import UserError


def latency_command(
    run: tyro.conf.Positional[tuple[Path, ...]] = (),
    fresh: bool = False,
    horizon: int = 32,
    observation_dim: int = 17,
    action_dim: int = 6,
    scorer: Literal["critic", "return", "none"] = "critic",
    methods: str = "kdp,diffuser,bc",
    candidates: str = "1,16,64,256,1024",
    backend: str | None = None,
    device: Device = "cpu",
    threads: int | None = None,
    seconds: float = 60.0,
    samples: int = 300,
    limit: float = 5.0,
    seed: int = 0,
    out: Path | None = None,
    plot: Path | None = None,
) -> int:
    """Measure how long a decision takes, by planner and by K, the number of candidates.

    Planners take turns in one process, so that their ratios hold on a noisy machine. Diffuser is measured as published
    and with every acceleration that KDP has.

    Examples: kdp latency runs/maze2d-umaze --candidates 1,16,64
    / kdp latency --fresh --horizon 32 --threads 2 --out results/latency.jsonl --plot latency.png

    Args:
        run: Run folders of domains that have an environment.
        fresh: Measure untrained networks of the usual sizes instead: KDP, Diffuser and regression.
        horizon: Steps in a plan, with --fresh.
        observation_dim: Numbers in an observation, with --fresh.
        action_dim: Numbers in an action, with --fresh.
        scorer: What ranks the plans of --fresh: critic and return are kdp/value.py's, untrained.
        methods: Those of --fresh, separated by commas.
        candidates: The numbers of candidates, separated by commas. With 1, --fresh ranks nothing.
        backend: How networks are run, as of `kdp.load`; the planner's own choice unless given.
        device: cpu, or cuda where there is one.
        threads: Threads of the CPU; as many as there are cores unless given.
        seconds: For how long to measure, warm-up apart; slow planners are measured less often.
        samples: Decisions that are enough, where there is time for them.
        limit: A planner whose call takes more seconds than this is left out.
        seed: Seed of the order in which planners take turns.
        out: File to append rows to, as in results/.
        plot: Picture of latency against K, a .png file.
    """
    import tempfile

    import torch

    from kdp.bench.latency import latency
    from kdp.bench.subjects import fresh_subjects, run_subjects
    from kdp.methods import METHODS

    if bool(run) == fresh:
        raise UserError(
            f"name the runs to measure, or give --fresh for untrained networks: one of the two; got {len(run)} runs"
            f"{' and --fresh' if fresh else ''}."
        )
    counts, named = counts_of("candidates", candidates), names_of("method", methods, METHODS)
    sizes = {"horizon": horizon, "observation-dim": observation_dim, "action-dim": action_dim, "samples": samples}
    for name, value in (sizes | {"threads": 1 if threads is None else threads}).items():
        if value < 1:
            raise UserError(f"{name} must be 1 or more; got {value}.")
    if not (seconds > 0 and limit > 0):
        raise UserError(f"seconds and limit must be more than zero; got {seconds=} {limit=}.")
    if seed < 0:
        raise UserError(f"seed must be 0 or more; got {seed}.")
    if plot is not None and plot.suffix != ".png":
        raise UserError(f"plot must be a .png file; got {plot}.")
    check_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if fresh:
            subjects = fresh_subjects(folder, named, horizon, observation_dim, action_dim, scorer, device, backend)
        else:
            subjects = run_subjects(folder, list(run), device, backend)
        finished = latency(subjects, counts, seconds, samples, limit, seed, device, out, plot)
    return 0 if finished else 130
