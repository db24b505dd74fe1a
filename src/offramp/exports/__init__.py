"""A model as graphs for other runtimes: one per segment, the layers between two exits with the exit's head in it."""
