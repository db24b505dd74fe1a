"""Progress of a run: a progress bar with the loss, and a table of the exits' dev scores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

from offramp.core.progress import Progress as ProgressBar
from offramp.training.scores import score_table

__all__ = ["Progress"]


class Progress(TrainerCallback):
    """Show progress: a bar on a terminal, otherwise log lines; and the dev scores on standard error."""

    def __init__(self, stage: str, layers: Sequence[int], metric: str):
        self.stage, self.layers, self.metric = stage, list(layers), metric
        self.bar: ProgressBar | None = None
        self.has_header = False  # whether the table's header is printed

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the bar, at the current step of a resumed run."""
        if state.is_world_process_zero:
            self.bar = ProgressBar(self.stage, state.max_steps, "updates", initial=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Advance the bar."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.done)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Show the loss next to the bar."""
        if self.bar is not None and logs and "loss" in logs:
            self.bar.show(loss=f"{logs['loss']:.3f}")

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Print a line per dev set."""
        if not state.is_world_process_zero or not metrics:
            return
        loss = next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
        for prefix in sorted({key.removesuffix("mean") for key in metrics if key.endswith("_mean")}):
            scores = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
            name = f"{self.stage} {state.epoch or 0:.2f} {prefix.removeprefix('eval').strip('_')}".strip()
            header, line = score_table([(f"{name:<24}", scores)], self.layers, self.metric).split("\n")
            line += "" if loss is None else f"   loss {loss:.3f}"
            tqdm.write(line if self.has_header else f"{header}\n{line}", file=sys.stderr)
            self.has_header = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
