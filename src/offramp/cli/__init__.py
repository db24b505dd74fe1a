"""The command line, `offramp`: one module per command."""
