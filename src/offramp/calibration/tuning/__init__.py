"""Which exits are worth their while on a machine: measured seconds, a search on some rows, a guarantee on others."""
