"""Choose which exits to keep on a machine: measured times, a search on some rows, a guarantee on others."""
