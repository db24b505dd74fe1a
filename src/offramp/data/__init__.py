"""Data sets as data: files, tables, tasks, the rows that a command is about, metrics."""
