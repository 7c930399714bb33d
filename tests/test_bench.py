"""Studies: every row has every column, a stopped study goes on, and tables say what the rows say."""

from __future__ import annotations

import gc
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import plain_normalizer
from rich.console import Console

from kdp.bench.ablations import varied
from kdp.bench.curves import spaced
from kdp.bench.evaluate import Episode, evaluate, plan_ms_p50
from kdp.bench.jobs import Training, is_finished, side_by_side, train_until
from kdp.bench.maze2d import quick_config
from kdp.bench.results import COLUMNS, append, holds, latest, read, row
from kdp.bench.samples import diversity, energy_score, on_the_way, touches_wall, wall_share
from kdp.bench.speed_pages import training_page
from kdp.bench.tables import (
    BEGIN,
    END,
    ablations_page,
    curves_page,
    maze2d_page,
    minutes_to_90,
    scaling_lines,
    scaling_page,
    write_tables,
)
from kdp.bench.training import STAGES, points, sized
from kdp.config import RunConfig
from kdp.domains import DOMAINS
from kdp.errors import UserError
from kdp.plan import Planner

UMAZE = np.array(DOMAINS["maze2d-umaze"].walls)


@pytest.fixture
def small_maze(kdp_command):
    assert kdp_command("data", "make", "maze2d-umaze", "--steps", 2000)[0] == 0
    return kdp_command


def test_the_maze_study_writes_whole_rows_and_does_nothing_twice(small_maze, tmp_path):
    words = ("bench", "maze2d", "--quick", "--tasks", "maze2d-umaze", "--methods", "bc", "--seeds", 1)
    assert small_maze(*words)[0] == 0
    rows = read(tmp_path / "results/maze2d.jsonl")
    assert [r["executor"] for r in rows] == ["track", "inverse", "action"]
    for r in rows:
        assert set(COLUMNS) <= r.keys() and r["suite"] == "maze2d" and r["dataset"].startswith("regenerated/maze2d")
        assert r["command"] == "kdp bench maze2d --quick --tasks maze2d-umaze --methods bc --seeds 1"
        assert 0 <= r["walls"] <= 1 and r["config"]["steps"] == 5 == r["train_steps"] and r["quick"]
    folder = tmp_path / "runs/bench-maze2d/maze2d-umaze-bc-0-quick"
    trained = (folder / "training.safetensors").stat().st_mtime_ns
    assert small_maze(*words, "--executors", "track,action")[0] == 0
    assert read(tmp_path / "results/maze2d.jsonl") == rows
    (tmp_path / "results/maze2d.jsonl").unlink()
    assert small_maze(*words)[0] == 0
    assert [r["score"] for r in read(tmp_path / "results/maze2d.jsonl")] == [r["score"] for r in rows]
    assert (folder / "training.safetensors").stat().st_mtime_ns == trained
    assert small_maze("table")[0] == 0
    assert f"{rows[0]['score']:.1f}" in (tmp_path / "docs/results/maze2d.md").read_text()
    about = json.loads((folder / "config.json").read_text())
    about["config"]["batch"] = 17
    (folder / "config.json").write_text(json.dumps(about))
    code, _, err = small_maze(*words)
    assert code == 2 and "other settings" in err and "(batch)" in err and "--runs" in err


def test_a_run_that_was_stopped_is_trained_to_its_end(small_maze, tmp_path):
    folder = tmp_path / "runs/bench-maze2d/maze2d-umaze-bc-0-quick"
    training = Training(quick_config("maze2d-umaze", "bc", 0), folder, "cpu")
    assert not is_finished(training)
    assert train_until(training, 2).step == 2 and not is_finished(training)
    words = ("bench", "maze2d", "--quick", "--tasks", "maze2d-umaze", "--methods", "bc", "--seeds", 1)
    assert small_maze(*words, "--executors", "track")[0] == 0 and is_finished(training)
    assert [r["train_steps"] for r in read(tmp_path / "results/maze2d.jsonl")] == [5]


