"""Seconds against what people use instead: every contestant in one run, on the same texts."""
