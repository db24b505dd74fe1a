"""Question answering: the answer is a span of a context, found in windows of it."""
