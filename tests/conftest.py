"""Shared by all tests: few threads, no terminal colours, made data in a folder of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # the other cores have workers of their own; also for the processes we start
    os.environ["OMP_NUM_THREADS"] = "1"

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # small networks: a second thread costs more than it brings
os.environ.update(TERM="dumb", NO_COLOR="1", COLUMNS="100")


@pytest.fixture
def kdp_command(tmp_path, monkeypatch, capfd):
    """Runs the command in an empty folder: kdp_command("train", ...) -> (exit code, stdout, stderr)."""
    from kdp.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KDP_DATA", str(tmp_path / "data"))

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kdp", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return run
