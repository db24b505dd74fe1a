"""Datasets: files, tables, tasks, the rows that a command uses, and metrics."""
