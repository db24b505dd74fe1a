"""Submission files for benchmarks."""
