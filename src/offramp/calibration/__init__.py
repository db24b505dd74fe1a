"""A threshold that keeps a guarantee: what is at risk, how it is tested, in which order, and what is written down."""
