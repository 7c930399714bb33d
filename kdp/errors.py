"""What a person did wrong, in one sentence: the rule, the value, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The command prints it as one sentence and exits with 2."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the closest known one, then all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"Did you mean {close[0]!r}? " if close else "") + "Known: " + ", ".join(known) + "."
