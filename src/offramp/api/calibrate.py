"""`offramp.calibrate`: choose the fastest threshold that satisfies a guarantee."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from offramp.api.options import (
    DEFAULTS,
    CalibrationArguments,
    check_counts,
    data_options,
    make_guarantee,
    split_arguments,
)
from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.calibration.run import CalibrationResult

__all__ = ["calibrate"]


def calibrate(
    model: str | os.PathLike[str],
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    *,
    risk: float | None = None,
    confidence: float | None = None,
    risk_type: str | None = None,
    test: str | None = None,
    tolerance: float | None = None,
    reference: str | None = None,
    speedup: float | None = None,
    policy: str | Sequence[str] = (),
    per_exit: bool = False,
    temperature: bool = False,
    trace: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    announce: Callable[[str], None] | None = None,
    **arguments: Unpack[CalibrationArguments],
) -> CalibrationResult:
    """Choose the fastest exit threshold that satisfies a statistical guarantee, and save it in the model folder.

    The guarantee limits either the predictions that differ from the full model's (no labels needed) or the accuracy
    lost. Without `texts`, the calibration rows are those that training held out. If no threshold satisfies the
    guarantee, the policy is not changed.

    Args:
        model: a model folder.
        texts: calibration texts, a table or a file; none of them may have been used for training.
        labels: labels of `texts` in memory, for a guarantee on accuracy.
        risk: maximum fraction of changed predictions, or of accuracy lost (default: 0.02).
        confidence: confidence level of the guarantee (default: 0.9).
        risk_type: "disagreement" (default; for rankings the fraction of the top documents that is missing), "changed"
            (for rankings: queries with another set of top documents), "lost" (for token classification: entities of
            the full model that are lost) or "accuracy".
        test: statistical test: "auto" (default), "binomial", "betting" or "hoeffding-bentkus".
        tolerance: for a regression, the maximum difference that counts as unchanged.
        reference: a model, or a file of texts and labels, to compare predictions with instead of the full model.
        speedup: no guarantee, but the best quality with this many times fewer layers.
        policy: exit policy to calibrate (default: the model's, else entropy). With several, one is chosen on a quarter
            of the rows; "auto" chooses between entropy and risk.
        per_exit: choose a separate threshold per exit on a quarter of the rows.
        temperature: first fit a temperature per exit on a quarter of the rows.
        trace: a trace of the rows to read, or to record if the file does not exist.
        backend: runtime for inference: "torch", or one that the model was exported for; None for the one that it was
            adapted for, else "torch".
        device: "cpu", "cuda", "mps", …; None for an accelerator if available.
        dtype: "float32" (default), "bfloat16" or "float16".
        threads: number of CPU threads; None for torch's choice.
        max_length: maximum tokens per text; longer texts are truncated.
        announce: function called with the guarantee before anything is written; if it raises, nothing is changed.
        arguments: where the rows are, as in `offramp.evaluate`, and further arguments of the guarantee, as in
            `offramp.adapt`: `class_risk`, `bands`, `keep`, `flag`, `recall`, `precision`, `on_average`, `count`,
            `group_column`, `groups`, `ledger`. The default ledger is tests.jsonl in the model folder.

    Returns:
        The policy, the guarantee and its evidence; false if no threshold satisfies the guarantee.

    Examples:
        >>> result = offramp.calibrate("my-model", texts, risk=0.02, confidence=0.9)
        >>> print(result.policy, result.guarantee)
    """
    from offramp.extras import require

    require("train", "Calibrating")
    from offramp.calibration.risks import Guarantee
    from offramp.calibration.run import CalibrationOptions, RowOptions, check_folder
    from offramp.calibration.run import calibrate as run
    from offramp.runtimes.loading import adapted_for, load

    check_counts(threads=threads)
    for name, value in (("risk_type", risk_type), ("risk", risk), ("confidence", confidence), ("test", test)):
        if speedup is not None and value is not None:
            raise BadValue(f"`speedup=` gives no guarantee; remove `{name}=`.")
    data, more = split_arguments(arguments)
    for name in ("class_risk", "bands", "keep", "flag", "recall", "precision", "on_average"):
        if speedup is not None and more.get(name, DEFAULTS.get(name)) not in (DEFAULTS.get(name), (), [], None):
            raise BadValue(f"`speedup=` gives no guarantee; remove `{name}=`.")
    if test == "binomial" and (more.get("group_column") or more.get("groups") is not None):
        raise BadValue("The binomial test needs independent rows; use `test='betting'` for groups of rows.")
    if more.get("on_average") and (confidence is not None or test is not None):
        name = "test" if confidence is None else "confidence"
        raise BadValue(f"`on_average=` has no confidence level and no test; remove `{name}=`.")
    default = Guarantee()
    guarantee = make_guarantee(
        default.risk if risk is None else risk,
        default.confidence if confidence is None else confidence,
        tolerance,
        more,
        risk_type or default.risk_type,
        test or "auto",
    )
    check_folder(str(model))
    names = (policy,) if isinstance(policy, str) else tuple(policy)
    options = CalibrationOptions(names, per_exit, speedup, temperature)
    rows = data_options(texts, labels, data, more.get("group_column"), more.get("groups"))
    row_options = RowOptions(more.get("count"), more.get("ledger"))
    backend = backend or adapted_for(model).backend  # no fallback: the result is written for this backend
    runner = load(model, backend, device=device, dtype=dtype, threads=threads, max_length=max_length)
    file = None if trace is None else Path(trace)
    return run(
        runner, rows, guarantee, options, rows=row_options, trace_file=file, reference=reference, announce=announce
    )
