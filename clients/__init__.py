"""The tools of analysts, each in its own environment, against a service that records what they send."""
