"""Points and curves from traces: scores, costs, intervals, seconds, comparisons."""
