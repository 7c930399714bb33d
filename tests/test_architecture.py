"""Who may import whom, and what `import kdp` may bring along."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kdp"
BASE = {"kdp.errors", "kdp.files"}
ALLOWED = {  # module or package -> what of kdp it may import; a package may import itself
    "kdp.errors": set(),
    "kdp.files": set(),
    "kdp.drift": set(),
    "kdp.keys": set(),
    "kdp.normalize": set(),
    "kdp.neighbours": set(),
    "kdp.networks": set(),
    "kdp.windows": set(),
    "kdp.graphs": set(),
    "kdp.provenance": set(),
    "kdp.pictures": set(),
    "kdp.score": {"kdp.networks", "kdp.windows"},
    "kdp.sampler": {"kdp.keys", "kdp.neighbours", "kdp.normalize", "kdp.windows"},
    "kdp.methods": {
        *("kdp.drift", "kdp.graphs", "kdp.keys", "kdp.networks", "kdp.normalize", "kdp.sampler", "kdp.value")
    },
    "kdp.value": {"kdp.keys", "kdp.networks", "kdp.normalize", "kdp.sampler"},
    "kdp.wish": {"kdp.keys", "kdp.sampler"},
    "kdp.checkpoint": set(),
    "kdp.train": {"kdp.checkpoint", "kdp.graphs", "kdp.sampler"},
    "kdp.inverse": {"kdp.normalize", "kdp.sampler", "kdp.windows"},
    "kdp.traces": {"kdp.networks", "kdp.normalize", "kdp.sampler", "kdp.windows"},
    "kdp.record": set(),
    "kdp.plan": {"kdp.inverse", "kdp.keys", "kdp.normalize", "kdp.record", "kdp.score"},
    "kdp.backends": {
        *("kdp.graphs", "kdp.keys", "kdp.networks", "kdp.normalize", "kdp.plan", "kdp.record", "kdp.score"),
        "kdp.value",
    },
    "kdp.exported": {"kdp.backends", "kdp.record"},
    "kdp.datasets": {"kdp.windows"},
    "kdp.domains": {"kdp.windows", "kdp.keys", "kdp.networks", "kdp.score", "kdp.plan", "kdp.datasets"},
}
COMMAND = {"kdp.bench.cli", "kdp.bench.latency_cli", "kdp.bench.arguments"}  # nothing else needs it
IMPORTED_BY = {"kdp.cli": {"kdp.__main__"}, "kdp.data_cli": {"kdp.cli"}}
IMPORTED_BY |= dict.fromkeys(COMMAND, {"kdp.cli", "kdp.data_cli", *COMMAND})
HEAVY = (
    *("gymnasium", "gymnasium_robotics", "mujoco", "minari", "faiss", "h5py", "matplotlib", "tensorboard", "tyro"),
    *("d3rlpy", "gym", "onnx", "onnxruntime", "openvino"),
)


def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path):
    """Full names of what a file imports of kdp, at its top and inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kdp"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("kdp"))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=module_of)
def test_imports_point_one_way(path):
    module = module_of(path)
    for part, importers in IMPORTED_BY.items():
        found = [name for name in imports_of(path) if name == part or name.startswith(part + ".")]
        assert not found or module in importers, f"{module} must not import {part}"
    unit = next((name for name in ALLOWED if module == name or module.startswith(name + ".")), None)
    if unit is None:  # the upper floors (config, runs, bench, judge, cli ...) may import all below them
        return
    allowed = ALLOWED[unit] | BASE | {unit}
    wrong = [name for name in imports_of(path) if not any(name == a or name.startswith(a + ".") for a in allowed)]
    assert not wrong, f"{module} must not import {wrong}"


def brought_by(module):
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_kdp_is_light():
    assert not brought_by("kdp") & set(HEAVY)


def test_the_command_starts_without_the_studies():
    brought = brought_by("kdp.cli")
    assert {name for name in brought if name.startswith("kdp.bench.")} == COMMAND
    assert not brought & (set(HEAVY) - {"tyro"} | {"kdp.judge", "kdp.demo", "kdp.pictures"})


def test_an_exported_planner_is_known_without_pytorch():
    brought = brought_by("kdp.exported")
    assert not brought & {"torch", "onnxruntime", "openvino", "onnx", *HEAVY}
    assert "torch" not in brought_by("kdp")


def test_peers_are_known_without_the_library_that_trains_them():
    assert not brought_by("kdp.bench.peers") & {"d3rlpy", "gym"}


def test_the_two_algorithms_are_where_the_readme_says():
    assert "ALGORITHM 1" in (PACKAGE / "drift.py").read_text().splitlines()[0]
    assert "ALGORITHM 2" in (PACKAGE / "plan.py").read_text().splitlines()[0]
