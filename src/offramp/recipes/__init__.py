"""Ways to train exits: losses now; stages and recipes on `transformers.Trainer` come next."""
