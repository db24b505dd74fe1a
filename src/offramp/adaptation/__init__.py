"""A fine-tuned classifier and plain texts in, a faster model with a promise about that classifier's answers out."""
