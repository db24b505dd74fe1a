"""Evaluate a model: traces, scores, costs, confidence intervals, timings, comparisons and benchmarks."""
