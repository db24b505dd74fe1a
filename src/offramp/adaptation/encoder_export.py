"""An int8 export of the user's model, which computes encoder states faster than torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offramp.adaptation.plan import AdaptPlan
from offramp.data.reading import Text
from offramp.exports.options import ExportOptions, Texts
from offramp.model.adaptive import AdaptiveModel
from offramp.runtimes import RUNTIMES

if TYPE_CHECKING:
    from offramp.core.runner import Runner

__all__ = ["exported_encoder", "int8_runner"]

NUM_SCALE_TEXTS, NUM_CHECKED_TEXTS = 256, 256
MIN_AGREEMENT = 0.98  # of the full model in int8 with torch; below, torch runs the encoder
MIN_TEXTS = 1000  # with fewer, exporting takes longer than it saves


def exported_encoder(plan: AdaptPlan) -> Runner | None:
    """Return the model with all exits in int8, if the adapted model may run in int8; otherwise None.

    Exits that learn from int8 states also learn to predict what the float32 model predicts despite int8.
    """
    backend, int8, splits = plan.options.tuning.backend, plan.options.int8, plan.splits
    if not RUNTIMES[backend].runs_graphs or int8 == "none" or plan.model.config.answer_type.compares_rows:
        return None
    if len(splits.training) < MIN_TEXTS:
        return None
    if int8 == "auto":
        int8 = "mixed" if "mixed" in RUNTIMES[backend].scales else "static"
    return int8_runner(plan.model, backend, int8, splits.training, splits.selection)


def int8_runner(
    model: AdaptiveModel, backend: str, int8: str, texts: Sequence[Text], checked: Sequence[Text]
) -> Runner | None:
    """Return an export of the model with all its exits; None if int8 changes too many predictions on `checked`."""
    from offramp.exports.exporter import Exporter

    options = ExportOptions(backend, int8, force=True)
    used = Texts([*texts[:NUM_SCALE_TEXTS]], [*checked[:NUM_CHECKED_TEXTS]])
    exporter = Exporter(model, used, options, quiet=True)
    exported = exporter.make()
    if exported.checked is None or exported.checked.agreement[-1] < MIN_AGREEMENT:
        return None
    return exporter.runner(exported)
