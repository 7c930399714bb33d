"""Judging: the one scorer of episodes, and the studies."""
