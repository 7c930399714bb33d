"""Every way to compute a plan gives the eager plan, and an exported one does without PyTorch."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from helpers import brief_inverse, walks

import kdp
from kdp import backends
from kdp.backends import compiled, runtimes
from kdp.backends.onnx import Lean, write_onnx
from kdp.backends.runtimes import Helpers, OnnxRuntime
from kdp.backends.whole import WholePlan
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.errors import UserError
from kdp.export import TOLERANCE, export
from kdp.exported import load_exported
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.plan import Controller
from kdp.runs import start_run
from kdp.value import ValueConfig

CLOSE = 1e-4  # the tolerance that is promised, in standard deviations of the data
MAZE = replace(DOMAINS["maze2d-umaze"], episodes=lambda: walks([200, 150]))
NETWORK = NetworkConfig(width=16, blocks=2, channels=4, noise=16)
GOALS = RunConfig("maze2d-umaze", steps=3, batch=16, horizon=32, network=NETWORK)
PLAIN = RunConfig("toy", steps=3, batch=16, network=NETWORK)
RUNS = {
    "kdp": (GOALS, MAZE),
    "kdp-unet": (replace(GOALS, network=replace(NETWORK, kind="unet")), MAZE),
    "bc": (replace(GOALS, method="bc"), MAZE),
    "ddpm": (replace(GOALS, method="diffuser", diffusion=DiffusionConfig(steps=2)), MAZE),
    "ddim": (
        replace(
            GOALS,
            method="diffuser",
            diffusion=DiffusionConfig(steps=4, sampler="ddim", sampling_steps=2, predict="epsilon"),
            network=replace(NETWORK, kind="mlp"),
        ),
        MAZE,
    ),
    "kdp-free": (PLAIN, None),
    "kdp-critic": (replace(PLAIN, value=ValueConfig("critic", width=16, heads=3)), None),
    "kdp-blend": (replace(PLAIN, value=ValueConfig("critic", width=16, blend=1.5)), None),
    "kdp-wish": (replace(PLAIN, value=ValueConfig("return", width=16, caution=0.0, wish=0.8)), None),
    "kdp-return": (replace(PLAIN, value=ValueConfig("return", width=16, heads=2)), None),
    "kdp-trunk": (
        replace(PLAIN, network=replace(NETWORK, trunk=2, blocks=1), value=ValueConfig("return", width=16, blend=1.0)),
        None,
    ),
    "ddpm-trunk": (
        replace(
            PLAIN,
            method="diffuser",
            diffusion=DiffusionConfig(steps=3),
            network=replace(NETWORK, kind="mlp", trunk=1, blocks=1),
        ),
        None,
    ),
    "ddpm-free": (
        replace(PLAIN, method="diffuser", diffusion=DiffusionConfig(steps=3), network=replace(NETWORK, kind="mlp")),
        None,
    ),
}
every_run = pytest.mark.parametrize("name", RUNS)
every_runtime = pytest.mark.parametrize("runtime", ["onnx", "openvino"])


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """torch.compile switches this off for the whole process; other tests look at it."""
    distribution = torch.distributions.Distribution
    monkeypatch.setattr(distribution, "_validate_args", distribution._validate_args)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(name): a run, trained for a moment."""
    root = tmp_path_factory.mktemp("runs")

    def made(name: str):
        if not (root / name).exists():
            config, domain = RUNS[name]
            with brief_inverse():
                start_run(config, root / name, domain=domain)
        return root / name

    return made


def asked(planner, seed: int = 0):
    """An observation, and a goal where there is one, somewhere among the data."""
    random = np.random.default_rng(seed)
    mean, std = planner.normalizer.state_mean.numpy(), planner.normalizer.state_std.numpy()
    state = mean + std * random.normal(size=len(mean))
    dims = list(planner.goal_dims)
    return state, (mean + std * random.normal(size=len(mean)))[dims] if dims else None


