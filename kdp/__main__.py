"""`python -m kdp` is the command `kdp`."""

from kdp.cli import main

main()
