"""The demonstration: a made-up reading log, private counts from it, and the true counts for comparison."""