def assert_same(one, other, planner, atol=CLOSE):
    std = planner.normalizer.moments(one.candidates.shape[-1])[1].numpy()
    np.testing.assert_allclose(one.candidates / std, other.candidates / std, atol=atol, rtol=0)
    np.testing.assert_allclose(one.scores, other.scores, atol=10 * atol, rtol=1e-5)
    if planner.blend or one.chosen == other.chosen:
        np.testing.assert_allclose(one.best / std, other.best / std, atol=atol, rtol=0)
    else:  # scores that are as good as the same: rounding decides
        assert one.scores[other.chosen] == pytest.approx(one.scores.max(), abs=atol)


# The whole plan


@every_run
def test_a_whole_plan_is_what_the_sampler_and_the_scorer_make(folder, name):
    planner = kdp.load(folder(name), backend="eager")
    parts = replace(planner, computed=None)
    assert isinstance(planner.whole, WholePlan) and parts.whole is None
    for seed in range(3):
        one, other = (p.plan(*asked(p, seed), candidates=7, seed=seed) for p in (planner, parts))
        assert np.array_equal(one.candidates, other.candidates)
        assert_same(one, other, planner, 1e-5)


@every_run
def test_many_environments_are_planned_as_each_alone(folder, name):
    planner = kdp.load(folder(name), backend="eager")
    assert planner.whole is not None
    told = planner.whole.example(3, count=4)
    together = planner.whole(*told)
    axis = told[1].dim() - 3 if told[1].dim() == 5 else 0
    for row in range(4):
        noise = told[1].narrow(1 if axis else 0, row, 1)
        alone = planner.whole(told[0][row : row + 1], noise, *(goal[row : row + 1] for goal in told[2:]))
        for one, all_of_them in zip(alone[:2], together[:2], strict=True):
            torch.testing.assert_close(one[0], all_of_them[row], atol=1e-4, rtol=1e-5)


@every_run
def test_one_candidate_is_the_first_of_many(folder, name):
    planner = kdp.load(folder(name), backend="eager")
    assert planner.whole is not None
    state, noise, *goal = planner.whole.example(64)
    first = noise.narrow(noise.dim() - 3 if noise.dim() == 5 else 1, 0, 1)
    many, one = planner.whole(state, noise, *goal), planner.whole(state, first, *goal)
    torch.testing.assert_close(one[0][:, 0], many[0][:, 0], atol=1e-4, rtol=1e-5)
    if name == "kdp":  # sixteen numbers a candidate: the seed's noise begins alike, too
        plans = [planner.plan(*asked(planner), candidates=k, seed=5).candidates[0] for k in (1, 64)]
        np.testing.assert_allclose(*plans, atol=1e-5)


def test_what_candidates_share_is_computed_once(folder, tmp_path):
    onnx = pytest.importorskip("onnx")
    planner = kdp.load(folder("kdp"), backend="eager")
    rows = []
    network = planner.whole.method.generator
    hook = network.from_condition.register_forward_hook(lambda module, inputs, out: rows.append(out.shape))
    planner.plan(*asked(planner), candidates=64)
    hook.remove()
    assert rows == [(1, 1, 16)]
    write_onnx(planner.whole, tmp_path / "plan.onnx")
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "plan.onnx"), data_prop=True).graph
    shapes = {
        info.name: [d.dim_value or d.dim_param for d in info.type.tensor_type.shape.dim] for info in graph.value_info
    }
    inside = [shape for key, shape in shapes.items() if key.startswith("/generator/from_condition/") and shape]
    assert all(shape[0] == 1 for shape in inside if len(shape) == 2) and [1, 16] in inside
    assert [d.dim_value or d.dim_param for d in graph.input[1].type.tensor_type.shape.dim] == [1, "K", 16]


