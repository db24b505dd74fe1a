"""SQuAD as it was published: features, answers, scores, files."""