def test_planners_are_judged_in_open_loop_and_diffuser_warm(small_maze, tmp_path):
    words = ("bench", "maze2d", "--quick", "--tasks", "maze2d-umaze", "--methods", "kdp,diffuser", "--seeds", 1)
    assert small_maze(*words, "--executors", "track", "--pictures", "pictures")[0] == 0
    rows = read(tmp_path / "results/maze2d.jsonl")
    told = [(r["method"], r["candidates"], r["chunk"], r["warm"], r["nfe"]) for r in rows]
    assert told == [("diffuser", 2, 100, 0, 2), ("diffuser", 2, 100, 1, 1), ("diffuser", 1, 0, 0, 2)] + [
        ("kdp", 2, 100, 0, 1),  # K = 64, 16 and 4, all 2 when in a hurry: measured once
        ("kdp", 1, 0, 0, 1),
    ]
    assert [r["walls"] is None for r in rows] == [bool(r["warm"]) for r in rows]
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"plans-maze2d-umaze-kdp.png", "plans-maze2d-umaze-diffuser.png"}


def test_the_ablations_measure_samples_and_plans(small_maze, tmp_path):
    words = ("bench", "ablations", "--quick", "--variants", "full,no keying,the data's actions", "--seeds", 1)
    assert small_maze(*words)[0] == 0
    rows = read(tmp_path / "results/ablations.jsonl")
    assert [(r["base"], r["variant"], r["field"], r["executor"]) for r in rows[::2]] == [
        ("joint", "full", "joint", "track"),
        ("joint", "no keying", "joint", "track"),
        ("joint", "the data's actions", "joint", "track"),  # not the paper's: not of its field
        ("keyed", "full", "keyed", "track"),
        ("keyed", "no keying", "window", "track"),
    ]
    assert [r["config"]["drift"]["keying"] for r in rows[::2]] == [True, False, True, True, True]
    assert [r["config"]["relabel"] for r in rows[::2]] == [True, True, False, True, True]
    for r in rows:
        assert set(COLUMNS) <= r.keys()
        assert all(np.isfinite(r[name]) for name in ("energy_score", "diversity", "data_diversity", "walls"))
    assert "## maze2d-umaze, keyed field" in ablations_page(rows)


def test_what_we_add_to_the_paper_is_left_out_one_by_one():
    plain = RunConfig("maze2d-umaze")
    domain = DOMAINS["maze2d-umaze"]
    full = varied(plain, "joint", "full").for_domain(domain)
    assert full == plain.for_domain(domain)
    for variant, part in (
        *(("no tilt", "drift"), ("no sight", "drift"), ("the data's actions", "relabel"), ("no bands", "network")),
    ):
        other = varied(plain, "joint", variant).for_domain(domain)
        assert [name for name in vars(full) if getattr(full, name) != getattr(other, name)] == [part]
    assert varied(plain, "joint", "no tilt").for_domain(domain).drift == replace(full.drift, tilt=0.0)
    assert varied(plain, "joint", "no sight").for_domain(domain).drift == replace(full.drift, sight=False)
    assert varied(plain, "joint", "no bands").for_domain(domain).network == replace(full.network, bands=0)
    assert varied(plain, "keyed", "no keying").drift.field == "window"


def test_scaling_in_two_processes_and_its_picture(small_maze, tmp_path):
    words = ("bench", "candidates", "--quick", "--methods", "kdp", "--values", "1,3", "--seeds", 1)
    assert small_maze(*words, "--jobs", 2)[0] == 0
    run = tmp_path / "runs/bench-maze2d/maze2d-umaze-kdp-0-quick"
    assert small_maze("bench", "candidates", run, "--quick", "--values", "2")[0] == 0
    assert small_maze("bench", "horizon", "--quick", "--values", "96,128", "--seeds", 1)[0] == 0
    rows = read(tmp_path / "results/scaling.jsonl")
    assert {(r["axis"], r["value"], r["candidates"]) for r in rows} == {
        ("candidates", 1, 1),
        ("candidates", 3, 3),
        ("candidates", 2, 2),
        ("horizon", 96, 2),
        ("horizon", 128, 2),
    }
    assert [r["config"]["horizon"] for r in rows] == [192, 192, 192, 128, 96]
    assert all(r["plan_ms_p50"] > 0 for r in rows) and [r["jobs"] for r in rows] == [2, 2, 1, 1, 1]
    assert small_maze("table")[0] == 0
    assert (tmp_path / "docs/results/scaling.png").stat().st_size > 10_000


def test_a_curve_is_one_run_judged_on_the_way(small_maze, tmp_path):
    words = ("bench", "curves", "--quick", "--tasks", "maze2d-umaze", "--methods", "kdp", "--points", 3)
    assert small_maze(*words)[0] == 0
    rows = read(tmp_path / "results/curves.jsonl")
    assert [r["train_steps"] for r in rows] == [1, 2, 5] and all(set(COLUMNS) <= r.keys() for r in rows)
    minutes = [r["train_minutes"] for r in rows]
    assert minutes == sorted(minutes) and minutes[0] > 0
    assert small_maze(*words)[0] == 0
    assert read(tmp_path / "results/curves.jsonl") == rows
    (tmp_path / "results/curves.jsonl").unlink()  # the run remembers what cannot be measured again
    assert small_maze(*words)[0] == 0
    assert read(tmp_path / "results/curves.jsonl") == rows