@every_run
def test_a_graph_has_the_units_in_its_layers_and_leaves_the_plan_as_it_was(folder, name):
    """Also where means are many times the spread, in which a unit that is multiplied out may lose its last digits."""
    planner = kdp.load(folder(name), backend="eager")
    own = planner.normalizer
    units = replace(own, state_mean=own.state_mean + 30 * own.state_std, action_mean=own.action_mean - 5)
    whole = WholePlan(planner.whole.method, units, planner.goal_dims, planner.scorer)
    told = whole.example(6)
    windows, scores, chosen = before = whole(*told)
    made, ranks, choice, votes = Lean(whole)(*told)
    torch.testing.assert_close(made / whole.token_std, windows / whole.token_std, atol=CLOSE, rtol=1e-6)
    torch.testing.assert_close(ranks, scores, atol=10 * CLOSE, rtol=1e-5)
    assert torch.equal(choice, chosen) and votes.shape[1:] == scores.shape
    np.testing.assert_allclose(runtimes.ranked(votes.numpy(), whole.caution), ranks, atol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(before, whole(*told), strict=True))


def test_nothing_but_products_is_done_to_the_windows_of_a_graph(folder, tmp_path):
    onnx = pytest.importorskip("onnx")
    write_onnx(kdp.load(folder("kdp-critic"), backend="eager").whole, tmp_path / "plan.onnx")
    nodes = onnx.load(tmp_path / "plan.onnx").graph.node
    last = next(node for node in nodes if node.name == "/generator/last/Gemm")
    assert {node.op_type for node in nodes if last.output[0] in node.input} == {"Reshape", "Slice"}
    assert last.input[2] in next(node for node in nodes if node.name == "/generator/known/Gemm").output
    assert not {node.op_type for node in nodes} & {"Where", "Shape", "Expand"}  # the clamp, and sizes to be found out


# Backends


@every_run
@every_runtime
def test_a_runtime_gives_the_eager_plan(folder, name, runtime):
    pytest.importorskip(backends.NEEDS[runtime][0])
    eager, fast = kdp.load(folder(name), backend="eager"), kdp.load(folder(name), backend=runtime)
    assert (eager.backend, fast.backend) == ("eager", runtime)
    for candidates in (1, 6):
        one, other = (p.plan(*asked(p), candidates=candidates, seed=3) for p in (eager, fast))
        assert_same(one, other, eager)


@every_run
def test_several_threads_share_the_candidates_and_rank_them_together(folder, name, monkeypatch):
    eager = kdp.load(folder(name), backend="eager")
    calls = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(runtimes, "FEWEST", 8)
    monkeypatch.setattr(OnnxRuntime, "_run", record_calls(OnnxRuntime._run, calls))
    monkeypatch.setattr(Helpers, "ask", record_calls(Helpers.ask, calls))
    fast = kdp.load(folder(name), backend="onnx")
    for candidates, parts in ((1, 1), (15, 1), (16, 2), (25, 3), (64, 3)):
        calls.clear()
        one, other = (planner.plan(*asked(eager, candidates), candidates, seed=7) for planner in (eager, fast))
        assert_same(one, other, eager)
        assert len(calls) == parts


def test_who_begins_sooner_has_more_candidates_and_none_is_lost_or_counted_twice():
    assert runtimes.shares(64, 2, 8) == [36, 64] and runtimes.shares(64, 2, 0) == [32, 64]
    assert runtimes.shares(128, 4, 8) == [38, 68, 98, 128]
    for count, parts, ahead in product((64, 65, 99, 1000), (2, 3, 4), (0, 1, 8)):
        ends = runtimes.shares(count, parts, ahead)
        first, *others = np.diff([0, *ends])
        assert ends[-1] == count and len(ends) == parts
        assert all(abs(first - other - ahead) <= 1 for other in others)  # as even as whole candidates can be


def test_helpers_answer_whoever_asked_raise_what_was_raised_and_end_with_their_owner():
    helpers, before = Helpers(2, lambda x: 1 / x), threading.active_count()
    waiting = [helpers.ask(x) for x in range(9, 0, -1)]
    assert [answer() for answer in waiting] == [1 / x for x in range(9, 0, -1)]
    with pytest.raises(ZeroDivisionError):
        helpers.ask(0)()
    assert helpers.ask(4)() == 0.25  # and goes on
    waiting = helpers.ask(3)
    del helpers
    gc.collect()
    assert threading.active_count() == before - 2  # at once: none may wake while Python ends, which aborts the process
    assert waiting() == 1 / 3


