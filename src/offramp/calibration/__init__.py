"""Choose exit thresholds with a statistical guarantee: risks, tests, the order of testing, and what is saved."""
