"""An HTTP server for existing clients that audits its guarantee while serving."""
