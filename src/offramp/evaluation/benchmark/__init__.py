"""Benchmark a model against baselines: all entries in one run, on the same texts."""
