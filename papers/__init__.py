"""The experiments of five papers, again: make papers, or python -m papers [experiment ...]. Not in the wheel."""
