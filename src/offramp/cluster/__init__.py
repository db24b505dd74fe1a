"""Batch jobs of any size on Ray: input in parts, a file of answers for each, resumable."""
