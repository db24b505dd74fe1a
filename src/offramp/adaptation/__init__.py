"""A fine-tuned classifier and plain texts in, a faster model with a guarantee about that classifier's answers out."""
