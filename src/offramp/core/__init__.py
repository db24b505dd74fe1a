"""The core of inference: batches, the stepper interface, the early-exit loop and the runner."""
