"""`offramp.adapt`: make a fine-tuned model faster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from offramp.api.options import GuaranteeArguments, check_counts, make_guarantee
from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.answers.answer import Answer
    from offramp.core.runner import Runner

__all__ = ["AdaptResult", "adapt"]

MAX_VARIATIONS = 100


@dataclass(frozen=True)
class AdaptResult:
    """Result of `offramp.adapt`: a faster model, or the reason why there is none.

    The result is false (`if not result`) if no setting was faster within the risk.

    Attributes:
        folder: the model folder, or None if nothing was written.
        backend: runtime that the model was adapted for.
        layers: layers with an exit, the last layer included.
        guarantee: the guarantee as a sentence, or None.
        speedup: CPU time of the original model in PyTorch divided by this model's, or None.
        speedup_over_int8: the same for ordinary int8 without early exits in the same runtime; None for torch.
        measured: the measured times as text, with the machine.
        reason: why there is no faster model, or None.
        evidence: the test behind the guarantee, as in calibration.json; `evidence["classes"]` has the rows per class.
    """

    folder: Path | None
    backend: str
    layers: tuple[int, ...]
    guarantee: str | None
    speedup: float | None
    measured: str
    speedup_over_int8: float | None = None
    reason: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return self.folder is not None

    @property
    def report(self) -> Path | None:
        """HTML page that shows where texts exit and which predictions change, or None."""
        return None if self.folder is None else self.folder / "report.html"

    def load(self, **options: Any) -> Runner:
        """Load the model on the backend that it was adapted for.

        Args:
            options: arguments of `offramp.load`.

        Returns:
            The loaded model.

        Examples:
            >>> runner = result.load(threads=2)
        """
        from offramp.runtimes.loading import load

        if self.folder is None:
            raise BadValue(f"No faster model was written: {self.reason}")
        return load(self.folder, self.backend, **options)

    def predict(self, texts: Any, **options: Any) -> Iterator[Answer]:
        """Predict texts with the adapted model.

        Args:
            texts: texts, text pairs, or a table.
            options: arguments of `Runner.predict`.

        Returns:
            An iterator of predictions, in the order of the texts.

        Examples:
            >>> for prediction in result.predict(["a lovely film"]):
            ...     print(prediction.label, prediction.exit_layer)
        """
        from offramp.data.input_data import is_table, resolve_input

        runner = self.load()
        return runner.predict(resolve_input(texts).read(runner.config.inputs) if is_table(texts) else texts, **options)

    def __str__(self) -> str:
        from offramp.report.class_table import class_table
        from offramp.runtimes import RUNTIMES

        if self.folder is None:
            return str(self.reason)
        exits = ", ".join(map(str, self.layers))
        written = (
            f"Wrote {self.folder} with exits on layers {exits}. It runs in {RUNTIMES[self.backend].title} by default. "
            f"Open {self.report} for the report."
        )
        table = class_table(self.evidence.get("classes", ()), self.evidence.get("limits", ()))
        parts = [self.guarantee, *([f"\n{table}\n"] if table else []), self.measured, written]
        return "\n".join(str(part) for part in parts)

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())


def adapt(
    model: str | os.PathLike[str],
    texts: Any,
    *,
    output: str | os.PathLike[str],
    risk: float = 0.02,
    confidence: float = 0.9,
    risk_type: str = "disagreement",
    tolerance: float | None = None,
    backend: str = "torch",
    int8: str = "auto",
    batch: int = 32,
    threads: int | None = None,
    device: str | None = None,
    policy: str = "auto",
    exits: str | Sequence[int] = "auto",
    heads: str = "attention",
    queries: int = 4,
    query_width: int = 64,
    convolution: int | None = None,
    variations: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    seed: int = 42,
    text_column: str | None = None,
    pair_column: str | None = None,
    top_k: int = 10,
    template: str | None = None,
    max_length: int | None = None,
    input_format: str | None = None,
    header: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    **guarantee: Unpack[GuaranteeArguments],
) -> AdaptResult:
    """Make a fine-tuned classifier, regression model, reranker or tagger faster, with a guarantee on its predictions.

    The encoder and the head of the model are not changed. Early exits are trained to reproduce its predictions, the
    fastest set of exits is kept, and held-out texts test the guarantee. No labels are needed.

    Args:
        model: the fine-tuned model, a folder or a name on the Hugging Face Hub; it is not changed.
        texts: a few thousand texts like those the model will see: a list or an iterator (pairs are tuples), a column,
            a table, or a file. For a reranker: rankings, each a dict with `query` and `documents`.
        output: the model folder to write.
        risk: maximum fraction of predictions that differ from the model's.
        confidence: confidence level of the guarantee.
        risk_type: what `risk` limits: "disagreement"; "changed" for rankings and "lost" for entities as in
            `offramp.calibrate`.
        tolerance: for a regression, the maximum difference that counts as unchanged.
        backend: runtime for inference: "torch", "onnx" or "openvino".
        int8: quantization for onnx and openvino: "auto", "static", "mixed", "token", "dynamic" or "none".
        batch: batch size to optimize for.
        threads: number of CPU threads; None for torch's choice.
        device: with torch, the device to adapt for: "cpu", "cuda", "mps", …; None for an accelerator if available.
        policy: exit policy: "entropy", "confidence", "margin" or "risk"; "auto" tries entropy and risk.
        exits: layers that may get an exit: "auto" (the embeddings, 0, and all layers; of
            models with more than six layers every second after the fourth), "all" (all layers) or a list.
        heads: exit heads: "attention", "linear" or "pooler".
        queries: learned queries per attention head.
        query_width: width of a query.
        convolution: channels of a convolution over neighbouring tokens in attention heads on layers 0 to 2; 0 for none,
            None for 128.
        variations: variations of each training text (words dropped, spans replaced, texts joined) that the exits also
            learn from, with the model's predictions; None for up to 3, fewer if there are many long texts.
        epochs: training epochs; None for 3 to 24, depending on the number of texts.
        minutes: maximum training time in minutes.
        seed: random seed.
        text_column: column with the text.
        pair_column: column with the second text of each pair.
        top_k: for rankings, the number of documents that the guarantee is about.
        template: for rankings, the input of the model with `{query}` and `{document}`; None for a pair of texts.
        max_length: maximum tokens per text; longer texts are truncated.
        input_format: format of a file; None to infer it from the extension.
        header: whether TSV and CSV files have a header line; otherwise columns are called "1", "2", ….
        resume: continue an interrupted run.
        overwrite: replace the model in `output`.
        guarantee: further arguments of the guarantee, listed below.

    Further arguments of the guarantee:

    - `class_risk`: maximum fraction of changed predictions of every class, among the texts that the model assigns to
      it: a number, "none", or "auto" (default) for 0.1, or `risk` if that is larger, if the model has classes.
    - `bands`: for a regression, boundaries of bands of values that count as classes, such as 3 or [1, 3].
    - `keep`: classes whose predictions are flagged, with `recall` or `precision`.
    - `flag`: scores that are flagged, instead of `keep`: "P(ABUSE) >= 0.8", or "score >= 3" for a regression.
    - `recall`: of the texts that the model flags, minimum fraction that stays flagged.
    - `precision`: of the texts that are flagged after early exits, minimum fraction that the model flags too.
    - `on_average`: bound the risk on average over calibrations instead of with a confidence level.
    - `count`: "rows" (default) counts texts as they come, copies included; "texts" counts every unique text once.
    - `group_column`: column with the document, customer or conversation of a text. Groups are not divided, and the
      guarantee is about the mean over groups.
    - `groups`: the groups of `texts`, if these are a list.
    - `ledger`: file that records which texts tested a guarantee (default: tests.jsonl in the output folder).

    Returns:
        The guarantee, the measured speedup and the folder; false if no setting is faster within the risk.

    Examples:
        >>> result = offramp.adapt("my-classifier", texts, output="fast", risk=0.02)
        >>> print(result.guarantee, result.speedup)
        >>> predictions = list(result.predict(more_texts))
    """
    from offramp.extras import require
    from offramp.runtimes import RUNTIMES

    require("train", "Adapting", RUNTIMES[backend].extra)
    from offramp.adaptation.run import AdaptOptions
    from offramp.adaptation.run import adapt as run
    from offramp.calibration.tuning.choosing import TuneOptions
    from offramp.data.input_data import check_exists, is_table, resolve_input
    from offramp.model.attach import ExitOptions
    from offramp.model.exit_spec import CONVOLUTION, MAX_QUERIES
    from offramp.training.imitation.heads import ImitationOptions

    if convolution is None:
        convolution = CONVOLUTION if heads == "attention" else 0
    if not 0 <= convolution <= MAX_QUERIES:
        raise BadValue(f"`convolution` must be between 0 and {MAX_QUERIES:,}, got {convolution}.")
    if variations is not None and not 0 <= variations <= MAX_VARIATIONS:
        raise BadValue(f"`variations` must be between 0 and {MAX_VARIATIONS}, got {variations}.")
    check_counts(
        top_k=top_k, batch=batch, queries=queries, query_width=query_width, max_length=max_length, threads=threads
    )
    for name, value in (("epochs", epochs), ("minutes", minutes)):
        if value is not None and not 0 < value < 1e6:
            raise BadValue(f"`{name}` must be positive and finite, got {value:g}.")
    if not 0 <= seed < 2**32:
        raise BadValue(f"`seed` must be between 0 and {2**32 - 1:,}, got {seed}.")
    if RUNTIMES[backend].loader is not None:
        raise BadValue(f"`backend` must be torch, onnx or openvino, got {backend!r}.")
    RUNTIMES[backend].check_scales(int8)
    columns = {"text_column": text_column, "pair_column": pair_column, "input_format": input_format}
    rows = resolve_input(texts, header=header, **columns)
    check_exists(rows)
    group_column, groups = guarantee.get("group_column"), guarantee.get("groups")
    if groups is not None and (not rows.in_memory or is_table(texts)):
        raise BadValue("`groups=` needs a list of texts; use `group_column=` for files and tables.")
    rows = replace(rows, groups=groups)
    options = AdaptOptions(
        str(output),
        ExitOptions(exits, heads, queries=queries, query_width=query_width, convolution=convolution),
        ImitationOptions(epochs, minutes, variations, seed=seed),
        TuneOptions(backend, policy, batch, threads),
        int8,
        max_length,
        device,
        resume,
        overwrite,
        group_column,
        guarantee.get("ledger"),
        {"top_k": top_k} | ({} if template is None else {"template": template}),
    )
    adapted = run(str(model), rows, make_guarantee(risk, confidence, tolerance, guarantee, risk_type), options)
    if not adapted.layers:
        return AdaptResult(None, backend, (), None, None, "", reason=adapted.sentence)
    measured = (adapted.speedup, adapted.measured, adapted.speedup_over_int8)
    evidence = adapted.evidence or {}
    return AdaptResult(Path(output), backend, adapted.layers, adapted.sentence, *measured, evidence=evidence)