def test_stops_are_a_constant_factor_apart_and_end_with_the_training():
    assert spaced(6400, 7) == (100, 200, 400, 800, 1600, 3200, 6400)
    assert spaced(3, 8) == (1, 2, 3)


def test_the_field_study_runs(kdp_command, tmp_path):
    words = ("bench", "fields", "--quick", "--tasks", "toy", "--variants", "default,keyed (paper)")
    assert kdp_command(*words)[0] == 0
    rows = read(tmp_path / "results/fields.jsonl")
    assert {r["variant"] for r in rows} == {"default", "keyed (paper)"}
    assert all(np.isfinite(r["energy_score"]) and len(r["shares"]) == 2 for r in rows)


@pytest.mark.parametrize(
    "words",
    [
        ("fields", "--variants", "defalt"),
        ("maze2d", "--tasks", "maze2d-lage"),
        ("maze2d", "--executors", "trac"),
        ("ablations", "--fields", "keyd"),
        ("ablations", "--variants", "no keyng"),
        ("candidates", "--methods", "difuser"),
        ("horizon", "--tasks", "maze2d-umaz"),
        ("curves", "--methods", "kpd"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(kdp_command, words):
    code, _, err = kdp_command("bench", *words)
    assert code == 2 and "Did you mean" in err


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("horizon", "--values", "96,x"), "values must be whole numbers"),
        (("candidates", "--values", "0"), "values must be whole numbers"),
        (("candidates", "nowhere"), "holds no run"),
        (("curves", "--points", 1), "points must be 2 or more"),
        (("maze2d", "--jobs", 0), "jobs must be 1 or more"),
        (("maze2d", "--seeds", 0), "seeds and jobs must be 1 or more"),
    ],
)
def test_bad_numbers_are_refused_in_one_sentence(kdp_command, words, rule):
    code, _, err = kdp_command("bench", *words)
    assert code == 2 and rule in err and "Traceback" not in err


def made(method: str, score: float, seed: int = 0, commit: str = "abc", **others) -> dict:
    values = {"task": "maze2d-umaze", "executor": "track", "candidates": 16, "chunk": 1, "warm": 0, "episodes": 100}
    values |= {"success": 1.0, "nfe": 1, "bef": 16, "time_to_goal": 70.0, "plan_ms_p50": 1.0, "walls": 0.02}
    values |= {"train_minutes": 2.0, "train_steps": 6000}
    return row("maze2d", "cpu", **(values | {"method": method, "score": score, "seed": seed} | others)) | {
        "commit": commit
    }


def cells(page: str, start: str) -> list[str]:
    """The cells of the first line of a table that starts so."""
    line = next(line for line in page.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_table_is_the_mean_over_seeds_with_its_standard_error_and_methods_side_by_side():
    rows = [made("kdp", 150.0, 0), made("kdp", 156.0, 1), made("diffuser", 120.0, chunk=0, candidates=1, nfe=20)]
    page = maze2d_page(rows, [])
    assert cells(page, "| maze") == ["maze", "", "kdp, K 16"]
    assert cells(page, "| umaze") == ["umaze", "track", "153.0 ± 3.0"]
    assert cells(page, "| diffuser")[:6] == ["diffuser", "track", "open", "1", "1", "120.0"]
    detail = ["kdp", "track", "closed", "16", "2", "153.0 ± 3.0", "100%", "70", "2.0%", "1", "1.00", "2.0"]
    assert cells(page, "| kdp") == detail
    assert "113.9 / 121.5 / 123.0" in page and "not D4RL's files" in page


def test_lines_of_a_table_go_from_the_usual_protocol_to_the_unusual_and_each_has_its_k():
    protocols = [(1, 0, 0), (4, 1, 5), (4, 1, 0), (16, 1, 0)]  # candidates, chunk, warm
    rows = [made("kdp", k + 100.0, candidates=k, chunk=chunk, warm=warm, walls=k / 100) for k, chunk, warm in protocols]
    page = maze2d_page(rows, [])
    lines = [line for line in page.splitlines() if line.startswith("| kdp ")]
    said = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(line[2], line[3], line[5]) for line in said] == [
        ("closed", "16", "116.0"),
        ("closed", "4", "104.0"),
        ("warm 5", "4", "104.0"),
        ("open", "1", "101.0"),
    ]
    assert cells(page, "| maze") == ["maze", "", "kdp, K 16", "kdp, K 4"]  # the summary: planning at every step
    assert cells(page, "|       | plans that touch a wall")[2:] == ["16.0%", "4.0%"]


