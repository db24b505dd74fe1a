"""Batch jobs of any size on Ray: the input is split into parts, with one file of predictions each; resumable."""
