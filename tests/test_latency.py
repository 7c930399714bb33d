"""Latency: planners take turns, times are what the clock says, and rows, ratios and pages say the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import brief_inverse, plain_normalizer, walks

from kdp.bench import latency as module
from kdp.bench.latency import (
    CALLS,
    FEWEST,
    Pair,
    is_twin,
    latency_lines,
    latency_rows,
    measure,
    pairs_of,
    percentile,
    ratio,
    warm_up,
)
from kdp.bench.results import COLUMNS, read
from kdp.bench.speed_pages import latency_page
from kdp.bench.subjects import Subject, fresh_subjects, one_by_one, open_planner, run_subjects, write_fresh_run
from kdp.bench.tables import write_tables
from kdp.checkpoint import load_json, save_json
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.methods.diffuser import DiffusionConfig
from kdp.networks import NetworkConfig
from kdp.pictures import COLOURS, draw_latency
from kdp.plan import Planner
from kdp.runs import CONFIG, start_run
from kdp.value import ValueConfig

MORE = {
    *(
        "subject",
        "plan_ms_p95",
        "plan_ms_p99",
        "plan_ms_mean",
        "plan_ms_min",
        "end_to_end_ms_p50",
        "plans_per_s",
        "peak_mib",
    ),
    *("backend", "threads", "horizon", "samples", "rounds", "ranked", "ratio_to_kdp", "ratio_low", "ratio_high"),
    *("ratio_same_net", "ratio_same_net_low", "ratio_same_net_high"),
    *("note", "load", "kdp_backend", "ratio_of_means", "observation_dim", "action_dim", "config"),
}
LITTLE = ("--seconds", 0.05, "--samples", 6, "--backend", "eager")


class FakeClock:
    """Time passes only when a planner says so; who planned when is written down."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, []

    def __call__(self) -> float:
        return self.now

    def subject(self, name: str, seconds, method: str = "kdp", backend: str = "eager") -> Subject:
        """`seconds(K)` of a decision."""

        def sample(condition, n, generator):
            self.calls.append((name, n))
            self.now += seconds(n)
            return torch.zeros(len(condition), n, 8, 4)

        planner = Planner(sample, plain_normalizer(3, 1), 1)
        about = {"method": method, "task": "fresh", "horizon": 8, "backend": backend}
        return Subject(name, lambda: planner, np.zeros(3), about=about)


def run_all(pairs: list[Pair], seconds: float, samples: int, limit: float = 100.0, seed: int = 0) -> None:
    list(warm_up(pairs, limit))
    list(measure(pairs, seconds, samples, seed))


