"""An adaptive model: its config, its exits, its folder, and what a guarantee about it is bound to."""