def record_calls(function, calls: list):
    def recorded(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return recorded


@pytest.mark.parametrize("name", ["kdp", "bc", "ddim", "kdp-critic"])
def test_torch_compile_gives_the_eager_plan(folder, name, monkeypatch):
    """Captured as a whole, without a break; what a compiler makes of it is in the slow test."""
    whole = torch.compile
    monkeypatch.setattr(
        compiled.torch, "compile", lambda module, **options: whole(module, backend="eager", fullgraph=True, **options)
    )
    eager, fast = kdp.load(folder(name), backend="eager"), kdp.load(folder(name), backend="compiled")
    assert fast.backend == "compiled"
    one, other = (p.plan(*asked(p), candidates=3, seed=3) for p in (eager, fast))
    assert_same(one, other, eager)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kdp", "ddpm", "kdp-critic"])
def test_compiled_code_gives_the_eager_plan(folder, name):
    eager, fast = kdp.load(folder(name), backend="eager"), kdp.load(folder(name), backend="compiled")
    for seed in range(3):
        one, other = (p.plan(*asked(p, seed), candidates=3, seed=seed) for p in (eager, fast))
        assert_same(one, other, eager)


def test_a_runtime_leaves_many_environments_to_the_sampler(folder):
    pytest.importorskip("onnxruntime")
    fast, eager = (kdp.load(folder("kdp"), backend=name) for name in ("onnx", "eager"))
    states, goals = (torch.tensor(np.stack([a, a]), dtype=torch.float32) for a in asked(eager))
    one, other = (p.plan_batch(states, goals, 4, torch.Generator().manual_seed(1)) for p in (fast, eager))
    assert torch.equal(one.candidates, other.candidates) and one.candidates.shape[0] == 2


def test_another_of_our_scorers_keeps_the_backend_and_functions_do_without(folder):
    pytest.importorskip("onnxruntime")
    planner = kdp.load(folder("kdp"), backend="onnx")
    free = replace(planner, scorer=None)
    assert free.backend == "onnx" and not free.plan(*asked(free), candidates=3).scores.any()
    mine = replace(planner, scorer=lambda windows, goals: windows[..., -1, 0])
    plan = mine.plan(*asked(mine), candidates=5)
    assert mine.backend == "eager" and plan.chosen == plan.candidates[:, -1, 0].argmax()
    other = replace(planner, sample=lambda c, n, g: torch.zeros(len(c), n, 4, 20))
    assert other.backend == "eager" and other.whole is None
    denoiser = kdp.load(folder("ddim"), backend="onnx")
    assert denoiser.guided(lambda windows, goals: windows[..., 1, 0]).backend == "eager"


def test_the_best_backend_that_is_installed_is_taken(folder, monkeypatch):
    planner = kdp.load(folder("kdp"))
    assert planner.backend == next(name for name in backends.BEST["cpu"] if backends._installed(name))
    assert kdp.load(folder("ddim")).backend == "eager"  # many calls
    best = next(name for name in backends.BEST["cuda"] if backends._installed(name))
    assert [backends.choose(None, "cuda", calls) for calls in (1, 20)] == [best, "eager"]
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    assert kdp.load(folder("kdp")).backend == "eager"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("onx", "'onx' is not a backend. Did you mean 'onnx'"),
        ("cuda", "plans on a GPU; got device 'cpu'"),
        ("onnx", r"needs the package onnxruntime, which is not installed. `pip install 'kdp\[onnx\]'` brings it"),
        ("openvino", r"needs the package openvino, .*`pip install 'kdp\[openvino\]'`"),
    ],
)
def test_a_backend_that_cannot_be_had_is_refused_in_a_sentence(folder, backend, message, monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        kdp.load(folder("kdp"), backend=backend)


# Exported planners

ROBOT = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("there is no torch on this robot")

sys.meta_path.insert(0, NoTorch())
import numpy as np
from kdp.exported import load_exported

told = dict(np.load(sys.argv[2]))
planner = load_exported(sys.argv[1], threads=1)
plan = planner.plan(told["state"], told.get("goal"), noise=told["noise"])
executors = ("action", "track", "inverse") if planner.about["tracker"] else ("action", "inverse")
actions = {executor: planner.act(plan, told["state"], age, executor) for executor in executors for age in (1,)}
np.savez(sys.argv[3], candidates=plan.candidates, scores=plan.scores, chosen=plan.chosen, **actions)
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("kdp", "onnx"),
        ("kdp", "openvino"),
        ("bc", "onnx"),
        ("ddpm", "onnx"),
        ("ddim", "openvino"),
        ("kdp-critic", "onnx"),
    ],
)
def test_an_exported_planner_plans_where_there_is_no_torch(folder, name, runtime, tmp_path):
    pytest.importorskip(backends.NEEDS[runtime][0])
    planner = kdp.load(folder(name), backend="eager")
    about = export(folder(name), runtime, tmp_path / "robot", candidates=5)
    assert about["error"]["largest"] < TOLERANCE and about["runtime"] == runtime
    state, goal = asked(planner)
    noise = planner.computed.draw(1, 5, torch.Generator().manual_seed(4))
    told = {"state": state, "noise": noise.numpy()} | ({} if goal is None else {"goal": goal})
    np.savez(tmp_path / "told.npz", **told)
    (tmp_path / "robot.py").write_text(ROBOT)
    words = [sys.executable, tmp_path / "robot.py", tmp_path / "robot", tmp_path / "told.npz", tmp_path / "made.npz"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made, plan = np.load(tmp_path / "made.npz"), planner.plan(state, goal, candidates=5, seed=4)
    std = planner.normalizer.moments(plan.candidates.shape[-1])[1].numpy()
    np.testing.assert_allclose(made["candidates"] / std, plan.candidates / std, atol=CLOSE, rtol=0)
    np.testing.assert_allclose(made["scores"], plan.scores, atol=10 * CLOSE, rtol=1e-5)
    assert int(made["chosen"]) == plan.chosen
    for executor in set(made.files) & {"action", "track", "inverse"}:
        controller = Controller(planner, 5, executor, chunk=2, seed=4)
        for _ in range(2):
            action = controller.act(state[None], None if goal is None else goal[None])[0]
        np.testing.assert_allclose(made[executor], action, atol=1e-3, rtol=1e-4)


@pytest.fixture(scope="module")
def robot(folder, tmp_path_factory):
    """An exported planner."""
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("exported") / "robot"
    export(folder("kdp"), "onnx", path, candidates=4)
    return path


def test_an_exported_planner_draws_its_own_noise(robot):
    planner = load_exported(robot)
    state, goal = np.zeros(4), np.ones(2)
    one, same, other = (planner.plan(state, goal, seed=seed).candidates for seed in (1, 1, 2))
    assert one.shape[0] == 4 and np.array_equal(one, same) and not np.allclose(one, other)
    more = planner.plan(state, goal, candidates=9, seed=1)
    np.testing.assert_allclose(more.candidates[:4], one, atol=1e-5)
    assert more.chosen == more.scores.argmax() and more.latency_s > 0 and planner.backend == "onnx"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), np.zeros(2)), r"observation must be 4 numbers; got shape \(3,\)"),
        ((np.zeros(4),), "toward a goal of 2 numbers; got none"),
        ((np.zeros(4) * np.nan, np.zeros(2)), "observation must be finite"),
        ((np.zeros(4), np.zeros(2), 0), "candidates must be 1 or more; got 0"),
    ],
)
def test_an_exported_planner_refuses_what_a_planner_does(robot, arguments, message):
    with pytest.raises(UserError, match=message):
        load_exported(robot).plan(*arguments)