def test_only_the_newest_rows_of_each_method_and_protocol_count():
    rows = [made("kdp", 1.0, 0, "old"), made("diffuser", 100.0, 0, "old"), made("kdp", 150.0, 0, "new")]
    page = maze2d_page(rows, [])
    assert cells(page, "| umaze")[2:] == ["150.0", "100.0"]
    assert "new on" in page and "old on" in page
    rows += [made("kdp", 160.0, 0, "new"), made("kdp", 3.0, 0, "newest", quick=True)]
    assert cells(maze2d_page(rows, []), "| umaze")[2] == "160.0"  # measured again; quick rows are no results
    rows += [made("kdp", 140.0, 1, "new", config={"steps": 9, "seed": 1})]
    assert cells(maze2d_page(rows, []), "| umaze")[2] == "140.0"  # other settings are not averaged with the old ones
    seeds = [made("bc", 1.0, seed, config={"steps": 9, "seed": seed}) for seed in (0, 1, 2)]
    assert latest(seeds, ("method",)) == [seeds]  # seeds are
    older = [made("kdp", 1.0, 0, "old", executor="action"), made("kdp", 150.0, 0, "new")]
    assert "action" not in maze2d_page(older, [])  # a method is judged under all protocols at one commit


def test_rows_from_before_warm_starts_are_of_the_same_protocol():
    old = made("kdp", 100.0, 0, "old")
    del old["warm"]
    page = maze2d_page([old, made("kdp", 150.0, 0, "new")], [])
    assert "150.0" in page and "100.0" not in page


def test_minutes_to_ninety_percent_are_of_the_first_stop_that_has_them():
    points = [(10, 0.1, 20.0), (100, 1.0, 135.0), (1000, 10.0, 150.0)]
    rows = [made("kdp", s, 0, train_steps=n, train_minutes=m, jobs=1) for n, m, s in points]
    rows += [made("kdp", s, 1, train_steps=n, train_minutes=m, jobs=1) for n, m, s in [*points[:1], (1000, 3.0, 50.0)]]
    rows += [made("bc", -3.0, train_steps=1000, jobs=1)]
    here = rows[0]["device"]
    assert minutes_to_90(rows) == {("maze2d-umaze", "kdp", here): "2.00", ("maze2d-umaze", "bc", here): ""}
    elsewhere = [r | {"device": "a GPU", "train_minutes": r["train_minutes"] / 10} for r in rows]
    assert minutes_to_90(rows + elsewhere)["maze2d-umaze", "kdp", "a GPU"] == "0.20"
    page = maze2d_page([made("kdp", 150.0)], rows + elsewhere)
    assert [cells(page, f"|       | to 90 % of the score, {name}")[-1] for name in (here, "a GPU")] == [
        "2.00",
        "0.20",
    ]
    assert cells(curves_page(rows), "| maze2d-umaze | kdp")[-1] == "2.00"


def test_scaling_lines_are_in_order_of_the_value():
    rows = [made("kdp", 150.0 + k, seed, axis="candidates", value=k) for k in (16, 1, 4) for seed in (0, 1)]
    assert scaling_lines(rows) == {
        "candidates": {"maze2d-umaze, kdp": [(1, 151.0, 0.0, 1.0), (4, 154.0, 0.0, 1.0), (16, 166.0, 0.0, 1.0)]}
    }
    assert cells(scaling_page(rows), "| maze2d-umaze")[2:6] == ["1", "16", "2", "151.0 ± 0.0"]


