"""Reading and writing files, shared by all commands."""
