"""Training of early exits that imitate a fine-tuned model, on encoder states that are computed once."""
