"""Export models as graphs for other runtimes: one per exit, with the layers since the previous exit and its head."""