def test_pages_fit_a_terminal_and_the_readme_is_renewed_between_its_markers(tmp_path):
    for method in ("kdp", "diffuser", "bc"):
        for seed in (0, 1):
            for name in ("umaze", "medium", "large"):
                task = {"task": f"maze2d-{name}"}
                append(tmp_path / "maze2d.jsonl", made(method, -110.0 + 20 * seed, seed, plan_ms_p50=123.4, **task))
                warm = made(method, 9.0, seed, warm=5, chunk=8, **task)
                append(tmp_path / "maze2d.jsonl", warm)
    append(tmp_path / "curves.jsonl", made("kdp", 150.0, jobs=14))
    readme = tmp_path / "README.md"
    begin = BEGIN.format("maze2d")
    readme.write_text(f"before\n{begin}\nold\n{END}\nafter\n")
    written = write_tables(tmp_path, tmp_path / "docs", readme)
    assert [path.name for path in written] == ["maze2d.md", "curves.md", "README.md"]
    text = readme.read_text()
    assert text.startswith(f"before\n{begin}\n\n| maze ") and text.endswith(f"{END}\nafter\n") and "old" not in text
    assert write_tables(tmp_path, tmp_path / "docs", readme) and readme.read_text() == text
    for path in written:
        assert max(map(len, path.read_text().splitlines())) <= 120
    readme.write_text("no place for a table")
    assert readme not in write_tables(tmp_path, tmp_path / "docs", readme)
    readme.write_text(BEGIN.format("maze2d"))
    with pytest.raises(UserError, match="write that below"):
        write_tables(tmp_path, tmp_path / "docs", readme)


def test_no_results_no_tables(tmp_path):
    with pytest.raises(UserError, match="holds no results"):
        write_tables(tmp_path, tmp_path / "docs", tmp_path / "README.md")


@pytest.mark.parametrize("timed", [True, False])
def test_the_time_of_a_decision_is_measured_only_where_asked(monkeypatch, timed):
    calls = []
    monkeypatch.setattr("kdp.bench.evaluate.plan_ms_p50", lambda *_: calls.append(1) or 5.0)
    planner = Planner(lambda c, n, g: torch.zeros(len(c), n, 8, 4), plain_normalizer(3, 1), 1)
    result, _ = evaluate(planner, DOMAINS["toy"], episodes=2, candidates=1, executor="action", timed=timed)
    assert (result["plan_ms_p50"], calls) == ((5.0, [1]) if timed else (None, []))


def test_slow_planners_are_timed_less_often(monkeypatch):
    drawn = []

    def sample(condition, n, generator):
        drawn.append(n)
        return torch.zeros(len(condition), n, 8, 4)

    planner = Planner(sample, plain_normalizer(3, 1), 1)
    episode = Episode(0.0, False, None, np.zeros((1, 3)), None)
    assert plan_ms_p50(planner, episode, 3, repeats=20) > 0 and drawn == [3] * 25
    monkeypatch.setattr("kdp.bench.evaluate.LONGEST", 0.0)
    assert plan_ms_p50(planner, episode, 3) > 0 and 5 < len(drawn) - 25 < 20


def test_a_row_is_one_line_of_json(tmp_path):
    append(tmp_path / "r.jsonl", row("x", "cpu", score=1.0))
    append(tmp_path / "r.jsonl", row("x", "cpu", score=2.0))
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [1.0, 2.0]
    assert json.loads(lines[0])["plan_ms_p50"] is None
    rows = read(tmp_path / "r.jsonl")
    assert holds(rows, {"score": 2.0, "suite": "x"}) and not holds(rows, {"score": 2.0, "suite": "y"})


def test_paths_through_walls_are_told_from_paths_around_them():
    through = [[-1, -1], [-1, 1]]
    around = [[-1, -1], [1, -1], [1, 1], [-1, 1]]
    for path, touches in ((through, True), (around, False)):
        assert touches_wall(np.array(path, float)[None], UMAZE, between=50)[0] == touches


def test_the_share_of_plans_through_walls_counts_the_chosen_plan_of_every_state():
    """A planner of straight lines from the state to the goal: through the wall from the left, and free on top."""

    def straight(condition, n, generator):
        here, there = condition.state[:, None, None], condition.goal[:, None, None]
        path = here + torch.linspace(0, 1, 9)[:, None] * (there - here)
        return torch.cat([path, torch.zeros(len(path), 1, 9, 1)], -1).repeat(1, n, 1, 1)

    planner = Planner(straight, plain_normalizer(2, 1), 1, goal_dims=(0, 1))
    starts = np.array([[-1.0, -1.0], [1.0, 1.0], [0.0, 1.0], [-1.0, -0.9]])
    goals = np.repeat([[-1.0, 1.0]], 4, 0)
    assert wall_share(planner, UMAZE, starts, goals, 2) == 0.5
    assert wall_share(planner, UMAZE, np.tile(starts, (30, 1)), np.tile(goals, (30, 1)), 1000) == 0.5  # in parts


