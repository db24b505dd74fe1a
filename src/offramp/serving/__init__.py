"""A server that existing clients can talk to, and that watches its promise while it serves."""