def test_every_planner_has_its_turn_in_every_round_and_the_order_changes():
    clock = FakeClock()
    subjects = [clock.subject(name, lambda k: 0.5) for name in "abc"]
    pairs = pairs_of(subjects, [4, 1], clock)
    assert [(pair.subject.name, pair.candidates) for pair in pairs[:3]] == [("a", 1), ("a", 4), ("b", 1)]
    list(warm_up(pairs, 1.0))
    clock.calls.clear()
    assert max(measure(pairs, 1000.0, 8)) == 1.0
    rounds = [clock.calls[at : at + 6] for at in range(0, len(clock.calls), 6)]
    assert len(rounds) == 8 and all(set(one) == set(rounds[0]) and len(set(one)) == 6 for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    again = FakeClock()
    run_all(pairs_of([again.subject(name, lambda k: 0.5) for name in "abc"], [4, 1], again), 1000.0, 8)
    assert again.calls[-48:] == clock.calls
    other = FakeClock()
    run_all(pairs_of([other.subject(name, lambda k: 0.5) for name in "abc"], [4, 1], other), 1000.0, 8, seed=1)
    assert other.calls[-48:] != clock.calls


def test_warm_up_is_not_timed_nor_is_the_first_call_of_a_quick_planners_turn():
    clock = FakeClock()
    waits = iter([9.0, 0.001, 0.001, *[7.0, *[0.001] * CALLS] * 4])
    pair = pairs_of([clock.subject("a", lambda k: next(waits))], [2], clock)[0]
    run_all([pair], 100.0, 4 * CALLS)
    assert pair.samples == 4 * CALLS == len(pair.rounds) * CALLS
    assert pair.times == pytest.approx(np.full(4 * CALLS, 0.001))


def test_percentiles_and_rates_are_of_the_times_that_were_measured():
    clock = FakeClock()
    pair = pairs_of([clock.subject("a", lambda k: 1.0)], [3], clock)[0]
    pair.rounds = {0: [0.001 * n for n in range(1, 101)], 1: [0.101]}
    row = latency_rows([pair], "cpu")[0]
    assert [row[f"plan_ms_p{p}"] for p in (50, 95, 99)] == pytest.approx([51.0, 96.0, 100.0])
    assert row["plan_ms_mean"] == pytest.approx(51.0) and row["plan_ms_min"] == pytest.approx(1.0)
    assert row["plans_per_s"] == pytest.approx(1000 / 51)
    assert (row["samples"], row["rounds"], row["nfe"], row["bef"], row["candidates"]) == (101, 2, 1, 3, 3)
    assert row["peak_mib"] > 1 and row["end_to_end_ms_p50"] is None and row["ratio_to_kdp"] == 1
    assert percentile(np.ones(19), 95) is None and percentile(np.ones(99), 99) is None
    assert percentile(np.zeros(0), 50) is None


def test_slow_planners_get_fewer_samples_and_what_quick_ones_do_not_need():
    clock = FakeClock()
    subjects = [clock.subject("quick", lambda k: 0.001), clock.subject("slow", lambda k: 1.0, "diffuser")]
    quick, slow = pairs = pairs_of(subjects, [1], clock)
    list(warm_up(pairs, 10.0))
    begin = clock.now
    list(measure(pairs, 20.0, 100))
    assert quick.samples >= 100 > slow.samples >= 18  # nearly all of the time, not half
    assert clock.now - begin < 22
    hasty = pairs_of(subjects, [1], clock)
    run_all(hasty, 0.01, 100)
    assert [len(pair.rounds) for pair in hasty] == [FEWEST, FEWEST]


def test_planners_are_also_compared_with_the_kdp_that_has_their_network_and_backend():
    clock = FakeClock()
    times = {"kdp": 0.1, "kdp wide": 0.4, "wide": 8.0, "narrow": 1.0, "other": 2.0}
    subjects = [
        clock.subject(name, lambda k, name=name: times[name], "kdp" if "kdp" in name else "diffuser") for name in times
    ]
    for subject, width in zip(subjects, (1, 2, 2, 1, 3), strict=True):
        subject.about["config"] = {"network": {"width": width}}
    pairs = pairs_of(subjects, [4, 8], clock)
    run_all(pairs, 100.0, 3)
    rows = {row["subject"]: row for row in latency_rows(pairs, "cpu") if row["candidates"] == 8}
    alone = {"kdp": None, "kdp wide": None, "other": None}
    assert {name: row["ratio_same_net"] for name, row in rows.items()} == alone | {
        "wide": pytest.approx(20),
        "narrow": pytest.approx(10),
    }
    assert rows["wide"]["ratio_to_kdp"] == pytest.approx(80)
    page = latency_page([*rows.values()])
    assert "× same net" in page and "20.0 (20–20)" in page

    def pair(backend: str, method: str) -> SimpleNamespace:
        about = {"method": method, "config": {"network": {}}}
        planner = SimpleNamespace(backend=backend)
        return SimpleNamespace(subject=SimpleNamespace(about=about), candidates=1, planner=planner)

    assert is_twin(pair("onnx", "kdp"), pair("onnx", "diffuser"))
    assert not is_twin(pair("onnx", "kdp"), pair("eager", "diffuser"))


def test_what_takes_too_long_is_left_out_and_the_row_says_so():
    clock = FakeClock()
    slow = clock.subject("slow", lambda k: float(k), "diffuser")
    pairs = pairs_of([clock.subject("kdp", lambda k: 0.1), slow], [1, 8, 64], clock)
    run_all(pairs, 10.0, 5, limit=5.0)
    assert ("slow", 64) not in clock.calls and clock.calls.count(("slow", 8)) == 1
    rows = {(row["subject"], row["candidates"]): row for row in latency_rows(pairs, "cpu")}
    assert rows["slow", 1]["ratio_to_kdp"] == pytest.approx(10) and rows["slow", 1]["note"] is None
    assert rows["slow", 8]["note"] == "left out: a call took 8.0 s, more than 5"
    assert rows["slow", 64]["note"] == "left out, as K = 8 was"
    for k in (8, 64):
        assert rows["slow", k]["samples"] == 0 and rows["slow", k]["plan_ms_p50"] is None
        assert rows["slow", k]["ratio_to_kdp"] is None and rows["slow", k]["bef"] == k


def test_a_first_call_that_compiles_is_not_held_against_a_planner():
    clock = FakeClock()
    waits = iter([60.0] + [0.5] * 50)
    pairs = pairs_of([clock.subject("a", lambda k: next(waits), backend="compiled")], [1], clock)
    run_all(pairs, 100.0, 4, limit=5.0)
    assert pairs[0].note is None and pairs[0].times == pytest.approx(np.full(4, 0.5))


def test_ratios_hold_where_the_machine_is_disturbed():
    """Everything takes three times as long from some moment on: the ratio is the same, exactly."""
    clock = FakeClock()

    def disturbed(seconds):
        return lambda k: seconds * (3.0 if clock.now > 20 else 1.0)

    subjects = [clock.subject("kdp", disturbed(0.1)), clock.subject("other", disturbed(1.2), "diffuser")]
    ours, theirs = pairs = pairs_of(subjects, [4], clock)
    run_all(pairs, 1000.0, 40)
    share, low, high, means = ratio(theirs, ours)
    assert share == pytest.approx(12) and 0.9 < low / 12 <= 1.001 and 0.999 <= high / 12 < 3.1
    assert means == pytest.approx(12, rel=0.1)
    theirs.rounds = {number: [12 * t for t in ours.rounds[number]] for number in list(ours.rounds)[:9]}
    assert ratio(theirs, ours) == pytest.approx((12, 12, 12, 12))  # over the rounds that both were in
    theirs.rounds = {10_000: [1.0]}
    assert ratio(theirs, ours) is None


def test_regression_has_one_plan_and_is_compared_at_k_1():
    clock = FakeClock()
    subjects = [clock.subject("kdp", lambda k: 0.2), clock.subject("bc", lambda k: 0.1, "bc")]
    pairs = pairs_of(subjects, [16, 1], clock)
    assert [(pair.subject.name, pair.candidates) for pair in pairs] == [("kdp", 1), ("kdp", 16), ("bc", 1)]
    run_all(pairs, 10.0, 4)
    assert latency_rows(pairs, "cpu")[2]["ratio_to_kdp"] == pytest.approx(0.5)


def test_untrained_networks_are_kdp_and_diffuser_as_published_and_as_fast_as_it_gets(tmp_path):
    subjects = {
        s.name: s for s in fresh_subjects(tmp_path, ["kdp", "diffuser", "bc"], 8, 5, 2, "return", "cpu", "eager")
    }
    assert len(set(COLOURS)) >= len(subjects)  # each a line of its own in the picture
    calls = {name: subject.load().nfe for name, subject in subjects.items()}
    assert list(calls) == [
        *("kdp", "kdp U-Net", "diffuser as published", "diffuser U-Net", "diffuser U-Net, DDIM 5"),
        *("diffuser, same net", "diffuser same net, DDIM 5", "bc"),
    ]
    assert list(calls.values()) == [1, 1, 20, 20, 5, 20, 5, 1]
    kinds = [subject.about["config"]["network"]["kind"] for subject in subjects.values()]
    assert kinds == ["mlp", "unet", "unet", "unet", "unet", "mlp", "mlp", "mlp"]
    plan = subjects["kdp"].load().plan(np.zeros(5), candidates=3)
    assert plan.candidates.shape == (3, 8, 7) and len(set(plan.scores.tolist())) == 3
    ranked = {
        (p.subject.name, p.candidates): p.planner.scorer is not None for p in pairs_of([*subjects.values()], [1, 2])
    }
    assert ranked["kdp", 2] and ranked["diffuser as published", 2] and not any(ranked[n, 1] for n in subjects)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Tiny runs: of each method on the toy and one on a file, untrained; and a trained one in a maze."""
    folder = tmp_path_factory.mktemp("trained")
    network = NetworkConfig("mlp", width=8, blocks=1, noise=2)
    config = RunConfig("toy", horizon=8, stride=1, steps=2, batch=16, network=network, value=ValueConfig("none"))
    slow = replace(config, method="diffuser", diffusion=DiffusionConfig(steps=7))
    runs = {"toy": config, "diffuser": slow, "bc": replace(config, method="bc"), "file": config}
    for name, settings in runs.items():
        write_fresh_run(folder / name, settings, 3, 1)
        domain = None if name == "file" else "toy"
        save_json(folder / name / CONFIG, load_json(folder / name / CONFIG) | {"domain": domain})
    maze = replace(DOMAINS["maze2d-umaze"], episodes=lambda: walks([200]))
    with brief_inverse():
        start_run(replace(config, dataset="maze2d-umaze", horizon=16), folder / "maze", domain=maze)
    return folder


def test_runs_are_measured_to_the_next_observation_and_diffuser_with_ddim_too(trained, tmp_path):
    runs = [trained / name for name in ("diffuser", "toy", "bc", "maze")]
    subjects = run_subjects(tmp_path, runs, "cpu", "eager")
    assert [(s.name, s.load().nfe) for s in subjects] == [
        ("diffuser", 7),
        ("diffuser, DDIM 5", 5),
        ("toy", 1),
        ("bc", 1),
        ("maze", 1),
    ]
    pairs = pairs_of(subjects, [1, 3])
    list(warm_up(pairs, 5.0))
    list(measure(pairs, 0.01, 1))
    pairs[2].visit(1000)  # over the end of an episode of the toy
    rows = latency_rows(pairs, "cpu")
    assert all(set(COLUMNS) | MORE <= row.keys() and row["suite"] == "latency" for row in rows)
    assert all(row["plan_ms_p50"] > 0 and row["end_to_end_ms_p50"] > 0 for row in rows)
    by = {(row["subject"], row["candidates"]): row for row in rows}
    assert by["toy", 3]["ratio_to_kdp"] == 1 and by["diffuser", 3]["ratio_to_kdp"] > 1
    assert by["maze", 3]["task"] == "maze2d-umaze" and by["maze", 3]["executor"] == "track"
    assert by["toy", 3]["executor"] == "action" and by["toy", 3]["dataset"] == "built in"
    assert by["diffuser, DDIM 5", 3]["bef"] == 15 and by["diffuser, DDIM 5", 3]["nfe"] == 5
    assert by["maze", 1]["ranked"] and not by["toy", 3]["ranked"] and ("bc", 3) not in by
    assert by["diffuser, DDIM 5", 1]["config"]["diffusion"]["sampler"] == "ddim"


def test_a_backend_is_for_all_but_diffuser_as_published(trained, tmp_path):
    pytest.importorskip("onnxruntime")
    subjects = run_subjects(tmp_path, [trained / "diffuser", trained / "toy"], "cpu", "onnx")
    told = [(s.name, s.about["backend"], s.load().backend, s.compiled) for s in subjects]
    assert told == [
        ("diffuser", "eager", "eager", False),
        ("diffuser, onnx", "onnx", "onnx", True),
        ("diffuser, DDIM 5", "onnx", "onnx", True),
        ("toy", "onnx", "onnx", True),
    ]
    fresh = fresh_subjects(tmp_path / "fresh", ["kdp", "diffuser"], 8, 3, 1, "critic", "cpu", "onnx")
    assert [s.about["backend"] for s in fresh] == ["onnx", "onnx", "eager", *["onnx"] * 4]
    pair = pairs_of(fresh[:1], [1])[0]
    assert pair.planner.backend == "onnx" and pair.planner.scorer is None and pair.decide() > 0


def test_diffuser_as_published_draws_the_same_windows_one_operation_after_the_other(trained):
    planner = open_planner(trained / "diffuser", "cpu", "eager", plain=True)
    alone = replace(planner, sample=partial(one_by_one, planner.sample.__self__))
    state = np.array([0.3, 0.0, 0.0])
    assert np.allclose(alone.plan(state, candidates=4).candidates, planner.plan(state, candidates=4).candidates)


def test_two_runs_of_one_name_are_told_apart(trained, tmp_path):
    subjects = run_subjects(tmp_path, [trained / "toy", trained / "bc" / ".." / "toy"], "cpu", "eager")
    assert len({subject.name for subject in subjects}) == 2


def test_the_command_prints_tables_and_writes_rows_and_a_picture(kdp_command, tmp_path):
    words = ("latency", "--fresh", "--horizon", 8, "--observation-dim", 3, "--action-dim", 1, "--candidates", "1,2")
    code, out, err = kdp_command(*words, *LITTLE, "--threads", 1, "--out", "r/latency.jsonl", "--plot", "p.png")
    assert code == 0 and "Traceback" not in err
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    assert "diffuser as published" in out and "Times KDP's" in out and "the same network" in out
    rows = read(tmp_path / "r/latency.jsonl")
    assert len(rows) == 15 and all(set(COLUMNS) | MORE <= row.keys() for row in rows)
    assert {row["task"] for row in rows} == {"fresh"} and {row["threads"] for row in rows} == {1}
    assert {row["horizon"] for row in rows} == {8} and {row["backend"] for row in rows} == {"eager"}
    published = next(r for r in rows if r["subject"] == "diffuser as published" and r["candidates"] == 2)
    assert (published["nfe"], published["bef"]) == (20, 40) and published["ratio_to_kdp"] > 2
    assert published["ratio_low"] <= published["ratio_to_kdp"] <= published["ratio_high"]
    assert all(row["end_to_end_ms_p50"] is None and row["samples"] >= FEWEST for row in rows)
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert rows[0]["command"].startswith("kdp latency --fresh --horizon 8")
    assert kdp_command("table")[0] == 2 and kdp_command("table", "--results", "r")[0] == 0
    page = (tmp_path / "docs/results/latency.md").read_text()
    assert "| diffuser as published" in page and (tmp_path / "docs/results/latency.png").exists()


def test_the_command_measures_runs(kdp_command, trained, tmp_path):
    code, out, _ = kdp_command("latency", trained / "toy", trained / "diffuser", "--candidates", "2", *LITTLE)
    assert code == 0 and "diffuser, DDIM 5" in out and list(tmp_path.iterdir()) == []


def test_after_ctrl_c_there_is_what_was_measured_until_then(kdp_command, trained, tmp_path, monkeypatch):
    def interrupted(pairs, *_):
        pairs[0].visit(0)
        yield 0.1
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "measure", interrupted)
    code, out, err = kdp_command("latency", trained / "toy", "--candidates", "1,2", "--out", "l.jsonl", *LITTLE)
    assert code == 130 and "interrupted" in err and "Traceback" not in err and "toy" in out
    assert [row["candidates"] for row in read(tmp_path / "l.jsonl")] == [1]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ((), "name the runs to measure"),
        (("toy", "--fresh"), "one of the two; got 1 runs and --fresh"),
        (("nowhere",), "holds no run"),
        (("file",), "no environment"),
        (("toy", "--candidates", "0"), "candidates must be whole numbers of 1 or more"),
        (("toy", "--candidates", "1,x"), "candidates must be whole numbers of 1 or more"),
        (("toy", "--backend", "egaer"), "egaer"),
        (("toy", "--device", "cuda"), "there is none here"),
        (("toy", "--device", "gpu"), "device must be cpu or cuda"),
        (("toy", "--threads", "0"), "threads must be 1 or more"),
        (("toy", "--seconds", "0"), "must be more than zero"),
        (("toy", "--seed", "-1"), "seed must be 0 or more"),
        (("toy", "--plot", "x.pdf"), "plot must be a .png file"),
        (("toy", "--out", "taken/r.jsonl"), "cannot write"),
        (("--fresh", "--horizon", "0"), "horizon must be 1 or more"),
        (("--fresh", "--action-dim", "0"), "action-dim must be 1 or more"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(kdp_command, trained, tmp_path, words, rule):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (tmp_path / "taken").write_text("")
    here = [trained / word if word in ("toy", "file") else word for word in words]
    code, _, err = kdp_command("latency", *here)
    assert code == 2 and rule in err and "Traceback" not in err


def test_the_help_shows_examples(kdp_command):
    code, out, _ = kdp_command("latency", "--help")
    assert code == 0 and "xample" in out and "kdp latency" in out


def measured(clock: FakeClock, factor: float = 1.0) -> list[dict]:
    subjects = [clock.subject("kdp", lambda k: 1e-3 * factor), clock.subject("slow", lambda k: 0.05 * k, "diffuser")]
    pairs = pairs_of(subjects, [1, 64], clock)
    run_all(pairs, 100.0, 100)
    return latency_rows(pairs, "cpu")


def test_the_page_has_the_newest_rows_of_each_condition():
    rows = [row | {"commit": "old"} for row in measured(FakeClock(), 5.0)]
    rows += [rows[0] | {"subject": "dropped"}, *measured(FakeClock())]
    rows += [row | {"device": "a GPU", "commit": "old"} for row in rows[:4]]
    rows += [row | {"kdp_backend": "onnx", "commit": "old"} for row in rows[:4]]
    page = latency_page(rows)
    assert page.count("\n## ") == 3 and "a GPU, KDP by eager" in page and "KDP by onnx" in page
    assert max(map(len, page.splitlines())) <= 120 and "dropped" not in page
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:5] == "| slo"]
    assert cells[0][1:5] == ["1", "1", "1", "50.0"] and cells[0][-1].startswith("50.0")
    assert cells[1][1] == "64" and cells[1][4] == "3200"
    lines = latency_lines(measured(FakeClock()))
    assert list(lines) == ["kdp", "slow"] and np.array(lines["slow"]) == pytest.approx(np.array([[1, 50], [64, 3200]]))


@pytest.mark.parametrize("panels", [1, 3])
def test_latency_is_drawn_against_candidates(tmp_path, panels):
    lines = {"kdp": [(1, 0.3), (64, 1.1)], "bc": [(1, 0.2)]}
    path = draw_latency(tmp_path / "l.png", {str(number): lines for number in range(panels)})
    assert path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 5000


def test_no_page_without_rows(tmp_path):
    with pytest.raises(ValueError, match="holds no results"):
        write_tables(tmp_path, tmp_path / "docs", tmp_path / "README.md")
