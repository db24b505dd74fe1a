"""The public functions, one for each command of `offramp`."""