def test_an_exported_planner_says_where_it_comes_from(robot):
    about = json.loads((robot / "about.json").read_text())
    assert about["run"] == "kdp" and about["config"]["method"] == "kdp" and about["versions"]["torch"]
    assert {file.name for file in robot.iterdir()} == {"about.json", "executors.npz", "plan.onnx"}
    with pytest.raises(UserError, match="is an exported planner: load it with kdp.exported.load_exported"):
        kdp.load(robot)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: (path / "plan.onnx").write_bytes((path / "plan.onnx").read_bytes()[:999]), "may be truncated"),
        (lambda path: (path / "plan.onnx").unlink(), "not complete: there is no plan.onnx"),
        (lambda path: (path / "executors.npz").write_bytes(b"PK"), "executors.npz cannot be read"),
        (lambda path: (path / "about.json").write_text("{"), "cannot be read as JSON"),
        (lambda path: (path / "about.json").write_text('{"format": "kdp-2"}'), "does not describe a planner"),
        (lambda path: (path / "about.json").unlink(), "holds no exported planner: there is no about.json"),
    ],
)
def test_a_folder_that_is_no_exported_planner_is_refused_in_a_sentence(folder, tmp_path, harm, message, robot):
    import shutil

    shutil.copytree(robot, tmp_path / "robot")
    harm(tmp_path / "robot")
    with pytest.raises(UserError, match=message) as found:
        load_exported(tmp_path / "robot")
    assert "\n" not in str(found.value)


