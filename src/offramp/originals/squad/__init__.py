"""SQuAD as published: windows, answers, submission files."""
