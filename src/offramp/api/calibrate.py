"""`offramp.calibrate`: the cheapest threshold within a guarantee."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from offramp.api.options import DataArguments, check_counts, data_options
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
    backend: str = "torch",
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
    announce: Callable[[str], None] | None = None,
    **data: Unpack[DataArguments],
) -> CalibrationResult:
    """Choose the cheapest threshold that keeps a guarantee, and write it into the model folder.

    The guarantee is about answers that differ from the full model's (no labels needed), or about accuracy lost against
    labels. Without `texts` the rows are those that training set aside. Where it cannot be kept, the result is false
    and nothing is changed.

    Args:
        model: a model folder.
        texts: texts, a table or a file that the model was not trained on.
        labels: of texts in memory, for a guarantee about accuracy.
        risk: maximum fraction of changed answers, or of accuracy lost (default: 0.01).
        confidence: confidence level (default: 0.95).
        risk_type: "disagreement" (default) or "accuracy".
        test: auto, binomial, betting or hoeffding-bentkus.
        tolerance: of a regression, how far off a value may be.
        reference: a model, or a file of texts and labels, whose answers are to be kept instead of the full model's.
        speedup: no guarantee, but the best quality at so many times fewer layers.
        policy: whose number is chosen; several are searched on half the rows; "auto": entropy or risk.
        per_exit: a threshold for every exit, searched on half the rows.
        temperature: first fit a temperature per exit, on a quarter of the rows.
        trace: a trace of the rows to read, or to record there.
        backend: what runs it: torch, or what it was exported for.
        device: cpu, cuda, mps …; None: an accelerator if available.
        dtype: float32, bfloat16 or float16.
        threads: CPU threads.
        max_length: maximum tokens of a text; the rest is cut.
        announce: is told the guarantee before anything is written; if it raises, the model stays as it was.
        data: where the rows are, as in `offramp.evaluate`.

    >>> result = offramp.calibrate("my-model", texts, risk=0.02, confidence=0.9)      # doctest: +SKIP
    >>> result.policy, result.guarantee                                              # doctest: +SKIP
    """
    from offramp.extras import require

    require("train", "Calibrating")
    from offramp.calibration.risks import Guarantee
    from offramp.calibration.run import CalibrationOptions, check_folder
    from offramp.calibration.run import calibrate as run
    from offramp.runtimes.loading import load

    check_counts(threads=threads)
    check_folder(str(model))
    for name, value in (("risk_type", risk_type), ("risk", risk), ("confidence", confidence), ("test", test)):
        if speedup is not None and value is not None:
            raise BadValue(f"`speedup=` makes no guarantee; leave `{name}=` out.")
    usual = Guarantee()
    guarantee = Guarantee(
        risk_type or usual.risk_type,
        usual.risk if risk is None else risk,
        usual.confidence if confidence is None else confidence,
        test or "auto",
        tolerance,
    )
    names = (policy,) if isinstance(policy, str) else tuple(policy)
    options = CalibrationOptions(names, per_exit, speedup, temperature)
    rows = data_options(texts, labels, data)
    runner = load(model, backend, device=device, dtype=dtype, threads=threads, max_length=max_length)
    file = None if trace is None else Path(trace)
    return run(runner, rows, guarantee, options, trace_file=file, reference=reference, announce=announce)
