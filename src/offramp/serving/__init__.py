"""A server that existing clients can talk to, and that watches its guarantee while it serves."""