def test_states_on_the_way_are_starts_and_states_until_the_goal():
    paths = np.stack([np.arange(101.0), np.zeros(101)], 1)
    played = [Episode(1.0, True, 10, paths, np.ones(2)), Episode(0.0, False, None, paths, np.zeros(2))]
    states, goals = on_the_way(played, 9)
    assert states[:, 0].tolist() == [0, 2, 4, 6, 8, 0, 20, 40, 60, 80]
    assert goals.tolist() == [[1, 1]] * 5 + [[0, 0]] * 5


def test_the_energy_score_is_best_for_the_datas_own_distribution():
    """Samples like the data score better than shifted, too narrow and too wide ones."""
    random = torch.Generator().manual_seed(7)
    y, noise = torch.randn(400, 5, generator=random), torch.randn(400, 64, 5, generator=random)
    best = energy_score(noise, y)
    for shift, size in ((0.7, 1), (0, 0.3), (0, 2)):
        assert energy_score(shift + size * noise, y) > best + 0.01


def test_diversity_is_the_spread_within_a_condition_not_between_them():
    random = torch.Generator().manual_seed(0)
    between = 10 * torch.randn(500, 1, 2, generator=random)
    within = torch.tensor([0.5, 1.5]) * torch.randn(500, 64, 2, generator=random)
    assert diversity(between + within) == pytest.approx(1.0, abs=0.02)
    assert diversity(between.expand(-1, 64, -1)) == 0


def test_training_speed_by_the_sizes_of_a_step(kdp_command, tmp_path):
    words = ("bench", "training", "--quick", "--tasks", "toy", "--axes", "conditions,samples,positives")
    code, _, err = kdp_command(*words)
    assert code == 0, err
    rows = read(tmp_path / "results/training.jsonl")
    assert [(r["axis"], r["value"]) for r in rows] == [
        *(("conditions", 32), ("conditions", 64), ("samples", 1), ("samples", 2), ("positives", 4), ("positives", 8)),
    ]
    usual = RunConfig("toy").for_domain(DOMAINS["toy"])
    conditions = usual.batch // usual.drift.samples
    assert [(r["conditions"], r["samples"], r["positives"]) for r in rows] == [
        *((32, 4, 16), (64, 4, 16), (conditions, 1, 16), (conditions, 2, 16), (conditions, 4, 4), (conditions, 4, 8)),
    ]
    for r in rows:
        assert set(COLUMNS) <= r.keys() and r["steps_per_s"] > 0 and set(r["stages_ms"]) == set(STAGES)
        assert r["windows_per_s"] == pytest.approx(r["steps_per_s"] * r["conditions"] * r["samples"])
        assert r["stages_ms"]["backward"] > 0 and not r["graph"]
    page = training_page(rows)
    assert "## toy, CPU" in page and "From a --quick study" in page
    assert max(len(line) for line in err.splitlines()) <= 100


def test_the_loops_whose_speed_is_measured_differ_in_their_switches_alone(monkeypatch):
    usual = RunConfig("toy").for_domain(DOMAINS["toy"])
    for able, switches in ((False, [(False, False), (False, True)]), (True, [(False, False), (True, False)])):
        monkeypatch.setattr("kdp.bench.training.has_bf16", lambda device, able=able: able)
        found = [sized(usual, axis, value, DOMAINS["toy"], "cpu") for axis, value in points(["loop"], True, "cpu")]
        assert [(one.loop.bf16, one.loop.fuse) for one in found] == switches
        assert all(replace(one, loop=usual.loop) == usual for one in found)
    both = sized(usual, "loop", "bf16+fuse", DOMAINS["toy"], "cuda")
    assert both.loop == replace(usual.loop, bf16=True, fuse=True)


def test_training_speed_of_what_is_not_there_is_refused(kdp_command):
    for words, said in {
        ("--axes", "colour"): "'colour' is not a size",
        ("--tasks", "toyy"): "'toyy' is not a task",
        ("--seconds", "0"): "seconds must be more than zero; got 0",
    }.items():
        code, _, err = kdp_command("bench", "training", *words)
        assert code == 2 and said in " ".join(err.split())


def test_a_bar_that_was_interrupted_ends_at_once():
    """And does not write to the terminal later, when it is collected."""

    def interrupt(item):
        raise KeyboardInterrupt

    console = Console(file=io.StringIO())
    with pytest.raises(KeyboardInterrupt) as kept:  # and with it the frames of the generator
        list(side_by_side(interrupt, [1, 2], 1, "work", console))
    written = console.file.getvalue()
    assert "work" in written
    del kept
    gc.collect()
    assert console.file.getvalue() == written
