"""AdaptiveModel: its config, exit heads, model folder and guarantee."""
