"""Run the command line as `python -m discreet`."""

from discreet.cli import main

main()
