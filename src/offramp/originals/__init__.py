"""Compatibility with published systems: their checkpoints, gates, submission files and cost counts."""
