"""Tables of speed, memory and accuracy. Run with: make bench, or python -m benchmarks [noise mechanisms ...]."""
