"""Reading and writing: one reader for every command."""
