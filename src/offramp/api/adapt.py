"""`offramp.adapt`: a fine-tuned model, faster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.api.options import check_counts
from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.answers.answer import Answer
    from offramp.core.runner import Runner

__all__ = ["AdaptResult", "adapt"]


@dataclass(frozen=True)
class AdaptResult:
    """A faster model, or why there is none.

    `guarantee` is what holds, as a sentence; `speedup` was measured against the original in one run; `report` is a
    page that shows where texts exit and which answers differ. Where nothing is saved within the risk, `folder` is None,
    `reason` says why, and the result is false.
    """

    folder: Path | None
    backend: str
    layers: tuple[int, ...]  # that have an exit
    guarantee: str | None
    speedup: float | None
    measured: str  # the speed in a sentence, with the machine
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.folder is not None

    @property
    def report(self) -> Path | None:
        """One HTML page."""
        return None if self.folder is None else self.folder / "report.html"

    def load(self, **options: Any) -> Runner:
        """The model, on the backend that it was adapted for; options are those of `offramp.load`."""
        from offramp.runtimes.loading import load

        if self.folder is None:
            raise BadValue(f"There is no faster model: {self.reason}")
        return load(self.folder, self.backend, **options)

    def predict(self, texts: Any, **options: Any) -> Iterator[Answer]:
        """One answer after the other; options are those of `Runner.predict`."""
        from offramp.data.given import given, is_table

        runner = self.load()
        return runner.predict(given(texts).read(runner.config.inputs) if is_table(texts) else texts, **options)

    def __str__(self) -> str:
        if self.folder is None:
            return str(self.reason)
        exits = ", ".join(map(str, self.layers))
        return f"{self.guarantee}\n{self.measured}\n{self.folder}: exits on {exits}; {self.report} shows it."

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())


def adapt(
    model: str | os.PathLike[str],
    texts: Any,
    *,
    output: str | os.PathLike[str],
    risk: float = 0.02,
    confidence: float = 0.9,
    tolerance: float | None = None,
    backend: str = "torch",
    int8: str = "auto",
    batch: int = 32,
    threads: int | None = None,
    policy: str = "auto",
    exits: str | Sequence[int] = "all",
    heads: str = "attention",
    queries: int = 4,
    query_width: int = 64,
    epochs: float | None = None,
    minutes: float | None = None,
    seed: int = 42,
    text_column: str | None = None,
    pair_column: str | None = None,
    max_length: int | None = None,
    input_format: str | None = None,
    header: bool = True,
    resume: bool = False,
    overwrite: bool = False,
) -> AdaptResult:
    """Make a fine-tuned classifier or regression faster, with a guarantee about its answers; no labels are needed.

    Args:
        model: the fine-tuned model, a folder or a name on the Hub; it is not changed.
        texts: a few thousand texts like those that it will see: a list or an iterator (pairs are tuples), a column, a
            table, or a file.
        output: the model folder to write.
        risk: maximum fraction of answers that differ from the model's.
        confidence: confidence level of the guarantee.
        tolerance: of a regression, how far apart two values still agree.
        backend: what shall run it: torch, onnx or openvino.
        int8: on onnx or openvino: auto, static, token, dynamic or none.
        batch: texts that are served together.
        threads: CPU threads.
        policy: auto, or a policy with a threshold.
        exits: where exits may be: "all", or a list of layers.
        heads: what the exits are: attention, linear or pooler.
        queries: learned queries of an attention head.
        query_width: the width of a query.
        epochs: passes over the texts to learn from; None: 3 to 10, by how many there are.
        minutes: at most, for the learning.
        seed: of everything random.
        text_column: the column of the text.
        pair_column: the column of the second text of each pair.
        input_format: how a file is read; None: by its ending.
        header: whether TSV and CSV have a header; without one columns are "1", "2", ….
        max_length: maximum tokens of a text; the rest is cut.
        resume: go on with a run that was interrupted.
        overwrite: replace the model in `output`.

    >>> fast = offramp.adapt("my-classifier", texts, output="fast", risk=0.02)        # doctest: +SKIP
    >>> print(fast.guarantee, fast.speedup, fast.report)                              # doctest: +SKIP
    >>> for answer in fast.predict(more_texts): ...                                   # doctest: +SKIP
    """
    from offramp.extras import require

    require("train", "Adapting")
    from offramp.adaptation.run import AdaptOptions
    from offramp.adaptation.run import adapt as run
    from offramp.calibration.risks import Guarantee
    from offramp.calibration.tuning.choosing import TuneOptions
    from offramp.data.given import check, given
    from offramp.model.attach import ExitOptions
    from offramp.runtimes import RUNTIMES
    from offramp.training.imitation.heads import ImitationOptions

    check_counts(batch=batch, queries=queries, query_width=query_width, max_length=max_length, threads=threads)
    for name, value in (("epochs", epochs), ("minutes", minutes)):
        if value is not None and not 0 < value < 1e6:
            raise BadValue(f"`{name}` is {value:g}; it is above 0 and finite.")
    if not 0 <= seed < 2**32:
        raise BadValue(f"`seed` is {seed}; it is from 0 to {2**32 - 1:,}.")
    if RUNTIMES[backend].loader is not None:
        raise BadValue(f"`backend` is {backend!r}, which cannot be adapted for; use torch, onnx or openvino.")
    RUNTIMES[backend].check_scales(int8)
    RUNTIMES[backend].check()
    columns = {"text_column": text_column, "pair_column": pair_column, "input_format": input_format}
    rows = given(texts, header=header, **columns)
    check(rows)
    options = AdaptOptions(
        str(output),
        ExitOptions(exits, heads, queries=queries, query_width=query_width),
        ImitationOptions(epochs, minutes, seed=seed),
        TuneOptions(backend, policy, batch, threads),
        int8,
        max_length,
        resume,
        overwrite,
    )
    guarantee = Guarantee("disagreement", risk, confidence, tolerance=tolerance)
    made = run(str(model), rows, guarantee, options)
    if not made.layers:
        return AdaptResult(None, backend, (), None, None, "", made.sentence)
    return AdaptResult(Path(output), backend, made.layers, made.sentence, made.speedup, made.measured)
