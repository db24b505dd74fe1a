"""`offramp adapt`: from a fine-tuned classifier and plain texts to a faster model with a guarantee."""
