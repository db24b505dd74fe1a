"""What exists to be faithful to the published systems: checkpoints, gates, submissions, their own accounts."""
