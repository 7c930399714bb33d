"""The README is executed: its commands word for word but for their size, and its Python as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import COMMAND

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SMALLER = {"--steps 300000": "--steps 4000", "--stop-after 500": "--stop-after 3", "--episodes 100": "--episodes 2"}
SMALLER |= {"--minutes 2": "--minutes 0.05", "--candidates 16": "--candidates 2"}


def block(language):
    return re.search(rf"```{language}\n(.*?)```", README, re.S).group(1)


def test_the_tour_and_the_example_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KDP_DATA", "data")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    commands = block("bash").strip().splitlines()
    assert len(commands) >= 7
    for command in commands:
        for large, small in SMALLER.items():
            command = command.replace(large, small)
        words = shlex.split(command)
        assert words[0] == "kdp"
        done = subprocess.run([*COMMAND, *words[1:]], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert (tmp_path / "runs/maze2d-umaze/eval.json").exists()
    done = subprocess.run([sys.executable, "-c", block("python")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    promised = re.findall(r"print\(.*#\s*(\(.*?\)|True)", block("python"))
    assert printed[: len(promised)] == promised


def test_every_file_that_the_readme_names_is_there():
    named = re.findall(r"`(kdp/[\w/]+\.py)`|\]\((docs/[\w/.-]+)\)", README)
    assert len(named) > 8
    for pair in named:
        assert (ROOT / (pair[0] or pair[1])).exists(), pair


def anchors(page):
    """What a page's headings are called in a link."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted(["README.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]))
def test_every_link_between_pages_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page} links to {link}; there are {sorted(anchors(target))}"


@pytest.mark.slow
def test_make_demo_does_what_the_readme_says(tmp_path):
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    subprocess.run(["make", "demo"], cwd=tmp_path / "clone", check=True, timeout=900)
    import json

    result = json.loads((tmp_path / "clone/runs/demo/eval.json").read_text())
    assert result["score"] >= 140
    assert (tmp_path / "clone/runs/demo/rollouts.png").exists()
