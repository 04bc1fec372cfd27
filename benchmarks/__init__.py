"""Speed, memory and accuracy, as tables. Run with: make bench, or python -m benchmarks [noise mechanisms ...]."""
