"""Traces: the outputs of every exit for every row of a data set, recorded, read and replayed."""
