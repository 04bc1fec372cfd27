"""`python -m discreet` is `discreet`."""

from discreet.cli import main

main()