def test_eight_bits_are_near_and_say_how_near(folder, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    monkeypatch.setattr("kdp.export.find_domain", lambda name: MAZE)
    about = export(folder("kdp"), "onnx", tmp_path / "robot", int8=True, candidates=4)
    assert about["int8"] and 1e-4 < about["error"]["largest"] < 0.5 and about["error"]["rms"] < 0.1
    assert (tmp_path / "robot/plan.onnx").stat().st_size > 0
    state = np.array([0.3, -0.2, 0.1, 0.7])
    candidates = load_exported(tmp_path / "robot").plan(state, np.zeros(2)).candidates
    assert candidates.shape[0] == 4
    np.testing.assert_allclose(candidates[:, 0, :4], np.tile(state, (4, 1)), atol=1e-5)  # the clamp is not rounded


def test_the_command_exports(folder, kdp_command, tmp_path):
    pytest.importorskip("onnxruntime")
    code, out, err = kdp_command("export", folder("kdp"), "--out", "robot", "--candidates", 3)
    assert code == 0, err
    assert "wrote robot" in out and load_exported(tmp_path / "robot").about["candidates"] == 3
    assert kdp_command("export", folder("kdp"), "--out", "robot", "--candidates", 2)[0] == 0  # in its place
    assert load_exported(tmp_path / "robot").about["candidates"] == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("")
    for words, said in {
        ("export", folder("kdp"), "--out", "mine"): "not empty and holds no exported planner",
        ("export", "nowhere", "--out", "robot"): "holds no run",
        ("export", folder("kdp"), "--out", "robot", "--candidates", 0): "candidates must be 1 or more; got 0",
    }.items():
        code, _, err = kdp_command(*words)
        assert code == 2 and said in " ".join(err.split())


# On a GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("backend", ["cuda", "compiled"])
@every_run
def test_a_graph_of_a_whole_plan_gives_the_eager_plan(folder, name, backend):
    eager, fast = (kdp.load(folder(name), "cuda", backend=backend) for backend in ("eager", backend))
    assert fast.backend == backend
    kept = []
    for candidates in (1, 6, 6, 1):
        for seed in (3, 4):
            one, other = (p.plan(*asked(cpu(p)), candidates=candidates, seed=seed) for p in (eager, fast))
            assert_same(one, other, cpu(eager), 1e-3)
            kept.append((one, other))
    for one, other in kept:  # later plans did not write over earlier ones
        assert_same(one, other, cpu(eager), 1e-3)


@needs_gpu
def test_a_graph_of_a_whole_plan_waits_for_nothing(folder):
    planner = kdp.load(folder("kdp"), "cuda")
    assert planner.backend == "cuda"
    told = planner.whole.whole.example(6)
    there = [tensor.cuda() for tensor in told]
    for given in (there, [tensor.cpu() for tensor in told]):
        planner.whole(*given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            planner.whole(*there)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def cpu(planner):
    return replace(planner, normalizer=planner.normalizer.to("cpu"), computed=None)
