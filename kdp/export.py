"""`kdp export`: a run as a folder that plans without PyTorch, by onnxruntime or OpenVINO. exported.py reads it."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from kdp.backends import Format, require
from kdp.backends.onnx import head_start, write_onnx
from kdp.backends.runtimes import INPUTS, RUNTIMES
from kdp.backends.whole import WholePlan
from kdp.checkpoint import save_json
from kdp.config import RunConfig
from kdp.domains import find_domain
from kdp.errors import UserError
from kdp.exported import ABOUT, EXECUTORS, FORMAT, GRAPHS
from kdp.files import replacing_folder
from kdp.plan import Planner
from kdp.provenance import commit, versions
from kdp.record import check_candidates
from kdp.runs import load, read_config
from kdp.sampler import generator
from kdp.score import Arrival
from kdp.windows import Windows

TOLERANCE = 1e-4  # of an f32 export, in standard deviations of the data
Told = tuple[torch.Tensor, ...]  # what one plan begins from

COMPARED = 16  # plans that every export is compared by
CONDITIONS = 128  # that int8 is calibrated on
CALIBRATED = 8  # candidates of each, for int8
EXACT = ("/score", "from_condition", "from_noise", "known", "embed")  # parts that int8 leaves alone: they cost little


def export(
    run: Path, format: Format, out: Path, candidates: int = 64, int8: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Writes the folder, and what it says about itself."""
    check_candidates(candidates)
    require(format)
    if int8 and format != "onnx":
        raise UserError(f"int8 is for the format onnx; got {format!r}. Give --format onnx, or leave --int8 out.")
    if out.exists() and any(out.iterdir()) and not (out / ABOUT).exists():
        raise UserError(f"{out} is not empty and holds no exported planner, so it is left alone. Choose another --out.")
    config = RunConfig.from_json(read_config(run)["config"])
    planner = load(run, backend="eager")
    whole = planner.whole
    assert isinstance(whole, WholePlan)
    with tempfile.TemporaryDirectory() as scratch, replacing_folder(out) as folder:
        graph = Path(scratch) / GRAPHS["onnx"]
        write_onnx(whole, graph, int8)
        if int8:
            graph = quantized(graph, conditions(config, whole, CALIBRATED, 0))
        if format == "onnx":
            shutil.copy(graph, folder / GRAPHS["onnx"])
        else:
            import openvino

            openvino.save_model(openvino.Core().read_model(graph), folder / GRAPHS["openvino"], compress_to_fp16=False)
        fresh = conditions(config, whole, candidates, 1) if int8 else None
        error = compared(whole, folder / GRAPHS[format], format, candidates, fresh)
        if not int8 and not error["largest"] < TOLERANCE:
            raise UserError(
                f"the exported plan must be the run's own to {TOLERANCE}; it is off by {error['largest']:.2g} standard "
                f"deviations. Export with another --format."
            )
        np.savez(folder / EXECUTORS, **_executors(planner))  # type: ignore[arg-type]
        about = _about(run, config, planner, whole, format, candidates, int8) | {"error": error}
        save_json(folder / ABOUT, about)
    if console is not None:
        size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
        console.print(
            f"wrote {out} ({size:.1f} MB): plans differ from the run's by {error['rms']:.1e} standard deviations (root "
            f"mean square; at most {error['largest']:.1e}); load it with kdp.exported.load_exported({str(out)!r})"
        )
    return about


@torch.inference_mode()
def compared(
    whole: WholePlan, graph: Path, format: Format, candidates: int, rows: list[Told] | None = None
) -> dict[str, float]:
    """How far the graph's candidates are from the module's for the same noise, in standard deviations of the data, and
    how often both choose the same: for these conditions, or for any about as far from the mean as the data are."""
    run = RUNTIMES[format](graph, torch.get_num_threads(), whole.caution, head_start(whole))
    apart, same = [], []
    for told in rows or [whole.example(candidates, seed) for seed in range(COMPARED)]:
        windows, _, chosen = whole(*told)
        other, _, also = run(*(tensor.numpy() for tensor in told))
        apart.append((windows - torch.from_numpy(other)) / whole.token_std)
        same.append(float(chosen[0] == int(also[0])))
    off = torch.stack(apart)
    numbers = {"largest": off.abs().max(), "rms": off.square().mean().sqrt(), "same choice": torch.tensor(same).mean()}
    return {name: float(number) for name, number in numbers.items()}


