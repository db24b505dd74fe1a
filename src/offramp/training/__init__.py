"""Training: one loop over `transformers.Trainer` for every recipe and task."""
