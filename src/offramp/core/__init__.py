"""The parts that carry a model: batches, the stepper, the loop, the runner."""
