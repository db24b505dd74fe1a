"""Early exits that answer as a fine-tuned model does: its states, computed once, and heads trained from them."""
