"""The files that benchmarks take."""