def conditions(config: RunConfig, whole: WholePlan, candidates: int, draw: int) -> list[Told]:
    """Where plans of the run's dataset begin, and where they are to end, each with noise of its own."""
    assert config.horizon and config.stride
    domain = find_domain(config.dataset)
    windows = Windows(domain.episodes(), config.horizon, config.stride, domain.goals)
    random = generator(config.seed, draw, 4)
    first, arrival = windows.sample(CONDITIONS, random)
    states, goals = windows.episodes.observations[first], windows.goal(first, arrival)
    rows: list[Told] = []
    for row in range(CONDITIONS):
        told = (states[row : row + 1], whole.method.draw(1, candidates, random))
        rows.append(told if goals is None else (*told, goals[row : row + 1]))
    return rows


def quantized(graph: Path, rows: list[Told]) -> Path:
    """The same graph with the generator's products in eight bits; the scorer stays as it is."""
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        raise UserError("int8 needs the packages onnx and onnxruntime. `pip install 'kdp[onnx]'` brings both.")
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(rows)

        def get_next(self) -> dict[str, np.ndarray] | None:
            told = next(self.rows, None)
            return None if told is None else {n: t.numpy() for n, t in zip(INPUTS, told, strict=False)}

    nodes = [node.name for node in onnx.load(str(graph)).graph.node if node.op_type in ("Gemm", "MatMul", "Conv")]
    made = graph.with_name("int8.onnx")
    logging.getLogger().addFilter(_quiet)  # it advises the root logger to prepare graphs, which ours needs not
    quantize_static(
        str(graph),
        str(made),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,  # seven bits a weight: without VNNI, sums of products of eight would overflow
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_quantize=[name for name in nodes if not any(part in name for part in EXACT)],
    )
    logging.getLogger().removeFilter(_quiet)
    return made


def _quiet(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()


def _about(
    run: Path, config: RunConfig, planner: Planner, whole: WholePlan, format: Format, candidates: int, int8: bool
) -> dict[str, Any]:
    noise = whole.method.draw(1, 2, torch.Generator().manual_seed(0))
    steps = int(noise.shape[0]) if noise.dim() == 5 else None
    return {
        "format": FORMAT,
        "runtime": format,
        "int8": int8,
        "candidates": candidates,
        "state_dim": planner.state_dim,
        "action_dim": planner.action_dim,
        "goal_dims": list(planner.goal_dims),
        "tokens": whole.tokens,
        "width": whole.width,
        "stride": planner.stride,
        "nfe": planner.nfe,
        "caution": whole.caution,
        "ahead": head_start(whole),
        "blend": planner.blend,
        "noise": {"steps": steps, "shape": list(noise.shape[2 if steps is None else 3 :]), "drawn": bool(noise.any())},
        "tracker": None if planner.tracker is None else asdict(planner.tracker),
        "inverse": None if planner.inverse is None else {"gap": planner.inverse.gap, "ahead": planner.inverse.ahead},
        "run": run.resolve().name,
        "config": asdict(config),
        "commit": commit(),
        "versions": versions(),
    }


def _executors(planner: Planner) -> dict[str, np.ndarray]:
    """What the executors need, by name."""
    arrays = {name: tensor.numpy() for name, tensor in planner.normalizer.tensors().items()}
    if planner.inverse is not None:
        weights = planner.inverse.layers.state_dict()
        arrays |= {f"inverse.{name}": tensor.numpy() for name, tensor in weights.items()}
    if isinstance(planner.scorer, Arrival) and planner.scorer.support is not None:
        arrays |= {f"support.{name}": tensor.numpy() for name, tensor in planner.scorer.support.tensors().items()}
    return arrays
