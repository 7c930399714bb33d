"""Where a number comes from."""

from __future__ import annotations

import subprocess

import pytest

import kdp.provenance
from kdp.provenance import commit


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a package, a README and results in it."""
    monkeypatch.delenv("KDP_COMMIT", raising=False)
    for name in ("kdp/provenance.py", "results/maze2d.jsonl", "docs/results/maze2d.md", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("as committed\n")
    settings = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for words in (("init", "-q"), ("add", "."), (*settings, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(kdp.provenance, "__file__", str(tmp_path / "kdp/provenance.py"))
    return tmp_path


def test_changed_code_marks_the_commit_and_what_studies_write_does_not(checkout):
    clean = commit()
    assert clean and len(clean) == 12
    for name in ("results/maze2d.jsonl", "docs/results/maze2d.md", "README.md", "kdp/new.py"):
        (checkout / name).write_text("another line\n")
    assert commit() == clean
    (checkout / "kdp/provenance.py").write_text("changed\n")
    assert commit() == clean + "+"


def test_a_copy_without_history_has_no_commit_unless_it_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("KDP_COMMIT", raising=False)
    monkeypatch.setattr(kdp.provenance, "__file__", str(tmp_path / "kdp/provenance.py"))
    assert commit() is None
    monkeypatch.setenv("KDP_COMMIT", "0123456789ab")
    assert commit() == "0123456789ab"
