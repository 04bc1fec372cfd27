"""The demonstration: a made-up reading log, private counts from it, and the truth beside them."""
