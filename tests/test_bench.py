"""Studies: every row has every column, a stopped study goes on, and tables say what the rows say."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from kdp.bench.results import COLUMNS, append, read, row
from kdp.bench.samples import energy_score, touches_wall
from kdp.bench.tables import maze2d_page, write_tables
from kdp.domains import DOMAINS
from kdp.errors import UserError
from kdp.keys import Clamp, Condition
from kdp.sampler import Batch


def test_the_maze_study_writes_whole_rows_and_trains_nothing_twice(kdp_command, tmp_path):
    assert kdp_command("data", "make", "maze2d-umaze", "--steps", 2000)[0] == 0
    words = ("bench", "maze2d", "--quick", "--tasks", "maze2d-umaze", "--methods", "bc", "--seeds", 1)
    assert kdp_command(*words)[0] == 0
    rows = read(tmp_path / "results/maze2d.jsonl")
    assert [r["executor"] for r in rows] == ["track", "inverse", "action"]
    for r in rows:
        assert set(COLUMNS) <= r.keys() and r["suite"] == "maze2d" and r["dataset"] == "regenerated/maze2d-umaze"
        assert r["command"] == "kdp bench maze2d --quick --tasks maze2d-umaze --methods bc --seeds 1"
    trained = (tmp_path / "runs/bench-maze2d/maze2d-umaze-bc-0/metrics.jsonl").read_text()
    assert kdp_command(*words)[0] == 0
    assert (tmp_path / "runs/bench-maze2d/maze2d-umaze-bc-0/metrics.jsonl").read_text() == trained
    again = read(tmp_path / "results/maze2d.jsonl")
    assert len(again) == 6 and [r["score"] for r in again[3:]] == [r["score"] for r in rows]
    assert kdp_command("table")[0] == 0
    assert f"{rows[0]['score']:.1f}" in (tmp_path / "docs/results/maze2d.md").read_text()


def test_the_field_study_runs(kdp_command, tmp_path):
    words = ("bench", "fields", "--quick", "--tasks", "toy", "--variants", "default,keyed (paper)")
    assert kdp_command(*words)[0] == 0
    rows = read(tmp_path / "results/fields.jsonl")
    assert {r["variant"] for r in rows} == {"default", "keyed (paper)"}
    assert all(np.isfinite(r["energy_score"]) and len(r["shares"]) == 2 for r in rows)


def test_an_unknown_variant_or_maze_is_refused_by_name(kdp_command):
    for words in (("fields", "--variants", "defalt"), ("maze2d", "--tasks", "maze2d-lage")):
        code, _, err = kdp_command("bench", *words)
        assert code == 2 and "Did you mean" in err


def test_a_table_is_the_mean_over_seeds_with_its_standard_error():
    rows = [
        row("maze2d", "cpu", task="m", method="kdp", executor="track", candidates=16, score=score, success=1.0, nfe=1)
        | {"time_to_goal": 70.0, "plan_ms_p50": 1.0, "train_minutes": 2.0, "commit": "abc"}
        for score in (150.0, 156.0)
    ]
    assert "| m | kdp | track | 16 | 2 | 153.0 ± 3.0 | 100% | 70 | 1 | 1.00 | 2.0 |" in maze2d_page(rows)
    rows[0]["commit"] = "older"
    assert "156.0 |" in maze2d_page(rows)


def test_no_results_no_tables(tmp_path):
    with pytest.raises(UserError, match="holds no results"):
        write_tables(tmp_path, tmp_path / "docs")


def test_a_row_is_one_line_of_json(tmp_path):
    append(tmp_path / "r.jsonl", row("x", "cpu", score=1.0))
    append(tmp_path / "r.jsonl", row("x", "cpu", score=2.0))
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [1.0, 2.0]
    assert json.loads(lines[0])["plan_ms_p50"] is None


def test_paths_through_walls_are_told_from_paths_around_them():
    walls = np.array(DOMAINS["maze2d-umaze"].walls)
    through = [[-1, -1], [-1, 1]]
    around = [[-1, -1], [1, -1], [1, 1], [-1, 1]]
    for path, touches in ((through, True), (around, False)):
        assert touches_wall(np.array(path, float)[None], walls, between=50)[0] == touches


def test_the_energy_score_is_best_for_the_datas_own_distribution():
    """Samples like the data score better than shifted, too narrow and too wide ones."""

    class Draws:
        clamp = Clamp(2, 3, 1)

        def __init__(self, mean, std):
            self.mean, self.std = mean, std

        def sample(self, condition, n, generator):
            noise = torch.randn(len(condition), n, 2, 3, generator=generator)
            return self.clamp(self.mean + self.std * noise, condition)

    condition = Condition(torch.zeros(400, 1))
    batch = Batch(Draws(0, 1).sample(condition, 1, torch.Generator().manual_seed(7))[:, 0], condition, condition.state)
    best = energy_score(Draws(0, 1), batch)
    for other in (Draws(0.7, 1), Draws(0, 0.3), Draws(0, 2)):
        assert energy_score(other, batch) > best + 0.01
